"""Python numbers that change from call to call: operands at their second value where arithmetic is all that is done with them, constants otherwise."""

import contextlib
import functools
import math
import random as pseudo_random
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import scoremod
from scoremod import changing_constants
from scoremod.bounded_cache import BoundedCache
from scoremod.torch import api, changing_numbers, eager_calls, flex_attention, kept_traces, open_numbers, repeated_calls
from scoremod.torch.aten_ops import RULES
from scoremod.torch.function_keys import FLOAT

B, H, S, D = 1, 2, 9, 8
factor_of_module = 1.0


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    for module, name in ((eager_calls, "_kept"), (kept_traces, "_kept"), (changing_numbers, "_seen")):
        monkeypatch.setattr(module, name, {})
    monkeypatch.setattr(changing_numbers, "_remembered", BoundedCache(2))


@pytest.fixture
def tensors(random):
    return [torch.randn(B, H, S, D, generator=random) for _ in range(3)]


def by_constants(tensors, make, value):
    """The result of a call that has seen no other value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "open_trace", lambda *_: None)
        patch.setattr(api, "opened", lambda *_: None)
        return flex_attention(*tensors, make(value))


def compiled():
    return scoremod.cache.statistics()["compiled"]["problems"]


class Layer:
    def __init__(self, value):
        self.config, self.scale = types.SimpleNamespace(factor=value, other=object()), value

    def scaled(self, score):
        return self.scale * score

    def score_mod(self, score, b, h, q_idx, kv_idx):
        return self.scaled(score) - self.config.factor * kv_idx


def of_closure(t):
    return lambda score, b, h, q_idx, kv_idx: score / t


def of_default(t):
    def score_mod(score, b, h, q_idx, kv_idx, t=t):
        return t * score

    return score_mod


def of_keyword(t):
    def score_mod(score, b, h, q_idx, kv_idx, *, t=t):
        return score - t * kv_idx

    return score_mod


def of_function(t):
    def scaled(x):
        return x * t

    return lambda score, b, h, q_idx, kv_idx: scaled(score) + scaled(kv_idx)


def of_global(t):
    global factor_of_module
    factor_of_module = t
    return lambda score, b, h, q_idx, kv_idx: score * factor_of_module


def helper(score):
    return score * factor_of_module


def of_functions_global(t):
    global factor_of_module
    factor_of_module = t
    return lambda score, b, h, q_idx, kv_idx: helper(score) * 2.0


def of_dict(t):
    held = {"t": t, "others": [t, 2.0]}
    return lambda score, b, h, q_idx, kv_idx: score * held["t"] + held["others"][0]


def of_list(t):
    held = [1, (t, None)]
    return lambda score, b, h, q_idx, kv_idx: score * sum([held[1][0], 0.5])


def of_partial(t):
    def score_mod(t, score, b, h, q_idx, kv_idx):
        return t * score

    return functools.partial(score_mod, t)


def of_attribute(t):
    layer = Layer(t)
    return lambda score, b, h, q_idx, kv_idx: score * layer.config.factor


def of_module(t):
    module = torch.nn.Linear(2, 2)
    module.t = t
    return lambda score, b, h, q_idx, kv_idx: torch.tanh(score / module.t) * module.t


OPERANDS = {
    **{
        make.__name__: make
        for make in (of_closure, of_default, of_keyword, of_function, of_global, of_functions_global, of_dict, of_list, of_partial, of_attribute, of_module)
    },
    "of a method": lambda t: Layer(t).score_mod,
    "an inverse": lambda t: lambda score, b, h, q_idx, kv_idx: (1 / t) * score,
    "arithmetic": lambda t: lambda score, b, h, q_idx, kv_idx: score * (2.0 * -t + 1) - (3 - t) / (t + 0.25),
    "under score": lambda t: lambda score, b, h, q_idx, kv_idx: t / (score.abs() + 1),
    "of an index": lambda t: lambda score, b, h, q_idx, kv_idx: score - t * (q_idx - kv_idx),
    "of torch": lambda t: lambda score, b, h, q_idx, kv_idx: torch.add(torch.mul(score, t), t),
}


@pytest.mark.parametrize("kind", OPERANDS)
def test_a_number_of_arithmetic_compiles_twice(kind, tensors, traces):
    before, found = compiled(), []
    for step in range(50):
        value = 0.5 + step / 50
        found.append(flex_attention(*tensors, OPERANDS[kind](value)))
    assert compiled() - before <= 2 and len(traces) == 3  # the first value, and the second in both ways
    for step in (0, 1, 2, 17, 49):
        expected = by_constants(tensors, OPERANDS[kind], 0.5 + step / 50)
        torch.testing.assert_close(found[step], expected, rtol=1e-5, atol=1e-5)
    assert not torch.equal(found[3], found[4])


def read_back(t):
    try:
        return 2.0 if t > 1 else 0.5
    except Exception:
        return 0.0


CONSTANTS = {
    "range": lambda t: lambda score, b, h, q_idx, kv_idx: score + sum([i for i in range(int(4 * t))]),  # noqa: C416
    "if": lambda t: lambda score, b, h, q_idx, kv_idx: score * 2 if t > 1 else score,
    "truth": lambda t: lambda score, b, h, q_idx, kv_idx: score * (1.0 if t - 1 else 3.0),
    "caught": lambda t: lambda score, b, h, q_idx, kv_idx: score * read_back(t),
    "math": lambda t: lambda score, b, h, q_idx, kv_idx: score * math.sqrt(t),
    "text": lambda t: lambda score, b, h, q_idx, kv_idx: score * len(f"{t}"),
    "length": lambda t: lambda score, b, h, q_idx, kv_idx: score * len(str(t)),
    "tensor": lambda t: lambda score, b, h, q_idx, kv_idx: score * torch.tensor(t),
    "float": lambda t: lambda score, b, h, q_idx, kv_idx: score * float(t),
    "round": lambda t: lambda score, b, h, q_idx, kv_idx: score * round(t, 1),
    "max": lambda t: lambda score, b, h, q_idx, kv_idx: score * max(t, 1.0),
    "key": lambda t: lambda score, b, h, q_idx, kv_idx: score * {1.25: 2.0}.get(t, 0.5),
    "contained": lambda t: lambda score, b, h, q_idx, kv_idx: score * (2.0 if t in (1.25, 1.5) else 0.5),
    "power": lambda t: lambda score, b, h, q_idx, kv_idx: score.abs() ** t,
    "base": lambda t: lambda score, b, h, q_idx, kv_idx: t**score,
    "kind": lambda t: lambda score, b, h, q_idx, kv_idx: score * (t if isinstance(t, float) else 7.0),
    "type": lambda t: lambda score, b, h, q_idx, kv_idx: score * (t if type(t) is float else 7.0),
    "class": lambda t: lambda score, b, h, q_idx, kv_idx: score * (t if t.__class__ is float else 7.0),
    "whole": lambda t: lambda score, b, h, q_idx, kv_idx: score * (2.0 if t.is_integer() else t),
    "hex": lambda t: lambda score, b, h, q_idx, kv_idx: score * len(t.hex()),
    "clamped": lambda t: lambda score, b, h, q_idx, kv_idx: torch.clamp(score, -t, t),
    "compared": lambda t: lambda score, b, h, q_idx, kv_idx: torch.where(score > t, score, 0.0),
    "half": lambda t: lambda score, b, h, q_idx, kv_idx: score * (t * torch.tensor(0.3, dtype=torch.float16)),
    "floor": lambda t: lambda score, b, h, q_idx, kv_idx: score * (t // 0.5),
    "alpha": lambda t: lambda score, b, h, q_idx, kv_idx: torch.add(score, kv_idx, alpha=t),
    "integer": lambda t: (lambda n: lambda score, b, h, q_idx, kv_idx: score * n)(int(8 * t)),
    "flag": lambda t: (lambda flag: lambda score, b, h, q_idx, kv_idx: score if flag else -score)(t > 1),
    "in place": lambda t: lambda score, b, h, q_idx, kv_idx: score.clone().mul_(t),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_number_that_decides_more_stays_a_constant(kind, tensors):
    for value in (1.0, 1.25, 0.5, 2.0, 1.0, 0.75, 1.5, 1.1):
        torch.testing.assert_close(flex_attention(*tensors, CONSTANTS[kind](value)), by_constants(tensors, CONSTANTS[kind], value), rtol=1e-6, atol=1e-6)
    assert all(changes.open == frozenset() for changes in changing_numbers._seen.values())


def test_a_number_that_decides_more_than_another_stays_a_constant(tensors, traces):
    def make(t):
        u = t * 2
        return lambda score, b, h, q_idx, kv_idx: score * t if u > 2 else score - t * kv_idx

    for value in (0.5, 0.75, 1.5, 1.25, 1.5):
        torch.testing.assert_close(flex_attention(*tensors, make(value)), by_constants(tensors, make, value), rtol=1e-6, atol=1e-6)
    (changes,) = changing_numbers._seen.values()
    assert len(changes.open) == len(changes.fixed) == 1 and len(traces) > 3


def test_numbers_that_change_one_after_the_other(tensors):
    def make(t, u, w):
        return lambda score, b, h, q_idx, kv_idx: score * t + u * kv_idx - w

    before = compiled()
    steps = [
        (1.0, 2.0, 3.0),
        (1.5, 2.0, 3.0),
        (1.25, 2.0, 3.0),
        (1.25, 0.5, 3.0),
        (1.0, 0.25, 3.0),
        (1.0, 2.0, 3.0),
        (0.5, 0.5, 1.0),
        (0.25, 4.0, 2.0),
        (3.0, 1.0, 5.0),
    ]
    for step in steps:
        found = flex_attention(*tensors, make(*step))
        torch.testing.assert_close(found, by_constants(tensors, lambda step: make(*step), step), rtol=1e-5, atol=1e-5)
    (changes,) = changing_numbers._seen.values()
    assert len(changes.open) == 3 and compiled() - before <= 4 + len(steps)  # of which those by constants are some


def test_deterministic_calls_have_the_same_bits_whichever_call_it_is(random):
    """A derivative multiplies constants out beforehand: a number that was a constant at one call and an operand at another had two gradients."""
    tensors = [torch.randn(B, H, 40, D, generator=random, requires_grad=True) for _ in range(3)]
    slopes = torch.rand(H, generator=random, requires_grad=True)
    weights, before, seen = torch.randn(B, H, 40, D, generator=random), compiled(), {}

    def make(t, u):
        return lambda score, b, h, q_idx, kv_idx: score / u + slopes[h] * (kv_idx - q_idx) * t

    for numbers in [(0.3, 0.7), (0.37, 0.7), (0.3, 0.77), (0.37, 0.77)] * 2 + [(0.37, 0.7), (0.3, 0.7)]:
        for kept in (eager_calls._kept, kept_traces._kept, repeated_calls._sites):
            kept.clear()
        o = flex_attention(*tensors, make(*numbers), deterministic=True)
        found = torch.autograd.grad((o * weights).sum(), [*tensors, slopes])
        for each, first in zip(found, seen.setdefault(numbers, found)):
            assert torch.equal(each, first), numbers
    (changes,) = changing_numbers._remembered.values()
    assert len(changes.open) == 2 and compiled() - before == 2


def test_deterministic_calls_forget_no_first_number():
    keys = [[(FLOAT, value.hex(), name) for value in (0.5, 0.75)] for name in ("one", "another", "one too many")]
    for first, second in keys * 2:
        assert changing_numbers.opened(first, True) is None
        assert (changing_numbers.opened(second, True) is None) == (first[2] == "one too many")


def test_threads_have_the_same_first_numbers(monkeypatch):
    """Another thread's first call comes in between where one looks for the first numbers."""
    waits, made = threading.Barrier(2, timeout=20), []

    class Changes(changing_numbers._Changes):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)
            with contextlib.suppress(threading.BrokenBarrierError):
                waits.wait(0.2)

    monkeypatch.setattr(changing_numbers, "_Changes", Changes)
    keys = [(FLOAT, value.hex()) for value in (0.5, 0.75)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda key: changing_numbers.opened(key, True), keys))
    assert len(made) == 1 and found.count(None) == 1


