"""How compiled calls run: without Python, in several threads, exported; and the pages' code."""

import re
import threading
from pathlib import Path

import dense_reference as dense
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from scoremod.jax import flex_attention

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"
Q = dense.random_array(0, (2, 16, 2, 8))


def modifier(score, b, h, q_idx, kv_idx):
    return score * 0.5 + 0.1 * (q_idx - kv_idx)


def test_the_calls_are_custom_calls_of_xla_and_nothing_calls_python():
    compiled = jax.jit(jax.grad(lambda q: flex_attention(q, Q, Q, modifier).sum())).lower(Q).compile()
    text = compiled.as_text()
    targets = set(re.findall(r'custom_call_target="([^"]+)"', text))
    assert targets == {"scoremod_attention_forward", "scoremod_attention_backward"}
    assert "callback" not in text


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


def test_an_exported_function_runs():
    function = jax.jit(lambda q: jax.value_and_grad(lambda q: flex_attention(q, q, q, modifier).sum())(q))
    targets = ["scoremod_attention_forward", "scoremod_attention_backward"]
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in targets]
    exported = export.export(function, disabled_checks=checks)(Q)
    for got, want in zip(jax.tree.leaves(jax.jit(exported.call)(Q)), jax.tree.leaves(function(Q)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_gradients_are_the_same_bits_each_time():
    slopes = jnp.linspace(0.1, 0.3, 2)
    loss = lambda q, s: flex_attention(q, q, q, lambda x, b, h, i, j: x + s[h] * (i - j), deterministic=True).sum()  # noqa: E731
    run = jax.jit(jax.grad(loss, argnums=(0, 1)))
    first = run(Q, slopes)
    for _ in range(5):
        for a, b in zip(first, run(Q, slopes)):
            np.testing.assert_array_equal(a, b)


def test_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 (it is our own page)
    assert all(np.isfinite(x).all() for x in (names["o"], *names["gradients"]))
    assert names["attention"](*(x for x in (names["q"], names["k"], names["v"]))).shape == names["q"].shape
