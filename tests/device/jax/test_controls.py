"""Wrong attentions that must be noticed on a GPU, and layouts and groups of heads that must be right."""

import functools

import dense_reference as dense
import jax
import jax.numpy as jnp
import pytest
import test_cuda
from cuda_devices import cuda_devices
from faulty_attention import fused, with_identity_backward, without_score_mod

from scoremod.jax import zoo

pytestmark = pytest.mark.skipif(not cuda_devices(), reason="no NVIDIA GPU")

MODS = zoo.soft_cap(3.0), zoo.causal()


def results_of(attention, *mods, **options):
    """(o, lse, gradients of q, k and v)."""

    def compute(q, k, v):
        def loss(*x):
            o, lse = attention(*x, *mods, **options)
            return (o.astype(jnp.promote_types(o.dtype, jnp.float32)) ** 2).sum(), (o, lse)

        gradients, (o, lse) = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return o, lse, gradients

    return compute


def check(attention, arrays, **options):
    plain = results_of(dense.attention_and_lse, *MODS, **options)
    dense.assert_close(jax.jit(results_of(attention, *MODS, **options))(*arrays), jax.jit(plain)(*arrays), dense.in_float64(plain, *arrays))


@pytest.mark.parametrize("heads_kv", [1, 2, test_cuda.H])
def test_groups_of_heads(heads_kv):
    check(fused, test_cuda.qkv(heads_kv=heads_kv))


@pytest.mark.parametrize("layout", ["SBHD", "BHSD"])
def test_layouts(layout):
    order = ["BSHD".index(letter) for letter in layout]
    check(fused, [jnp.transpose(x, order) for x in test_cuda.qkv()], layout=layout)


def _with_zero_output(q, k, v, score_mod, mask_mod):
    o, lse = fused(q, k, v, score_mod, mask_mod)
    return o - jax.lax.stop_gradient(o), lse


def _with_zero_lse(q, k, v, score_mod, mask_mod):
    o, lse = fused(q, k, v, score_mod, mask_mod)
    return o, jnp.zeros_like(lse)


def _with_zero_gradient(which, q, k, v, score_mod, mask_mod):
    tensors = [jax.lax.stop_gradient(x) if i == which else x for i, x in enumerate((q, k, v))]
    return fused(*tensors, score_mod, mask_mod)


@pytest.mark.parametrize(
    "wrong",
    [
        without_score_mod,
        with_identity_backward,
        _with_zero_output,
        _with_zero_lse,
        *(functools.partial(_with_zero_gradient, i) for i in range(3)),
    ],
    ids=["no modifier", "identity backward", "zero output", "zero lse", "zero dq", "zero dk", "zero dv"],
)
def test_a_wrong_attention_fails(wrong):
    # Scores that the cap bends.
    q, k, v = test_cuda.qkv()
    with pytest.raises(AssertionError):
        check(wrong, [4 * q, k, v])