def test_other_sizes_and_gradients_of_a_changing_number(random):
    for step in range(1, 12):
        t, length = 0.5 + step / 10, 3 + step
        slopes = torch.randn(H, generator=random, requires_grad=True)
        tensors = [torch.randn(B, H, length, D, generator=random, requires_grad=True) for _ in range(3)]

        def make(t, slopes=slopes):
            return lambda score, b, h, q_idx, kv_idx: (score + slopes[h] * (kv_idx - q_idx)) / t

        found = torch.autograd.grad(flex_attention(*tensors, make(t)).square().sum(), [*tensors, slopes])
        expected = torch.autograd.grad(by_constants(tensors, make, t).square().sum(), [*tensors, slopes])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_division_by_a_number_that_becomes_0_raises_as_it_would(tensors):
    for value in (1.0, 0.5, 0.25):
        flex_attention(*tensors, OPERANDS["an inverse"](value))
    with pytest.raises(ZeroDivisionError):
        flex_attention(*tensors, OPERANDS["an inverse"](0.0))


AS_CONSTANTS = {
    "a comparison": lambda t: lambda score, b, h, q_idx, kv_idx: torch.where(q_idx > kv_idx, score, t),
    "a bound": lambda t: lambda score, b, h, q_idx, kv_idx: score.clamp(max=t) + 0.0 * kv_idx,
    "a window": lambda t: lambda score, b, h, q_idx, kv_idx: torch.where(q_idx - kv_idx < int(t * 1000), score, -math.inf),
}


