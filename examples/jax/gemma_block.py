"""A block of Gemma 2's shape, forward and gradients, with scoremod and densely. It has grouped heads of dim 256, scores capped at 50, a sliding
window in every other layer, RMSNorm before and after, and GeGLU. (Gemma 2, https://arxiv.org/abs/2408.00118, table 1 and section 2.)

Weights are random: this shows the shape, not the model. Rotary positions are applied to query and key as usual, before the call.

usage: PYTHONPATH=python .venv/bin/python examples/jax/gemma_block.py [--seq N] [--dtype bfloat16] ...
"""

import argparse
import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dense_attention import dense_attention

from scoremod.jax import flex_attention, zoo

SOFT_CAP = 50.0


class Shape(NamedTuple):
    """Gemma 2 2B's, but for the number of layers, the sequence and its window of 4096."""

    layers: int = 2
    features: int = 2304
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 256
    hidden: int = 9216
    window: int = 128
    seq: int = 512
    batch: int = 1


def init(shape, dtype=jnp.float32, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 6 * shape.layers))

    def normal(*sizes, fan_in=None):
        return (jax.random.normal(next(keys), sizes) / np.sqrt(fan_in or sizes[0])).astype(dtype)

    f, d = shape.features, shape.head_dim
    return [
        {
            "q": normal(f, shape.heads, d),
            "kv": normal(f, 2, shape.kv_heads, d),
            "out": normal(shape.heads, d, f, fan_in=shape.heads * d),
            "gate": normal(f, shape.hidden),
            "up": normal(f, shape.hidden),
            "down": normal(shape.hidden, f),
            # RMSNorm multiplies with 1 + scale.
            "norms": {name: jnp.zeros(f, dtype) for name in ("before", "after", "before_hidden", "after_hidden")},
        }
        for _ in range(shape.layers)
    ]


def rms_norm(x, scale):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * (1 + scale)).astype(x.dtype)


def rotated(x):
    """Rotary positions of [batch, seq, heads, dim]. (Su et al. 2021, https://arxiv.org/abs/2104.09864.)"""
    half = x.shape[-1] // 2
    wide = jnp.promote_types(x.dtype, jnp.float32)
    angles = jnp.arange(x.shape[1], dtype=wide)[:, None, None] * 10000.0 ** (-jnp.arange(half, dtype=wide) / half)
    first, second = x[..., :half].astype(wide), x[..., half:].astype(wide)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def block(attention, weights, window, x):
    """One layer; window: how many keys a query sees, itself among them, or None for all before it."""
    norms = weights["norms"]
    y = rms_norm(x, norms["before"])
    q = jnp.einsum("bsf,fhd->bshd", y, weights["q"])
    k, v = jnp.einsum("bsf,fnhd->nbshd", y, weights["kv"])
    mask = zoo.causal() if window is None else zoo.causal_sliding_window(window)
    o = attention(rotated(q), rotated(k), v, zoo.soft_cap(SOFT_CAP), mask)
    x = x + rms_norm(jnp.einsum("bshd,hdf->bsf", o, weights["out"]), norms["after"])
    y = rms_norm(x, norms["before_hidden"])
    y = (jax.nn.gelu(y @ weights["gate"]) * (y @ weights["up"])) @ weights["down"]
    return x + rms_norm(y, norms["after_hidden"])


def layers(attention, shape, weights, x):
    """Local and global layers in turn."""
    for number, each in enumerate(weights):
        x = block(attention, each, shape.window if number % 2 == 0 else None, x)
    return x


def output_and_gradients(attention, shape, weights, x, d_output):
    """(output, (gradients of the weights, gradient of x))."""
    output, pull_back = jax.vjp(functools.partial(layers, attention, shape), weights, x)
    return output, pull_back(d_output.astype(output.dtype))


def random_inputs(shape, dtype=jnp.float32):
    size = (shape.batch, shape.seq, shape.features)
    return tuple(jax.random.normal(jax.random.key(seed), size).astype(dtype) for seed in (1, 2))


def relative_error(result, truth):
    """In the 2-norm, the largest of all arrays."""

    def of(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return np.linalg.norm(a - b) / np.linalg.norm(b)

    return max(jax.tree.leaves(jax.tree.map(of, result, truth)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in Shape._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--backend", help="flex_attention's; without it, the platform's own")
    arguments = parser.parse_args()
    shape = Shape(*(getattr(arguments, name) for name in Shape._fields))
    weights, (x, d_output) = init(shape, arguments.dtype), random_inputs(shape, arguments.dtype)
    truth_of = jax.jit(functools.partial(output_and_gradients, dense_attention, shape))
    truth = truth_of(*jax.tree.map(lambda a: a.astype(jnp.float32), (weights, x, d_output)))
    attentions = {"scoremod": functools.partial(flex_attention, backend=arguments.backend), "dense": dense_attention}
    for name, attention in attentions.items():
        run = jax.jit(functools.partial(output_and_gradients, attention, shape))
        jax.block_until_ready(run(weights, x, d_output))
        start = time.perf_counter()
        result = jax.block_until_ready(run(weights, x, d_output))
        seconds = time.perf_counter() - start
        print(f"{name}: {1e3 * seconds:.1f} ms forward and backward, relative error {relative_error(result, truth):.1e} from the dense block in float32")


if __name__ == "__main__":
    main()
