"""Trains a small character model on documents that lie one after the other without padding, and holds every gradient to a dense computation.

Attention has grouped heads, documents as offsets (THD), a learned sink for each head, a learned soft cap and dropout. The first step compares
all gradients with those of dense attention in float32 with the same dropped weights. The tolerance is twice the error of dense attention in
the arrays' own dtype. To that it adds half a unit of that dtype, and the rounding of a sum over all tokens in float32. The exit code is 1
where a gradient is off.

usage: PYTHONPATH=python .venv/bin/python examples/jax/packed_documents.py [--steps N] [--dtype bfloat16] ...
"""

import argparse
import functools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from char_model import ROOT, adam, learning_rate, normalized

from scoremod.jax import flex_attention, zoo

ROUNDING_BAND = 8  # units in the last place of float32, of each of a sum's terms


class Shape(NamedTuple):
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tokens: int = 384  # of all documents of a step
    documents: int = 12

    @property
    def features(self):
        return self.heads * self.head_dim


class Documents(NamedTuple):
    texts: list  # each an array of its characters' numbers
    alphabet: int


def read_documents():
    """The paragraphs of docs/, of many lengths."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    alphabet = {character: number for number, character in enumerate(sorted(set("".join(pages))))}
    paragraphs = [part for page in pages for part in page.split("\n\n") if 8 < len(part) < 250]
    return Documents([np.asarray([alphabet[character] for character in part], np.int32) for part in paragraphs], len(alphabet))


def batches(documents, shape, steps, seed=0):
    """(characters, next characters, offsets) of each step: some documents, cut where there is no room. The last may be empty, and tokens may be left over."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        texts, room = [], shape.tokens
        for number in random.permutation(len(documents.texts))[: shape.documents]:
            texts.append(documents.texts[number][: room + 1])
            room -= max(0, len(texts[-1]) - 1)
        # Tokens after the last document are in no sequence.
        characters, following = (np.zeros(shape.tokens, np.int32) for _ in range(2))
        offsets = np.cumsum([0, *(max(0, len(text) - 1) for text in texts)], dtype=np.int32)
        for text, first in zip(texts, offsets):
            characters[first : first + len(text) - 1], following[first : first + len(text) - 1] = text[:-1], text[1:]
        yield characters, following, offsets


def init(shape, alphabet, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 6 * shape.layers))

    def normal(*sizes):
        return jax.random.normal(next(keys), sizes, jnp.float32) * 0.7 / sizes[0] ** 0.5

    features = shape.features
    return {
        "embedding": normal(alphabet, features) * alphabet**0.5,
        "head": normal(features, alphabet),
        "layers": [
            {
                "q": normal(features, shape.heads, shape.head_dim) * 2,
                "k": normal(features, shape.kv_heads, shape.head_dim) * 2,
                "v": normal(features, shape.kv_heads, shape.head_dim),
                "out": normal(features, features),
                "up": normal(features, 4 * features),
                "down": normal(4 * features, features),
                "cap": jnp.float32(3.0),
                "sink": jnp.linspace(-1.0, 1.0, shape.heads, dtype=jnp.float32),
            }
            for _ in range(shape.layers)
        ],
    }


def packed_attention(q, k, v, offsets, cap, sink, key, rate):
    """[tokens, heads, dim], by scoremod."""
    return flex_attention(
        q,
        k,
        v,
        zoo.soft_cap(cap),
        zoo.causal(),
        layout="THD",
        q_offsets=offsets,
        sink=sink,
        dropout_rate=rate,
        dropout_key=key if rate else None,
    )


def dense_attention(q, k, v, offsets, cap, sink, key, rate):
    """The attention of packed_attention() with all scores in memory, in float32 or wider."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=wide) / q.shape[-1] ** 0.5
    scores = cap * jnp.tanh(scores / cap)
    token = jnp.arange(q.shape[0])
    document = jnp.searchsorted(offsets, token, side="right")
    inside = (token < offsets[-1])[:, None]
    kept = (document[:, None] == document) & (token <= token[:, None]) & inside
    scores = jnp.where(kept, scores, -jnp.inf)
    sinks = jnp.broadcast_to(sink.astype(wide)[:, None, None], (*scores.shape[:2], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    if rate:
        first = offsets[jnp.clip(document - 1, 0, offsets.shape[0] - 2)]
        weights = jnp.where(stays(key, rate, q.shape[1], document - 1, token - first), weights / (1 - rate), 0)
    return jnp.einsum("hqk,khd->qhd", weights.astype(v.dtype), v, preferred_element_type=wide).astype(q.dtype)


def stays(key, rate, heads, document, position):
    """Which weights dropout leaves, as docs/reference/problem.md says it, by each token's document and position in it. Philox's key are two words from
    JAX's."""
    document, position = document.astype(jnp.uint32), position.astype(jnp.uint32)
    counter = (position // 4)[None, None, :], position[None, :, None], jnp.arange(heads, dtype=jnp.uint32)[:, None, None], document[None, :, None]
    words = philox(jnp.broadcast_arrays(*counter), tuple(jax.random.bits(key, (2,), jnp.uint32)))
    word = jnp.select([position % 4 == n for n in range(4)], words)
    return word >= jnp.uint32(round(float(np.float32(rate)) * 2**32))


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405)."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        (high0, low0), (high1, low1) = _product(0xD2511F53, c0), _product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + jnp.uint32(0x9E3779B9), k1 + jnp.uint32(0xBB67AE85)
    return c0, c1, c2, c3


