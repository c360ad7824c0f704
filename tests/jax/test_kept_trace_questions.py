"""A function's answers from JAX, from its arrays and from Python may change between two calls. The second call must then be the one that a
process makes which never made the first: no cache may answer a question that was asked anew.

The questions are found by introspection: public attributes of arrays and tracers, and JAX's settings."""

import contextlib
import contextvars
import functools
import gc
import json
import os
import random
import re
import subprocess
import sys
import types
import warnings
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
import scoremod.jax as package
from scoremod.environment import VARIABLES
from scoremod.jax import attention_primitives, custom_rules, flex_attention, fused_attention, graph_callback, trace
from scoremod.call_spec import CallSpec
from scoremod.jax.api import trace_call
from scoremod.jax.graph import Tensor

SEED = int(os.environ.get("SCOREMOD_TEST_SEED", random.SystemRandom().randrange(2**31)))
H, S, D = 2, 4, 4
Q, K, V = (jnp.asarray(np.random.default_rng(i).standard_normal((1, S, H, D)), jnp.float32) for i in range(3))

# Kept by the package's functions: each that has a way to forget is found.
KEPT = {
    f"{name}.{each}": function
    for name, module in sorted(sys.modules.items())
    if name.startswith("scoremod") and ".torch" not in name
    for each, function in vars(module).items()
    if hasattr(function, "cache_clear") and (name, each) not in {("scoremod.library", "load"), ("scoremod.jax.ffi", "register")}
}


def forget():
    """Clears every cache, as in a new process."""
    for function in KEPT.values():
        function.cache_clear()
    scoremod.cache.clear()
    jax.clear_caches()


def answer_of(question):
    """A question's answer as a factor, and whether there is one; objects are known by what they show, without addresses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = question()
            text = repr(answer)
    except Exception as error:  # an answer, too
        text = type(error).__name__
    return 1 + zlib.crc32(re.sub(r"0x[0-9a-f]+|\b\d{9,}\b", "", text).encode()) % 97 / 64


def meaning(score_mod):
    """The call that flex_attention would run, and its operands' numbers. An error is one, too."""
    try:
        traced = trace_call(Q, K, V, score_mod, None, CallSpec(), None, "BSHD")
        arrays = [np.asarray(source.array()) for source in traced.sources]
        return traced.call, traced.problem, [(str(x.dtype), x.shape, x.tobytes()) for x in arrays]
    except Exception as error:
        return type(error).__name__, str(error)[:60]


def disagreement(first, second, run=meaning):
    """Whether a second call differs from what it is where nothing was kept. first, second: contexts in which to make the function and call it."""
    with first() as function:
        run(function)
    with second() as function:
        after = run(function)
    forget()
    with second() as function:
        return after != run(function)


def always(function):
    return lambda: contextlib.nullcontext(function)


def attributes_of(value):
    return sorted(name for name in dir(value) if not name.startswith("_"))


# Asked last of an array, or never: the array is none afterwards.
DESTRUCTIVE = {"delete", "unsafe_buffer_pointer", "block_until_ready"}


def ask(value, name):
    attribute = getattr(value, name)
    return attribute() if callable(attribute) else attribute


ARRAYS = {
    "other numbers": jnp.arange(5, 5 + H, dtype=jnp.float32),
    "another dtype": jnp.ones(H, jnp.bfloat16),
    "another shape": jnp.ones((H, 3), jnp.float32),
    "a weak type": jnp.broadcast_to(jnp.asarray(2.0), (H,)) * 1.0,
    "another device": jax.device_put(jnp.ones(H, jnp.float32), jax.devices()[-1]),
}
ONES = jnp.ones(H, jnp.float32)


def score_with(factor, array):
    return lambda s, b, h, i, j: s * factor() + jnp.reshape(array, (H, -1))[h, 0].astype(jnp.float32)


def question_to(array, name):
    return score_with(lambda: answer_of(lambda: ask(array, name)), array)


