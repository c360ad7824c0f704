"""How compiled calls run: made before they run, without Python, in several threads, exported, cached; and the pages' code."""

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import scoremod
from scoremod.jax import CUSTOM_CALLS, FORWARD, flex_attention, register
from scoremod.call_spec import CallSpec
from scoremod.jax.api import trace_call

ROOT = Path(__file__).resolve().parents[2]
Q = dense.random_array(0, (2, 16, 2, 8))


def modifier(score, b, h, q_idx, kv_idx):
    return score * 0.5 + 0.1 * (q_idx - kv_idx)


def test_each_platform_has_a_state_type_of_its_own():
    handlers = register()
    ids = {}
    for platform in ("cpu", "cuda"):
        type_id = getattr(handlers, f"scoremod_jax_state_type_id_{platform}")
        type_id.restype = ctypes.POINTER(ctypes.c_int64)
        ids[platform] = type_id()
    assert ids["cpu"][0] != 0  # XLA's CPU library has numbered it
    # The CUDA plugin's library has the number for another type, and must not see it.
    assert ctypes.addressof(ids["cpu"].contents) != ctypes.addressof(ids["cuda"].contents)


def test_the_calls_are_custom_calls_of_xla_and_nothing_calls_python():
    compiled = jax.jit(jax.grad(lambda q: flex_attention(q, Q, Q, modifier).sum())).lower(Q).compile()
    text = compiled.as_text()
    targets = set(re.findall(r'custom_call_target="([^"]+)"', text))
    assert targets == {"scoremod_attention_forward", "scoremod_attention_backward"}
    assert "callback" not in text


def test_a_captured_array_that_is_not_differentiated_has_no_gradient_in_the_backward():
    def loss(q, slopes, shift):
        return flex_attention(q, q, q, lambda score, b, h, i, j: score * slopes[h] + shift[h]).sum()

    arrays = Q, dense.random_array(1, (2,)), dense.random_array(2, (2,))
    found = {}
    for wanted in (0,), (0, 2):
        text = jax.jit(jax.grad(loss, argnums=wanted)).lower(*arrays).as_text()
        backward = next(line for line in text.splitlines() if "scoremod_attention_backward" in line)
        found[wanted] = [flag == "true" for flag in re.findall(r"gradient\S+ (true|false)", backward)]
    assert found == {(0,): [False, False], (0, 2): [False, True]}


def test_it_runs_while_python_does_not():
    """The interpreter's lock is held by this thread for the whole time that XLA computes in others."""
    long = dense.random_array(1, (2, 1024, 4, 32))
    run = jax.jit(lambda q: flex_attention(q, q, q, modifier)).lower(long).compile()
    run(long).block_until_ready()
    import ctypes

    pending = run(long)  # returns before it is computed
    # A call through PyDLL keeps the lock.
    ctypes.PyDLL(None).usleep(500_000)
    assert pending.is_ready()


def test_threads_share_a_compiled_call():
    run = jax.jit(lambda q: flex_attention(q, q, q, modifier))
    want, got = run(Q), {}

    def work(i):
        got[i] = [np.asarray(run(Q)) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(x, want) for results in got.values() for x in results) and len(got) == 4


def test_the_attention_is_made_when_xla_compiles():
    """A text that is no problem is an error of compiling, not of the first run."""
    register()
    call = jax.ffi.ffi_call(FORWARD, jax.ShapeDtypeStruct((1,), jnp.float32))
    lowered = jax.jit(lambda x: call(x, problem="{}", backends="cpu")).lower(jnp.ones(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="scoremod: invalid argument"):
        lowered.compile()


def compiled_by(action):
    """(problems, forwards, backwards): what the process compiled and planned for something."""
    before = scoremod.cache.statistics()["compiled"]
    action()
    after = scoremod.cache.statistics()["compiled"]
    return tuple(after[name] - before[name] for name in ("problems", "forwards", "backwards"))


def unlike_any_other(seed):
    """Arrays of a size that nothing else in this process has, so that nothing of it was compiled."""
    scoremod.cache.clear()
    return dense.random_array(seed, (1, 19, 2, 8)), dense.random_array(seed + 1, (2,))


def sloped(q, slopes, **options):
    return (flex_attention(q, q, q, lambda score, b, h, i, j: score + slopes[h] * (i - j), **options) ** 2).sum()


def test_a_gradient_compiles_one_problem_and_plans_each_direction_once():
    q, slopes = unlike_any_other(1)
    run = jax.jit(jax.value_and_grad(sloped, argnums=(0, 1)))
    assert compiled_by(lambda: run(q, slopes)) == (1, 1, 1)
    assert compiled_by(lambda: run(q, slopes)) == (0, 0, 0)
    # Another program of XLA's, the same attention.
    assert compiled_by(lambda: jax.jit(lambda *x: run(*x)[1][0] * 2)(q, slopes)) == (0, 0, 0)
    scoremod.cache.clear()
    jax.clear_caches()
    assert compiled_by(lambda: jax.grad(sloped)(q, slopes)) == (1, 1, 1)


def test_a_call_without_gradient_compiles_and_plans_the_forward_once():
    q, slopes = unlike_any_other(3)
    assert compiled_by(lambda: sloped(q, slopes)) == (1, 1, 0)
    # fallback="xla" has to know before; the lse makes another problem of it.
    assert compiled_by(lambda: jax.jit(functools.partial(sloped, fallback="xla"))(q, slopes)) == (1, 1, 0)
    assert scoremod.cache.statistics()["attentions"]["entries"] == 2


def test_a_scale_is_bound_at_the_call():
    q, slopes = unlike_any_other(5)
    results = {}

    def run():
        for scale in None, 0.25, 0.75:
            call = jax.value_and_grad(functools.partial(sloped, scale=scale), argnums=(0, 1))
            results[scale] = jax.jit(call)(q, slopes)

    assert compiled_by(run) == (1, 1, 1)
    for scale, got in results.items():

        def reference(q, slopes):
            return (dense.attention(q, q, q, lambda score, b, h, i, j: score + slopes[h] * (i - j), scale=scale) ** 2).sum()  # noqa: B023

        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(jax.value_and_grad(reference, argnums=(0, 1))(q, slopes))):
            np.testing.assert_allclose(x, y, atol=3e-5 * np.abs(y).max())


