"""A node test of ONNX as one call of scoremod.attention, as one of scoremod.jax.flex_attention, and as its formula in float64."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from onnx_nodes import evaluate

import scoremod
from scoremod.jax import flex_attention


@dataclasses.dataclass
class Problem:
    """softmax(bias + cap(score_mod(scale * Q K^T))) V over the keys that are kept; tensors [batch, heads, sequence, dim]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    cap: float = 0.0
    offset: int | None = None  # of the causal mask: keys up to the query's number and this
    bias: np.ndarray | None = None  # [1 or batch, 1 or heads, queries, keys]
    keep: np.ndarray | None = None  # the same
    lengths: np.ndarray | None = None  # of the keys
    graph: object = None

    @property
    def shape(self):
        return (*self.q.shape[:3], self.k.shape[2])


def problem_of(node):
    q, k, v = (node.part(name) for name in "QKV")
    attributes, inputs = node.attributes, node.inputs
    mask = inputs.get("attn_mask")
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        # Keys beyond a shorter mask are left out.
        rest = [(0, 0)] * 3 + [(0, k.shape[2] - mask.shape[-1])]
        mask = np.pad(mask, rest, constant_values=False if mask.dtype == bool else -np.inf)
    is_bias = mask is not None and mask.dtype != bool
    return Problem(
        q,
        k,
        v,
        attributes.get("scale", q.shape[-1] ** -0.5),
        attributes.get("softcap", 0.0),
        inputs["past_key"].shape[2] if "past_key" in inputs and attributes.get("is_causal") else 0 if attributes.get("is_causal") else None,
        mask if is_bias else None,
        mask if not is_bias else None,
        inputs.get("nonpad_kv_seqlen"),
        attributes.get("score_mod"),
    )


def _axes(array):
    """The axes of a mask's array that are more than one element long by name, and the array without the others."""
    kept = [i for i, size in enumerate(array.shape) if size > 1 or i > 1]
    return [("b", "h", "q_idx", "kv_idx")[i] for i in kept], array.reshape([array.shape[i] for i in kept])


class Text:
    """An expression in the text of a program."""

    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return Text(f"({self.text} + {other.text})")

    def __sub__(self, other):
        return Text(f"({self.text} - {other.text})")

    def __mul__(self, other):
        return Text(f"({self.text} * {other.text})")

    def __truediv__(self, other):
        return Text(f"({self.text} / {other.text})")

    def __ge__(self, other):
        return Text(f"({self.text} >= {other.text})")


class Texts:
    number = staticmethod(lambda x: Text(repr(x)))
    tanh = staticmethod(lambda x: Text(f"tanh({x.text})"))
    where = staticmethod(lambda c, x, y: Text(f"select({c.text}, {x.text}, {y.text})"))
    to_float = staticmethod(lambda x: Text(f"f32({x.text})"))


class Arrays:
    """The functions of numpy or jax.numpy."""

    def __init__(self, numpy, dtype):
        self.tanh, self.where, self.to_float, self.number = numpy.tanh, numpy.where, lambda x: numpy.asarray(x, dtype), lambda x: x


def by_library(p):
    """(o, lse) of scoremod.attention."""
    score, kept, operands = "score", [], {}
    if p.graph is not None:
        score = evaluate(p.graph, Text("score"), Text("q_idx"), Text("kv_idx"), p.shape, Texts).text
    if p.cap:
        score = f"{p.cap!r} * tanh({score} / {p.cap!r})"
    if p.bias is not None:
        axes, array = _axes(p.bias)
        operands["bias"] = ", ".join(axes), array
        score += " + bias"
    if p.keep is not None:
        axes, array = _axes(p.keep)
        operands["given"] = ", ".join(axes), array.astype(np.int32)
        kept.append("given != 0")
    if p.offset is not None:
        kept.append(f"kv_idx <= q_idx + {p.offset}")
    if p.lengths is not None:
        operands["lengths"] = "b", p.lengths.astype(np.int32)
        kept.append("kv_idx < lengths")
    mask = " & ".join(kept) or None
    return scoremod.attention(p.q, p.k, p.v, score_mod=score, mask_mod=mask, operands=operands, scale=p.scale, layout="BHSD", backend="cpu", return_lse=True)


def by_jax(p, backend="cpu"):
    """(o, lse) of scoremod.jax.flex_attention."""

    def read(array, *indices):
        axes, array = _axes(array)
        return jnp.asarray(array)[tuple(dict(zip(("b", "h", "q_idx", "kv_idx"), indices))[axis] for axis in axes)]

    def score_mod(score, *indices):
        if p.graph is not None:
            score = evaluate(p.graph, score, *indices[2:], p.shape, Arrays(jnp, score.dtype))
        if p.cap:
            score = p.cap * jnp.tanh(score / p.cap)
        return score if p.bias is None else score + read(p.bias, *indices)

    def mask_mod(b, h, q_idx, kv_idx):
        kept = True if p.keep is None else read(p.keep, b, h, q_idx, kv_idx)
        return kept if p.offset is None else kept & (kv_idx <= q_idx + p.offset)

    masked = mask_mod if p.keep is not None or p.offset is not None else None
    return flex_attention(
        *(jnp.asarray(x) for x in (p.q, p.k, p.v)),
        score_mod,
        masked,
        scale=p.scale,
        layout="BHSD",
        lengths=None if p.lengths is None else jnp.asarray(p.lengths, jnp.int32),
        backend=backend,
        return_lse=True,
    )


def by_formula(p):
    """(o, scores, lse) in float64: the scores that the softmax takes."""
    q, k, v = (x.astype(np.float64) for x in (p.q, p.k, p.v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = p.scale * (q @ k.swapaxes(-1, -2))
    b, h, q_idx, kv_idx = np.ogrid[tuple(map(slice, scores.shape))]
    if p.graph is not None:
        scores = evaluate(p.graph, scores, q_idx, kv_idx, scores.shape, Arrays(np, np.float64))
    if p.cap:
        scores = p.cap * np.tanh(scores / p.cap)
    if p.bias is not None:
        scores = scores + p.bias.astype(np.float64)
    if p.keep is not None:
        scores = np.where(p.keep, scores, -np.inf)
    if p.offset is not None:
        scores = np.where(kv_idx <= q_idx + p.offset, scores, -np.inf)
    if p.lengths is not None:
        scores = np.where(kv_idx < p.lengths[:, None, None, None], scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / total
    # A key that is left out has no influence, whatever its value.
    o = np.where(np.isneginf(scores)[..., None], 0.0, weights[..., None] * v[:, :, None]).sum(axis=-2)
    return o, scores, (np.log(total) + top)[..., 0]