def test_questions_to_a_captured_array():
    """Each attribute asked of one array and then of another, which is drawn."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    asked = [name for name in attributes_of(ONES) if name not in DESTRUCTIVE]
    assert len(asked) > 60
    drawn = [(name, draw.choice(sorted(ARRAYS))) for name in asked]
    assert [each for each in drawn if disagreement(always(question_to(ONES, each[0])), always(question_to(ARRAYS[each[1]], each[0])))] == []


def test_whether_a_captured_array_is_deleted():
    def calls():
        array = jnp.ones(H) + 0
        function = lambda s, *_: s * (3.0 if array.is_deleted() else 1.0)  # noqa: E731
        before = meaning(function)
        array.delete()
        return before, meaning(function)

    before, after = calls()
    assert before != after
    forget()
    assert calls() == (before, after)


def test_questions_to_traced_scores_and_indices():
    """Each asked of the score and of an index, first of a function of another place and then under other settings of JAX."""
    found = []

    def collect(s, b, h, i, j):
        found.append((attributes_of(s), attributes_of(i)))
        return s

    meaning(collect)
    of_score, of_index = found[0]
    assert len(of_score) > 60 and len(of_index) > 60

    @contextlib.contextmanager
    def under(setting, function):
        with setting:
            yield function

    wrong = []
    for name in sorted({*of_score, *of_index}):
        function = lambda s, b, h, i, j, name=name: s * answer_of(lambda: ask(s, name)) + answer_of(lambda: ask(i, name))  # noqa: E731
        if disagreement(always(function), lambda function=function: under(jax.enable_x64(True), function)):
            wrong.append(name)
    assert wrong == []


def _one_like(name, value):
    """Another value of a setting, which doesn't keep JAX from running; None without one."""
    known = {
        "jax_default_matmul_precision": "highest",
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
        "jax_default_prng_impl": "rbg",
        "jax_random_seed_offset": 7,
        "jax_default_device": jax.devices()[-1],
        "jax_traceback_filtering": "off",
        "jax_explicit_x64_dtypes": "allow",
        "jax_captured_constants_warn_bytes": 1000,
        "jax_tracer_error_num_traceback_frames": 2,
        "jax_traceback_in_locations_limit": 2,
        "jax_embedded_constants_max_bytes": 1,
    }
    if isinstance(value, bool):
        return not value
    return known.get(name)


# They say how JAX starts, keep it from computing or tracing at all, or make it watch itself for leaks of memory.
NOT_CHANGED = re.compile(
    r"jax_(no_|enable_(recover|preempt|pgle)|debug_leaked|array_garbage|distributed|check_proxy|cpu_enable_async|raise_persistent|"
    r"check_tracer_leaks|check_static|cross_host|force_dcn|use_magma|send_traceback|remove_custom|share_binary|thread_guard|transfer_guard|"
    r"enable_compilation_cache|sort_devices|compilation_cache|experimental_unsafe|threefry_gpu|bcoo|rocm|pallas|mosaic|ragged)"
)


def changeable():
    found = {}
    for name, value in jax.config.values.items():
        other = _one_like(name, value)
        if other is not None and hasattr(jax.config, name) and not NOT_CHANGED.match(name):
            found[name] = (value, other)
    return found


@contextlib.contextmanager
def setting(name, value, function):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield function
    finally:
        jax.config.update(name, before)