def test_scratch_is_memory_of_xlas():
    """It is a result of the call, as large as the library says."""
    problem = {"batch": 2, "heads_q": 2, "seq_q": 16, "dim_qk": 8, "program": "value = score", "stats": False}
    needed = scoremod.Attention(problem, backend="cpu").forward_workspace_bytes
    text = jax.jit(lambda q: flex_attention(q, q, q)).lower(Q).compile().as_text()
    (size,) = re.findall(r"u8\[(\d+)\][^=]* custom-call", text)
    assert needed > 0 and int(size) >= needed


def in_a_process(script, folder, *arguments, **environment):
    """The output of a script in a Python of its own. The script begins with this module's modifier and arrays."""
    prelude = """
import sys, jax, jax.numpy as jnp, numpy as np
from pathlib import Path
import scoremod.jax
q = jnp.asarray(np.load(Path(sys.argv[1]) / "q.npy"))
modifier = lambda score, b, h, q_idx, kv_idx: score * 0.5 + 0.1 * (q_idx - kv_idx)
"""
    np.save(folder / "q.npy", Q)
    paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": paths} | environment
    command = [sys.executable, "-c", prelude + script, str(folder), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def both(q):
    return jax.value_and_grad(lambda q: flex_attention(q, q, q, modifier).sum())(q)


def test_an_exported_program_runs_elsewhere(tmp_path):
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in CUSTOM_CALLS]
    exported = export.export(jax.jit(both), disabled_checks=checks)(Q)
    (tmp_path / "program").write_bytes(exported.serialize())
    script = """
scoremod.jax.register()
program = jax.export.deserialize((Path(sys.argv[1]) / "program").read_bytes())
np.savez(Path(sys.argv[1]) / "results.npz", *jax.tree.leaves(jax.jit(program.call)(q)))
"""
    in_a_process("import jax.export\n" + script, tmp_path)
    results = np.load(tmp_path / "results.npz")
    for name, want in zip(results, jax.tree.leaves(jax.jit(both)(Q)), strict=True):
        np.testing.assert_allclose(results[name], want, rtol=1e-6)


def test_programs_come_from_the_persistent_cache(tmp_path):
    """The second process compiles nothing of the first one's again, and has its numbers; another modifier is another program."""
    script = """
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rsplit("/", 1)[-1]))
if sys.argv[2] == "another":
    modifier = lambda score, b, h, q_idx, kv_idx: score * 0.5 + 0.2 * (q_idx - kv_idx)
run = jax.jit(jax.value_and_grad(lambda q: scoremod.jax.flex_attention(q, q, q, modifier).sum()))
compiled = run.lower(q)
events.clear()
value, gradient = compiled.compile()(q)
print(events.count("cache_hits"), events.count("cache_misses"), repr(float(value)), repr(float(jnp.abs(gradient).sum())))
"""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first, second, another = (in_a_process(script, tmp_path, which, **cache).split() for which in ("one", "one", "another"))
    assert first[:2] == ["0", "1"] and second[:2] == ["1", "0"] and another[:2] == ["0", "1"]
    assert first[2:] == second[2:] and first[2] != another[2]
    np.testing.assert_allclose(float(first[2]), both(Q)[0], rtol=1e-6)


def test_gradients_are_the_same_bits_each_time():
    slopes = jnp.linspace(0.1, 0.3, 2)
    loss = lambda q, s: flex_attention(q, q, q, lambda x, b, h, i, j: x + s[h] * (i - j), deterministic=True).sum()  # noqa: E731
    run = jax.jit(jax.grad(loss, argnums=(0, 1)))
    first = run(Q, slopes)
    for _ in range(5):
        for a, b in zip(first, run(Q, slopes)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_problem_says_whether_gradients_must_be_the_same_bits(deterministic):
    traced = trace_call(Q, Q, Q, None, None, CallSpec(deterministic=deterministic), None, "BSHD")
    assert json.loads(traced.problem)["deterministic"] is deterministic