@pytest.mark.parametrize("make", AS_CONSTANTS.values(), ids=AS_CONSTANTS)
def test_numbers_that_compile_at_each_value_are_told_of_once(tensors, make, monkeypatch):
    monkeypatch.setattr(changing_constants, "_seen", {})
    values = [0.01 * (number + 3) for number in range(changing_constants.MOST_PROGRAMS + 4)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for value in values[: changing_constants.MOST_PROGRAMS - 1] * 2:
            flex_attention(*tensors, make(value))
        assert told == []
        for value in values:
            flex_attention(*tensors, make(value))
    (warning,) = told
    assert "torch.tensor(x)" in str(warning.message) and warning.filename == __file__


def test_a_captured_tensor_of_one_number_compiles_nothing(tensors, monkeypatch):
    """The way that the warning names."""
    monkeypatch.setattr(changing_constants, "_seen", {})
    make = AS_CONSTANTS["a comparison"]
    flex_attention(*tensors, make(torch.tensor(0.5)))
    before = compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(changing_constants.MOST_PROGRAMS + 4):
            found = flex_attention(*tensors, make(torch.tensor(0.01 * number)))
    assert compiled() == before
    torch.testing.assert_close(found, by_constants(tensors, make, 0.01 * number))


def test_what_a_function_reads_is_left_as_it_is(tensors):
    layer = Layer(1.0)
    for value in (1.0, 0.5, 0.25):
        layer.scale = layer.config.factor = value
        config = layer.config
        flex_attention(*tensors, layer.score_mod)
        assert type(layer.scale) is float and layer.config is config and type(config.factor) is float


TERMS = ("score * {t}", "{t} * score", "score / {t}", "score + {t} * kv_idx", "{t} - score", "torch.tanh(score * {t})", "slopes[h] * {t}", "score.clamp(max={t})", "score ** 2 * {t}",
         "torch.where(score > {t}, score, 1.0)", "(q_idx * {t}).floor()", "({t} if {t} > 1 else score)", "score * math.exp(-{t})", "torch.where(kv_idx < 4, {t} * score, score)")  # fmt: skip
NUMBERS = ("t", "u", "(t + u)", "(1 / t)", "-u", "(t * u - 0.25)", "(t if u > 1 else u)", "math.sqrt(t)", "2.0")


def differences(seed, tensors):
    """The differences between results of random functions of two changing numbers, and results with the numbers as constants."""
    choose = pseudo_random.Random(seed)
    expression = " + ".join(choose.choice(TERMS).format(t=choose.choice(NUMBERS)) for _ in range(choose.randint(1, 3)))
    namespace = {"torch": torch, "math": math}
    exec(f"def make(t, u, slopes):\n    return lambda score, b, h, q_idx, kv_idx: {expression}\n", namespace)
    slopes, wrong = torch.linspace(0.1, 0.9, H), []
    for _ in range(6):
        values = choose.choice([0.5, 0.75, 1.25, 2.0]), choose.choice([0.5, 1.5, 2.5])
        found = flex_attention(*tensors, namespace["make"](*values, slopes))
        expected = by_constants(tensors, lambda values: namespace["make"](*values, slopes), values)
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
            wrong.append((expression, values))
    return wrong


def test_random_functions_of_changing_numbers(tensors, seed):
    for number in range(60):
        assert differences(seed * 1000 + number, tensors) == []
    assert any(changes.open for changes in changing_numbers._seen.values())


def test_a_number_that_is_read_unseen_would_be_found(tensors, seed, monkeypatch):
    monkeypatch.setattr(
        open_numbers.OpenNumber, "__gt__", lambda self, other: self.value > other if type(other) is float or type(other) is int else NotImplemented
    )
    monkeypatch.setattr(open_numbers.OpenNumber, "__float__", lambda self: self.value)
    assert any(differences(seed * 1000 + number, tensors) for number in range(60))


def test_a_program_that_is_not_the_plain_one_is_not_used(tensors, monkeypatch):
    """A number stays a constant where a rule would make another program of an operand than of a constant."""
    multiply = RULES["mul"]

    def other(operands, arguments, options):
        return multiply(operands, arguments if isinstance(arguments[1], float) else (*arguments[:1], 2.0), options)

    monkeypatch.setitem(RULES, "mul", other)
    for value in (0.5, 1.5, 2.5):
        found = flex_attention(*tensors, lambda score, b, h, q_idx, kv_idx: score * value)  # noqa: B023
        expected = flex_attention(*tensors, scale=value / D**0.5)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
