"""Dense attention and its gradients in NumPy, by the formula of the softmax, for TransformerEngine's problems (te_problems.py)."""

import numpy as np


def results(problem, arrays, dtype, wide):
    """name -> array: o, and the gradients of q, k, v and of what else the problem has.

    wide: the dtype of sums. dtype: the one that weights, their gradients and results are rounded to.
    """
    rounded = lambda x: x.astype(dtype).astype(wide)  # noqa: E731
    arrays = {name: x.astype(wide) for name, x in arrays.items()}
    q, k, v, d_o = (arrays[name].swapaxes(1, 2) for name in ("q", "k", "v", "d_o"))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat(group, axis=1) for x in (k, v))
    factor = wide(problem.factor)
    p, p_offset = _weights(problem, factor * (q @ k.swapaxes(2, 3)), arrays, wide)
    o = rounded(rounded(p) @ v)
    d_p = d_o @ v.swapaxes(2, 3)
    delta = (p * d_p).sum(axis=-1, keepdims=True)
    d_s = p * (d_p - delta)
    given = {
        "o": o,
        "q": factor * (rounded(d_s) @ k),
        "k": _of_groups(factor * (rounded(d_s).swapaxes(2, 3) @ q), group),
        "v": _of_groups(rounded(p).swapaxes(2, 3) @ d_o, group),
    }
    given = {name: x.swapaxes(1, 2).astype(dtype) for name, x in given.items()}
    if problem.bias:
        shared = tuple(axis for axis, size in enumerate(problem.bias_shape) if size == 1)
        given["bias"] = _bias_factor(problem, wide) * d_s.sum(axis=shared, keepdims=True)
    if problem.softmax == "learnable":
        given["offset"] = -(p_offset * delta).sum(axis=(0, 2), keepdims=True)
    return given


def _bias_factor(problem, wide):
    return wide(problem.factor if problem.bias_type == "pre_scale_bias" else 1)


def _weights(problem, scores, arrays, wide):
    """The weights of the keys and that of the softmax's offset. A query without any key has none."""
    if problem.bias:
        scores = scores + _bias_factor(problem, wide) * arrays["bias"]
    scores = np.where(problem.kept(), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    offset = {"vanilla": -np.inf, "off_by_one": 0, "learnable": arrays.get("offset")}[problem.softmax]
    top = np.maximum(top, offset)
    top = np.where(np.isneginf(top), wide(0), top)
    weights, beside = np.exp(scores - top), np.exp(offset - top)
    total = weights.sum(axis=-1, keepdims=True) + beside
    total = np.where(total == 0, wide(1), total)
    return weights / total, beside / total


def _of_groups(x, group):
    """Sums over the query heads of each KV head."""
    return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2)