def of_library(s, b, h, i, j):
    """Functions that are known by what JAX traces them to, and others whose rules are tried."""
    x = jnp.logaddexp(s, jnp.float32(0.5)) + jax.nn.relu6(s) + jnp.sinc(s) + jax.nn.silu(s) + jax.scipy.special.xlogy(s, jnp.float32(2))
    return x + jnp.float32(i // 3 - j % 3) + jax.nn.softplus(s) + jax.nn.relu(s - jnp.float32(1))


def test_settings_of_jax():
    """Each asked and in effect, changed to another value, and to its own after a first call under the other."""
    settings = changeable()
    assert {"jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_debug_nans", "jax_disable_jit"} <= set(settings)
    wrong = []
    for name, (value, other) in settings.items():
        function = lambda s, *rest, name=name: of_library(s, *rest) * answer_of(lambda: getattr(jax.config, name))  # noqa: E731
        contexts = [functools.partial(setting, name, each, function) for each in (value, other)]
        forget()
        wrong += [name for first, second in (contexts, contexts[::-1]) if disagreement(first, second)]
    assert wrong == []


GLOBAL = [2.0]
NUMBER = 2.0
OWN = contextvars.ContextVar("OWN", default=2.0)


class Holder:
    factor = 2.0

    def __init__(self):
        self.own = 2.0

    def __call__(self, s, b, h, i, j):
        return s * self.own * type(self).factor

    @property
    def half(self):
        return self.own / 2


def python_states():
    """name -> (function, what changes it)."""
    cell, holder, table, items, chosen, module = 2.0, Holder(), {"x": 2.0}, [1.0, 2.0], {1, 2}, types.ModuleType("settings")
    module.factor = 2.0

    def set_cell():
        nonlocal cell
        cell = 5.0

    def default(s, b, h, i, j, factor=2.0, *, other=1.0):
        return s * factor * other

    def set_class():
        Holder.factor = 5.0

    partial = functools.partial(lambda s, *_, table: s * table["x"], table=table)
    return {
        "a global's item": (lambda s, *_: s * GLOBAL[0], lambda: GLOBAL.__setitem__(0, 5.0)),
        "a global": (lambda s, *_: s * NUMBER, lambda: globals().__setitem__("NUMBER", 5.0)),
        "a cell": (lambda s, *_: s * cell, set_cell),
        "a default": (default, lambda: setattr(default, "__defaults__", (5.0,))),
        "a keyword's default": (default, lambda: setattr(default, "__kwdefaults__", {"other": 5.0})),
        "a dict": (lambda s, *_: s * table["x"], lambda: table.update(x=5.0)),
        "a partial's dict": (partial, lambda: table.update(x=7.0)),
        "a list": (lambda s, *_: s * sum(items), lambda: items.append(5.0)),
        "a set": (lambda s, *_: s * len(chosen), lambda: chosen.add(5)),
        "an attribute": (lambda s, *_: s * holder.own, lambda: setattr(holder, "own", 5.0)),
        "a property": (lambda s, *_: s * holder.half, lambda: setattr(holder, "own", 9.0)),
        "an object's attribute": (holder, lambda: setattr(holder, "own", 5.5)),
        "a method's object": (holder.__call__, lambda: setattr(holder, "own", 6.5)),
        "a class's attribute": (holder, set_class),
        "a module's attribute": (lambda s, *_: s * module.factor, lambda: setattr(module, "factor", 5.0)),
        "the code": (default, lambda: setattr(default, "__code__", (lambda s, b, h, i, j, factor=2.0, *, other=1.0: s * 9 * factor).__code__)),
        "a context variable": (lambda s, *_: s * OWN.get(), lambda: OWN.set(5.0)),
        "the environment": (lambda s, *_: s * float(os.environ.get("OF_THE_TEST", "2")), lambda: os.environ.__setitem__("OF_THE_TEST", "5")),
        "the time": (lambda s, *_: s * next(ticks), lambda: None),
    }


ticks = iter(range(2, 10**6))


@pytest.fixture
def restored(monkeypatch):
    """The states of this module as they were."""
    monkeypatch.setenv("OF_THE_TEST", "2")
    token = OWN.set(2.0)
    yield
    GLOBAL[0], Holder.factor = 2.0, 2.0
    globals()["NUMBER"] = 2.0
    OWN.reset(token)


CALLS = {
    "flex_attention": lambda f: flex_attention(Q, K, V, f),
    "its gradient": lambda f: jax.grad(lambda q: (flex_attention(q, K, V, f) ** 2).sum())(Q),
    "vmap": lambda f: jax.vmap(lambda q: flex_attention(q, K, V, f))(jnp.stack([Q, 2 * Q])),
    "xla": lambda f: flex_attention(Q, K, V, f, backend="xla"),
    "a graph callback": lambda f: fused_attention(Q, K, V, score_mod=lambda graph, score, tensors: Tensor(f(score.value, *graph._indices))),
    "explain": lambda f: package.explain(Q, K, V, f).program,
}


@pytest.mark.parametrize(("number", "name"), enumerate(python_states()))
def test_states_of_python(number, name, restored):
    """A changed factor is seen by each call; each state is tried in one of the ways to call."""
    function, change = python_states()[name]
    call = list(CALLS.values())[number % len(CALLS)]
    before, program = np.asarray(call(function)), meaning(function)
    change()
    assert meaning(function) != program
    assert (before != np.asarray(call(function))).any()


def test_functions_that_are_made_where_others_were():
    """An address that is taken again is another function."""
    seen = set()
    for factor in range(1, 40):
        function = eval(f"lambda s, *_: s * {factor}")  # noqa: S307
        seen.add(meaning(function)[0])
        del function
        gc.collect()
    assert len(seen) == 39


OTHER_SETTINGS = {"SCOREMOD_NEW_SIZES": "wait", "SCOREMOD_BACKENDS": "reference", "SCOREMOD_AUTOTUNE": "1", "SCOREMOD_MAX_WORKSPACE": "1000000000", "SCOREMOD_VERIFICATION": "off",
                  "SCOREMOD_THREADS": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip


def test_every_variable_that_decides_what_is_compiled_is_tried():
    assert set(OTHER_SETTINGS) == set(VARIABLES)


@pytest.mark.parametrize(
    ("name", "how"), [*((name, "flex_attention") for name in VARIABLES), *((VARIABLES[0], how) for how in ("its gradient", "vmap", "offsets"))]
)
def test_variables_of_the_environment(name, how, monkeypatch):
    """An eager call is compiled anew where a variable that decides what is compiled has changed."""
    made = []
    compiled = attention_primitives.compiled
    monkeypatch.setattr(attention_primitives, "compiled", lambda *x, **y: made.append(compiled(*x, **y).backend) or compiled(*x, **y))
    factor = 1 + zlib.crc32(f"{name} {how}".encode()) % 1000 / 64
    ragged = lambda f: flex_attention(Q[0], K[0], V[0], f, layout="THD", q_offsets=np.array([0, 1, S]))  # noqa: E731
    call = lambda: {**CALLS, "offsets": ragged}[how](lambda s, *_: s * factor)  # noqa: E731
    monkeypatch.delenv(name, raising=False)
    call()
    count = len(made)
    call()
    assert count > 0 and len(made) == count
    monkeypatch.setenv(name, OTHER_SETTINGS[name])
    call()
    assert len(made) > count
    if name == "SCOREMOD_BACKENDS":
        assert set(made[:count]) == {"cpu"} and set(made[count:]) == {"reference"}


STATE = [2.0]


def _asked(_):
    return np.float32(STATE[0])


def _python_factor(score):
    return jax.pure_callback(_asked, jax.ShapeDtypeStruct((), jnp.float32), score, vmap_method="sequential")


def test_a_comparison_of_callbacks_that_ask_python_is_not_kept():
    score_mod = lambda graph, score, tensors: graph.mul(score, Tensor(_python_factor(jnp.float32(0))))  # noqa: E731
    bprop = lambda graph, dscore, tensors: graph.mul(dscore, 2.0)  # noqa: E731
    sizes = (1, H, S, S)
    STATE[0] = 2.0
    graph_callback.check_backward(score_mod, bprop, {}, {}, {}, sizes)
    STATE[0] = 3.0
    with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
        graph_callback.check_backward(score_mod, bprop, {}, {}, {}, sizes)


@pytest.mark.parametrize("calls", [lambda f: f, jax.jit, jax.checkpoint], ids=["alone", "jit", "checkpoint"])
def test_a_comparison_of_callbacks_is_not_that_of_others_with_another_rule(calls):
    """Two callbacks that compute the same, with other derivatives."""

    def check(slope):
        function = jax.custom_jvp(lambda x: jnp.sin(x) * 3)
        function.defjvp(lambda primals, tangents: (jnp.sin(primals[0]) * 3, slope * jnp.cos(primals[0]) * tangents[0]))
        score_mod = lambda graph, score, tensors: setattr(check, "score", score.value) or Tensor(calls(function)(score.value))  # noqa: E731
        bprop = lambda graph, dscore, tensors: Tensor(dscore.value * 3 * jnp.cos(check.score))  # noqa: E731
        graph_callback.check_backward(score_mod, bprop, {}, {}, {}, (1, H, S, S))

    for _ in range(2):
        check(3.0)
        with pytest.raises(scoremod.InvalidArgumentError, match="expected the derivative of score_mod"):
            check(5.0)


def _as_library(function):
    """A function that is taken for JAX's own."""
    function.__module__ = "jax.numpy"
    return function


def test_a_verdict_on_a_rule_is_not_anothers():
    """Two functions that compute the same, with other rules."""

    def verdict(slope):
        function = jax.custom_jvp(_as_library(lambda x: jnp.sin(x) * 3))
        function.defjvp(_as_library(lambda primals, tangents: (jnp.sin(primals[0]) * 3, slope * jnp.cos(primals[0]) * tangents[0])))
        (equation,) = jax.make_jaxpr(function)(jnp.float32(1)).jaxpr.eqns
        return custom_rules.body_has_rules_derivative(equation)

    assert [verdict(3.0), verdict(5.0), verdict(3.0)] == [True, False, True]


def test_strict_promotion_is_no_error_of_functions_that_keep_to_it():
    mixed = jax.jit(lambda s, i: s * jnp.asarray(i, jnp.float32))
    forget()
    with jax.numpy_dtype_promotion("strict"):
        assert np.isfinite(flex_attention(Q, K, V, lambda s, b, h, i, j: mixed(s, i))).all()


def in_fresh_process(names):
    """The outputs of these calls' second runs, in a process that makes no other call."""
    script = "import sys, json; sys.path[:0] = sys.argv[1:3]; import conftest, test_kept_trace_questions as t; print(json.dumps(t.second_runs(sys.argv[3:], alone=True)))"
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parents[1] / "python")]
    done = subprocess.run([sys.executable, "-c", script, *paths, *names], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def second_runs(names, alone=False):
    """name -> the output's numbers after the change; alone: of the changed function alone."""
    results = {}
    for name in names:
        function, change = python_states()[name] if name in python_states() else (question_to(ONES, name), lambda: None)
        if not alone:
            flex_attention(Q, K, V, function)
        change()
        results[name] = np.asarray(flex_attention(Q, K, V, function)).tolist()
    return results


def test_a_sample_in_a_fresh_process(restored):
    print(f"SCOREMOD_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    states = sorted(set(python_states()) - {"the time"})
    for _ in range(2):
        names = [draw.choice(states), *draw.sample([name for name in attributes_of(ONES) if name not in DESTRUCTIVE], 5)]
        fresh = in_fresh_process(names)
        assert second_runs(names) == fresh


@pytest.mark.parametrize("what", ["functions by their code", "functions by themselves", "answers of arrays by dtype and shape"])
def test_a_trace_that_is_kept_would_be_seen(what, monkeypatch, restored):
    """The tests above with a fault: traces that are kept by less than what the function asked."""
    kept, jaxpr_of = {}, trace.jaxpr_of

    def keep(name, function, *rest, **options):
        cells = [x.cell_contents for x in getattr(function, "__closure__", None) or ()]
        arrays = tuple((x.dtype, x.shape) for x in cells if isinstance(x, jax.Array))
        key = {
            "functions by their code": lambda: getattr(function, "__code__", function),
            "functions by themselves": lambda: function,
            "answers of arrays by dtype and shape": lambda: (getattr(function, "__code__", function), arrays),
        }[what]()
        if (name, key) not in kept:
            kept[name, key] = jaxpr_of(name, function, *rest, **options)
        return kept[name, key]

    monkeypatch.setattr(trace, "jaxpr_of", keep)
    monkeypatch.setitem(KEPT, "planted", types.SimpleNamespace(cache_clear=kept.clear))
    with pytest.raises(AssertionError):
        test_questions_to_a_captured_array() if what == "answers of arrays by dtype and shape" else test_states_of_python(0, "a dict", None)
