"""Which calls are the same compiled attention: those that compute the same, whatever their functions are called and wherever they lie."""

import contextlib
import functools
import gc

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np

from scoremod.jax import flex_attention

B, S, H, D = 2, 17, 4, 8
Q, K, V = (dense.random_array(i, (B, S, H, D)) for i in range(3))
FACTOR = 2.0

# Both have one module and one name, which other libraries' caches look at.
FIRST, SECOND = (lambda score, b, h, q_idx, kv_idx: score + 1.0 * kv_idx), (lambda score, b, h, q_idx, kv_idx: score * 3.0)


def reads_a_global(score, b, h, q_idx, kv_idx):
    return score * FACTOR


def has_a_default(score, b, h, q_idx, kv_idx, *, factor=2.0):
    return score * factor


class Method:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, score, b, h, q_idx, kv_idx):
        return score * self.factor


def check(score_mod):
    np.testing.assert_allclose(flex_attention(Q, K, V, score_mod), dense.attention(Q, K, V, score_mod), atol=3e-5)


@contextlib.contextmanager
def compilations():
    """A list that gets an entry for each program that XLA compiles meanwhile."""
    found = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_two_lambdas_of_one_module():
    for each in (FIRST, SECOND, FIRST):
        check(each)


def test_a_changed_global_is_another_program():
    global FACTOR
    check(reads_a_global)
    FACTOR = -1.5
    try:
        check(reads_a_global)
    finally:
        FACTOR = 2.0


def test_changed_defaults_and_attributes_are_another_program():
    method = Method(0.5)
    for factor in (2.0, -0.5):
        has_a_default.__kwdefaults__["factor"] = method.factor = factor
        check(has_a_default)
        check(method)
        check(functools.partial(has_a_default, factor=factor + 1))
    has_a_default.__kwdefaults__["factor"] = 2.0


def test_redefinition_as_in_a_notebook():
    cells = ["def mod(score, b, h, q_idx, kv_idx):\n    return score * 2.0", "def mod(score, b, h, q_idx, kv_idx):\n    return -score"]
    names = {}
    for cell in cells * 2:
        exec(compile(cell, "<ipython-input-1>", "exec"), names)  # noqa: S102
        check(names["mod"])


def test_functions_of_a_loop():
    for each in [lambda score, *_, c=float(c): score * c for c in range(1, 4)] * 2:
        check(each)


def test_dropped_functions_leave_nothing_behind():
    """Functions are made, dropped and made again at the same addresses: each gets what it says."""
    addresses = []
    want = [dense.attention(Q, K, V, scale=factor / np.sqrt(D)) for factor in range(4)]
    for i in range(40):
        score_mod = lambda score, *_, f=float(i % 4): score * f  # noqa: E731
        addresses.append(id(score_mod))
        np.testing.assert_allclose(flex_attention(Q, K, V, score_mod), want[i % 4], atol=3e-5)
        del score_mod
        if i % 10 == 9:
            gc.collect()
    assert len(set(addresses)) < len(addresses), "no address came again: this shows nothing"


def test_equal_functions_are_compiled_once():
    def make(name, cap):
        names = {"jnp": jnp, "cap": cap}
        exec(f"def {name}(score, b, h, q_idx, kv_idx):\n    return cap * jnp.tanh(score / cap)", names)  # noqa: S102
        return names[name]

    loss = lambda mod, q: flex_attention(q, K, V, mod).sum()  # noqa: E731
    jax.grad(functools.partial(loss, make("first", 3.0)))(Q)
    with compilations() as found:
        jax.grad(functools.partial(loss, make("second", 3.0)))(Q)
    assert not found
    with compilations() as found:
        jax.grad(functools.partial(loss, make("third", 4.0)))(Q)
    assert found


def test_scalars_are_values():
    traced = []

    @jax.jit
    def run(q, cap):
        traced.append(1)
        return flex_attention(q, K, V, lambda score, *_: cap * jnp.tanh(score / cap), scale=1 / cap)

    for cap in (2.0, 5.0):
        want = dense.attention(Q, K, V, lambda score, *_, c=cap: c * jnp.tanh(score / c), scale=1 / cap)
        np.testing.assert_allclose(run(Q, cap), want, atol=3e-5)
    assert len(traced) == 1
    # Nor without jit is anything compiled for a new value.
    with_cap = lambda cap: flex_attention(Q, K, V, lambda score, *_: cap * jnp.tanh(score / cap))  # noqa: E731
    with_cap(jnp.float32(2))
    with compilations() as found:
        with_cap(jnp.float32(7))
    assert not found