def _product(a, b):
    """High and low word of 64 bits, from halves of words."""
    a_low, a_high, b_low, b_high = jnp.uint32(a & 0xFFFF), jnp.uint32(a >> 16), b & jnp.uint32(0xFFFF), b >> 16
    middle = a_high * b_low + (a_low * b_low >> 16)
    other = a_low * b_high + (middle & jnp.uint32(0xFFFF))
    return a_high * b_high + (middle >> 16) + (other >> 16), jnp.uint32(a) * b


def loss_of(attention, dtype, rate, params, key, characters, following, offsets):
    """Mean cross entropy of the next character, in nats. attention gets arrays of dtype; everything else is in that of the parameters."""
    x = params["embedding"][characters]
    for number, layer in enumerate(params["layers"]):
        q, k, v = (jnp.einsum("tf,fhd->thd", normalized(x), layer[name]).astype(dtype or x.dtype) for name in "qkv")
        o = attention(q, k, v, offsets, layer["cap"], layer["sink"], jax.random.fold_in(key, number), rate)
        x = x + o.astype(x.dtype).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    log_p = jax.nn.log_softmax(normalized(x) @ params["head"])
    lost = -jnp.take_along_axis(log_p, following[:, None], axis=-1)[:, 0]
    inside = jnp.arange(lost.size) < offsets[-1]
    return jnp.where(inside, lost, 0).sum() / inside.sum()


def loss_and_gradients(attention, dtype, rate, params, key, *batch):
    return jax.jit(jax.value_and_grad(functools.partial(loss_of, attention, dtype, rate)))(params, key, *batch)


def gradient_errors(attention, dtype, rate, params, key, *batch):
    """(name, error, tolerance) of each parameter's gradient, in the maximum norm and relative to its largest element."""
    with jax.default_matmul_precision("highest"):
        own, plain, truth = (
            loss_and_gradients(each, of, rate, params, key, *batch)[1]
            for each, of in ((attention, dtype), (dense_attention, dtype), (dense_attention, "float32"))
        )
    of_sums = ROUNDING_BAND * float(jnp.finfo(jnp.float32).eps) * batch[0].size ** 0.5
    band = float(jnp.finfo(dtype or jnp.float32).eps) / 2 + of_sums
    found = []
    for (path, expected), a, b in zip(jax.tree.leaves_with_path(truth), jax.tree.leaves(own), jax.tree.leaves(plain), strict=True):
        size = float(jnp.max(jnp.abs(expected)))
        error, of_plain = (float(jnp.max(jnp.abs(x - expected))) / size for x in (a, b))
        found.append((jax.tree_util.keystr(path, simple=True, separator="."), error, 2 * of_plain + band))
    return found


def train(attention, documents, shape, steps, dtype=None, rate=0.0):
    """The loss of each step, and the parameters after the last."""
    params = init(shape, documents.alphabet)
    moments = [jax.tree.map(jnp.zeros_like, params)] * 2

    @jax.jit
    def step(params, moments, number, key, *batch):
        loss, gradients = jax.value_and_grad(functools.partial(loss_of, attention, dtype, rate))(params, key, *batch)
        return loss, *adam(params, gradients, moments, number, learning_rate(number, steps))

    losses, key = [], jax.random.key(1)
    for number, batch in enumerate(batches(documents, shape, steps), 1):
        loss, params, moments = step(params, moments, jnp.float32(number), jax.random.fold_in(key, number), *batch)
        losses.append(float(loss))
    return losses, params


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in Shape._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32", help="of query, key and value")
    arguments = parser.parse_args()
    shape = Shape(*(getattr(arguments, name) for name in Shape._fields))
    documents, dtype, rate = read_documents(), arguments.dtype, arguments.dropout
    print(f"devices: {jax.devices()}")
    batch = next(batches(documents, shape, 1))
    print(f"documents of the first step begin at {batch[-1].tolist()}")
    errors = gradient_errors(packed_attention, dtype, rate, init(shape, documents.alphabet), jax.random.key(2), *batch)
    for name, error, tolerance in errors:
        print(f"gradient of {name}: error {error:.1e}, at most {tolerance:.1e}{'' if error <= tolerance else '  WRONG'}")
    for name, attention in {"scoremod": packed_attention, "dense": dense_attention}.items():
        losses, params = train(attention, documents, shape, arguments.steps, dtype, rate)
        learned = [{each: np.round(np.asarray(layer[each]), 3).tolist() for each in ("cap", "sink")} for layer in params["layers"]]
        print(f"{name}: loss {losses[0]:.4f} at first, {np.mean(losses[-10:]):.4f} over the last 10 steps; learned: {learned}")
    return any(not error <= tolerance for _, error, tolerance in errors)


if __name__ == "__main__":
    sys.exit(main())
