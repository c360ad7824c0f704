"""Attention in one call."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremod.arguments import mapping
from scoremod.attention import Attention
from scoremod.call_spec import checked_scale
from scoremod.errors import InvalidArgumentError
from scoremod.signatures import Layout
from scoremod.tensors import dtype_name, refuse_mask
from scoremod.unknown_arguments import refuse
from scoremod.workspace import Workspace


def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    score_mod: str | None = None,
    mask_mod: str | None = None,
    *,
    operands: Mapping[str, tuple[str, NDArray[Any]]] | None = None,
    layout: Layout = "BSHD",
    scale: float | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    out: NDArray[Any] | tuple[NDArray[Any] | None, ...] | None = None,
    workspace: Workspace | None = None,
    **unknown: Any,
) -> Any:
    """Attention in one call, forward only. What it compiles is kept for equal calls, whatever their arrays and scale (scoremod.cache).

    Parameters
    ----------
    q, k, v : array
        Arrays in the order that layout names; copied when they aren't contiguous. k and v may have fewer heads.
    score_mod : str, optional
        The modified score as an expression of score, b, h, q_idx, kv_idx and operands: "30.0 * tanh(score / 30.0)". The score itself without it.
    mask_mod : str, optional
        Whether the query may look at the key: "q_idx >= kv_idx".
    operands : dict of str to (str, array), optional
        The axes and the array of each name. Axes are those among b, h, q_idx, kv_idx that the array has a dimension for: "h" or "b, kv_idx". An
        array that the expressions index, as in "bias[h, q_idx - kv_idx + 63]", has "table" for its axes. One of the expressions must read it.
    layout : {"BSHD", "SBHD", "BHSD"}
        The order of dimensions: batch, sequence, heads, dim.
    scale : float, optional
        The factor of Q K^T; 1 / sqrt(dim) without it.
    backend : str, optional
        Attention's.
    return_lse, out, workspace
        Attention.forward's.
    unknown
        Other arguments are refused. For those that other attention functions have, the error says what takes their place.

    Returns
    -------
    array or tuple of arrays
        The output, or (output, lse) with return_lse: Attention.forward's.

    Raises
    ------
    InvalidArgumentError
        For an argument that is wrong, or that this function doesn't have.
    UnsupportedError
        For a problem that no backend runs.

    Examples
    --------
        attention(q, k, v, score_mod="score - slope * f32(abs(q_idx - kv_idx))", operands={"slope": ("h", slopes)})
    """
    if unknown:
        refuse("attention", unknown, _ARGUMENTS, _ELSEWHERE)
    arrays = {name: _array(array, name) for name, array in {"q": q, "k": k, "v": v}.items()}
    given = {name: _operand(name, operand) for name, operand in mapping(operands or {}, "operands", "(axes, array)").items()}
    lines = [_declaration(name, axes, array) for name, (axes, array) in given.items()]
    lines.append(f"value = {'score' if score_mod is None else _expression(score_mod, 'score_mod')}")
    dtype = dtype_name(arrays["q"].dtype, "q")
    if dtype in ("e4m3", "e5m2"):
        raise InvalidArgumentError(
            f"q: expected an array of 16 bits or more, found {arrays['q'].dtype}: this function takes no descale factors; use scoremod.Attention"
        )
    problem = {
        **_sizes(layout, **arrays),
        "dtype": dtype,
        "layout": layout,
        "program": lines + ([] if mask_mod is None else [f"keep = {_expression(mask_mod, 'mask_mod')}"]),
        "operands": [{"name": name, "dtype": dtype_name(array.dtype, name), "shape": list(array.shape)} for name, (_, array) in given.items()],
    }
    # A program that reads the scale has it as a constant.
    if scale is not None and re.search(r"\bqk_scale\b", f"{score_mod} {mask_mod}"):
        problem["scale"] = checked_scale(scale)
    _check_read(given, score_mod, mask_mod)
    compiled = Attention(problem, backend=backend)
    operand_arrays = {name: array for name, (_, array) in given.items()}
    return compiled.forward(arrays["q"], arrays["k"], arrays["v"], operand_arrays, return_lse=return_lse, scale=scale, out=out, workspace=workspace)


_ARGUMENTS = ("q", "k", "v", "score_mod", "mask_mod", "operands", "layout", "scale", "backend", "return_lse", "out", "workspace")
# Arguments of other attention functions -> what takes their place here.
_ELSEWHERE = {
    "causal": 'give mask_mod="q_idx >= kv_idx"',
    "window_size": 'give mask_mod="(q_idx >= kv_idx) & (q_idx - kv_idx < 128)", of a window of 128',
    "segment_ids": 'give mask_mod="q_ids == kv_ids", operands={"q_ids": ("b, q_idx", segment_ids), "kv_ids": ("b, kv_idx", segment_ids)}',
    "bias": 'give score_mod="score + bias", operands={"bias": ("b, h, q_idx, kv_idx", bias)}',
    "mask": 'give mask_mod="mask", operands={"mask": ("b, h, q_idx, kv_idx", mask)}',
    "alibi_slopes": 'give score_mod="score + slope * f32(kv_idx - q_idx)", operands={"slope": ("h", alibi_slopes)}',
    "soft_cap": 'give score_mod="30.0 * tanh(score / 30.0)", of a cap of 30',
    "enable_gqa": "leave it out: k and v may always have fewer heads than q",
    "scale": "give scale=",
    "lengths": 'give mask_mod="kv_idx < length", operands={"length": ("b", lengths)}',
    "dropout": 'use scoremod.Attention of a problem with "dropout"',
    "page_table": 'use scoremod.Attention of a problem with "paged"',
    "offsets": 'use scoremod.Attention of a problem with "tokens_q"',
    "sink": 'use scoremod.Attention of a problem with "sink"',
    "backends": "give backend=, or use scoremod.Attention, which takes backends",
}


def _array(value, name):
    """The array in C order, copied if it lies otherwise."""
    if not hasattr(value, "__array__"):  # a list's dtype would be a guess
        raise InvalidArgumentError(f"{name}: expected a NumPy array, found {type(value).__name__}")
    refuse_mask(value, name)
    # A scalar stays one: ascontiguousarray() would give it a dimension.
    return np.asarray(value, order="C")


def _operand(name, value):
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], str):
        raise InvalidArgumentError(
            f"operands: expected for '{name}' a pair of axes and array, such as ('h, kv_idx', array) or ('table', array); found {type(value).__name__}"
        )
    return value[0], _array(value[1], f"operand '{name}'")


def _check_read(operands, *expressions):
    """Refuses an operand that no expression reads: a slip, since it could have no influence."""
    read = {name for expression in expressions if expression is not None for name in re.findall(r"[A-Za-z_]\w*", expression)}
    for name in operands:
        if name not in read:
            raise InvalidArgumentError(
                f"operands: expected operands that score_mod or mask_mod reads, found '{name}', which neither does; remove it, or correct its name"
            )


def _expression(value, name):
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"{name}: expected a text such as 'score * 2.0' or 'q_idx >= kv_idx', found {type(value).__name__}; write a function of Python as an "
            "expression of score, b, h, q_idx, kv_idx and operands. scoremod.torch and scoremod.jax take such functions of their tensors"
        )
    return value


def _sizes(layout, q, k, v):
    if not isinstance(layout, str) or sorted(layout) != sorted("BSHD") or any(array.ndim != 4 for array in (q, k, v)):
        raise InvalidArgumentError(
            f"expected q, k and v with 4 dimensions in a layout of the letters B, S, H and D, found shapes {q.shape}, {k.shape}, {v.shape} in layout {layout!r}"
        )
    size = {name: dict(zip(layout, array.shape)) for name, array in {"q": q, "k": k, "v": v}.items()}
    return {
        "batch": size["q"]["B"],
        "heads_q": size["q"]["H"],
        "heads_kv": size["k"]["H"],
        "seq_q": size["q"]["S"],
        "seq_kv": size["k"]["S"],
        "dim_qk": size["q"]["D"],
        "dim_v": size["v"]["D"],
    }


def _declaration(name, axes, array):
    kind = {"i32": "i32", "bool": "bool"}.get(dtype_name(array.dtype, name), "f32")
    return f"table {name}: {kind} rank {array.ndim}" if axes == "table" else f"operand {name}: {kind} [{axes}]"
