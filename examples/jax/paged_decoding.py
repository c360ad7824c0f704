"""Decodes text greedily over a paged KV cache, and compares every token with dense attention's.

Sequences of different lengths share the cache, whose pages they get as they grow, in any order. Each layer looks back a window of keys. The
dense decoder computes the whole sequence anew for each token. The exit code is 1 where a token differs.

usage: PYTHONPATH=python .venv/bin/python examples/jax/paged_decoding.py [--tokens N] [--dtype bfloat16] ...
"""

import argparse
import functools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from char_model import normalized
from dense_attention import dense_attention

from scoremod.jax import flex_attention, zoo


class Shape(NamedTuple):
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    alphabet: int = 64
    batch: int = 3
    window: int = 24
    block_size: int = 16
    longest: int = 96  # tokens of a sequence

    @property
    def features(self):
        return self.heads * self.head_dim


def init(shape, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 4 * shape.layers))

    def normal(*sizes):
        return jax.random.normal(next(keys), sizes, jnp.float32) / sizes[0] ** 0.5

    features = shape.features
    return {
        "embedding": normal(shape.alphabet, features) * shape.alphabet**0.5,
        "head": normal(features, shape.alphabet),
        "layers": [
            {
                "q": normal(features, shape.heads, shape.head_dim) * 2,
                "k": normal(features, shape.kv_heads, shape.head_dim) * 2,
                "v": normal(features, shape.kv_heads, shape.head_dim),
                "out": normal(features, features) * 2,
            }
            for _ in range(shape.layers)
        ],
    }


def run_layers(params, x, dtype, attend):
    """The logits of x [batch, seq, features]; attend(layer's number, q, k, v) is its attention."""
    for number, layer in enumerate(params["layers"]):
        q, k, v = (jnp.einsum("bsf,fhd->bshd", normalized(x), layer[name]).astype(dtype) for name in "qkv")
        x = x + attend(number, q, k, v).astype(x.dtype).reshape(x.shape) @ layer["out"]
    return normalized(x) @ params["head"]


class Cache(NamedTuple):
    """Blocks of all sequences, and whose they are."""

    keys: jax.Array  # [layers, blocks, block size, heads, dim]
    values: jax.Array
    table: jax.Array  # [batch, blocks of a sequence], what it holds beyond a sequence's length is in no use
    lengths: jax.Array  # [batch]


def empty_cache(shape, dtype, seed=0):
    """Blocks in an order that no sequence has, full of NaN: nothing may be read that was not written."""
    of_sequence = -(-shape.longest // shape.block_size)
    blocks = shape.batch * of_sequence
    sizes = (shape.layers, blocks, shape.block_size, shape.kv_heads, shape.head_dim)
    table = np.random.default_rng(seed).permutation(blocks).reshape(shape.batch, of_sequence)
    unwritten = jnp.full(sizes, jnp.nan, dtype)
    return Cache(unwritten, unwritten, jnp.asarray(table, jnp.int32), jnp.zeros(shape.batch, jnp.int32))


def paged_step(shape, dtype, params, cache, tokens, active):
    """(the most likely next tokens, the cache with these ones), of the sequences that are active."""
    position = cache.lengths
    block = cache.table[jnp.arange(shape.batch), position // shape.block_size]
    # Inactive sequences get a page beyond the cache, so that their writes are dropped.
    block = jnp.where(active, block, cache.keys.shape[1])
    lengths = position + active
    stored = {"k": [], "v": []}

    def attend(number, q, k, v):
        keys, values = (
            cached[number].at[block, position % shape.block_size].set(new[:, 0], mode="drop") for cached, new in ((cache.keys, k), (cache.values, v))
        )
        stored["k"].append(keys)
        stored["v"].append(values)
        window = lambda b, h, q_idx, kv_idx: kv_idx + shape.window > position[b]  # noqa: E731
        return flex_attention(q, keys, values, mask_mod=window, page_table=cache.table, lengths=lengths)

    logits = run_layers(params, params["embedding"][tokens][:, None], dtype, attend)
    cache = Cache(jnp.stack(stored["k"]), jnp.stack(stored["v"]), cache.table, lengths)
    return jnp.argmax(logits[:, 0], axis=-1), cache


def dense_next(shape, dtype, params, tokens, lengths):
    """The most likely token after each of the sequences, tokens [batch, longest]."""
    mask = zoo.all_of(zoo.causal(), lambda b, h, q_idx, kv_idx: kv_idx + shape.window > q_idx)
    attend = lambda number, q, k, v: dense_attention(q, k, v, lambda score, *_: score, mask)  # noqa: E731
    logits = run_layers(params, params["embedding"][tokens], dtype, attend)
    return jnp.argmax(logits[jnp.arange(shape.batch), lengths - 1], axis=-1)


def prompts(shape, seed=0):
    """Prompts of different lengths."""
    random = np.random.default_rng(seed)
    return [random.integers(0, shape.alphabet, 5 + 11 * number % (shape.longest // 2)) for number in range(shape.batch)]


def decode_paged(shape, dtype, params, given, count):
    """`count` more tokens of each sequence, [batch, count]."""
    step = jax.jit(functools.partial(paged_step, shape, dtype))
    cache, longest = empty_cache(shape, dtype), max(len(text) for text in given)
    last = np.zeros(shape.batch, np.int32)
    for at in range(longest):
        active = np.asarray([at < len(text) for text in given])
        tokens = np.asarray([text[min(at, len(text) - 1)] for text in given], np.int32)
        following, cache = step(params, cache, tokens, active)
        last = np.where(active, np.asarray(following), last).astype(np.int32)
    found = [last]
    for _ in range(count - 1):
        following, cache = step(params, cache, found[-1], np.ones(shape.batch, bool))
        found.append(np.asarray(following, np.int32))
    return np.stack(found, axis=1)


def decode_densely(shape, dtype, params, given, count):
    """Decodes the same prompts, with all keys computed anew for each token."""
    step = jax.jit(functools.partial(dense_next, shape, dtype))
    tokens, lengths = np.zeros((shape.batch, shape.longest), np.int32), np.asarray([len(text) for text in given])
    for row, text in zip(tokens, given, strict=True):
        row[: len(text)] = text
    found = []
    for _ in range(count):
        found.append(np.asarray(step(params, tokens, lengths), np.int32))
        tokens[np.arange(shape.batch), lengths] = found[-1]
        lengths = lengths + 1
    return np.stack(found, axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in Shape._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--tokens", type=int, default=40, help="to decode of each sequence")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32", help="of query, key and value")
    arguments = parser.parse_args()
    shape = Shape(*(getattr(arguments, name) for name in Shape._fields))
    params, given, dtype = init(shape), prompts(shape), jnp.dtype(arguments.dtype)
    room = shape.longest - max(len(text) for text in given)
    if not 0 < arguments.tokens <= room:
        parser.error(f"--tokens: expected 1 to {room}, which leave no sequence more than --longest, found {arguments.tokens}")
    print(f"devices: {jax.devices()}; prompts of {[len(text) for text in given]} tokens")
    paged, dense = (decode(shape, dtype, params, given, arguments.tokens) for decode in (decode_paged, decode_densely))
    for number, (own, other) in enumerate(zip(paged, dense)):
        print(f"sequence {number}: {' '.join(map(str, own))}{'' if (own == other).all() else f'  WRONG, densely {other.tolist()}'}")
    return int((paged != dense).any())


if __name__ == "__main__":
    sys.exit(main())
