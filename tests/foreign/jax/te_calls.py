"""Calls of TransformerEngine's names for te_problems.py, held to the formula of te_formula.py.

Layouts of rows and of tokens go through fused_attn, and those that begin with the sequence through the module, which transposes them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import te_formula
import te_problems
from held_in_jax import held
from te_problems import BATCH, HEADS, LAYOUTS

from scoremod.jax import transformer_engine as te


def way_of(layout):
    return "DotProductAttention" if layout.startswith("sb") else "fused_attn"


def padded_lists(rows, fill, width):
    return jnp.asarray([[*row, *[fill] * (width - len(row))] for row in rows], jnp.int32)


def descriptor_of(problem):
    """The problem's sequences, as a caller of TransformerEngine says them; None where the mask has no padding."""
    if "padding" not in problem.mask:
        return None
    firsts, lengths = (tuple([[each[2 * side + part] for each in row] for row in problem.sequences] for side in (0, 1)) for part in (0, 1))
    if problem.described_by == "lengths":
        return te.SequenceDescriptor.from_seqlens(tuple(jnp.asarray(each, jnp.int32)[:, 0] for each in lengths))
    if problem.described_by == "offsets":
        most = max(map(len, problem.sequences))
        ends = [padded_lists(each, size, most + 1) for each, size in zip(firsts, problem.seq)]
        return te.SequenceDescriptor.from_seqlens_and_offsets(tuple(padded_lists(each, 0, most) for each in lengths), tuple(ends))
    ids, places = (tuple(np.zeros((BATCH, size), np.int32) for size in problem.seq) for _ in range(2))
    for b, row in enumerate(problem.sequences):
        for number, sequence in enumerate(row):
            for side in (0, 1):
                first, length = sequence[2 * side : 2 * side + 2]
                ids[side][b, first : first + length] = number + 1
                places[side][b, first : first + length] = np.arange(length)
    return te.SequenceDescriptor.from_segment_ids_and_pos(ids, places)


def packed(problem, q, k, v):
    """q, k and v in as many arrays as the layout has, [batch, sequence, ...] or [sequence, batch, ...]."""
    letters, count = LAYOUTS[problem.layout]
    if letters == "sb":
        q, k, v = (jnp.swapaxes(x, 0, 1) for x in (q, k, v))
    if count == 3:
        return (jnp.stack([q, k, v], axis=2),)
    return (q, jnp.stack([k, v], axis=2)) if count == 2 else (q, k, v)


def attend(problem, given, score_mod=None, score_mod_tensors=None):
    """The output [batch, sequence, heads, dim] of the problem's call of TransformerEngine's names."""
    qkv, descriptor, bias = packed(problem, *(given[name] for name in "qkv")), descriptor_of(problem), given.get("bias")
    if way_of(problem.layout) == "fused_attn":
        return te.fused_attn(
            qkv, bias, descriptor, None, te.AttnBiasType[problem.bias_type.upper()], problem.mask, problem.layout, problem.softmax, problem.scale,
            0.0, True, window_size=problem.window, softmax_offset=given.get("offset"),
            score_mod=score_mod, score_mod_tensors=score_mod_tensors,
        )  # fmt: skip
    module = te.DotProductAttention(
        problem.dims[0], HEADS, problem.heads_kv, attn_mask_type=problem.mask, attn_bias_type=problem.bias_type, scale_factor=problem.scale,
        qkv_layout=problem.layout.replace("sb", "bs"), softmax_type=problem.softmax, window_size=problem.window,
        score_mod=score_mod,
    )  # fmt: skip
    parameters = {"params": {"softmax_offset": given["offset"]}} if "offset" in given else {}
    return jnp.swapaxes(module.apply(parameters, *qkv, *[None] * (3 - len(qkv)), descriptor, bias, score_mod_tensors=score_mod_tensors), 0, 1)


def found_by(problem, arrays, call):
    """name -> array: the output and the gradients, as te_formula.results has them."""
    given = {name: jnp.asarray(x) for name, x in arrays.items()}
    d_o = given.pop("d_o")

    def loss(given):
        o = call(problem, given)
        return (o.astype(jnp.float32) * d_o.astype(jnp.float32)).sum(), o

    gradients, o = jax.jit(jax.grad(loss, has_aux=True))(given)
    return {"o": o, **gradients}


def rounded(problem, arrays):
    """The arrays in the problem's dtype; biases and offsets stay float32."""
    return {name: x.astype(jnp.dtype(problem.dtype)) if name in ("q", "k", "v", "d_o") else x for name, x in arrays.items()}


def check(problem, random, called_as=None, call=attend):
    """Holds the call to the formula, and returns the largest ratio. called_as: the problem that is called, for negative controls."""
    arrays = rounded(problem, te_problems.arrays(problem, random))
    dtype = jnp.dtype(problem.dtype)
    found = found_by(called_as or problem, arrays, call)
    assert all(x.dtype == (dtype if name in "oqkv" else np.float32) for name, x in found.items())
    plain, truth = (te_formula.results(problem, arrays, *dtypes) for dtypes in ((dtype, np.float32), (np.float64, np.float64)))
    return held(found, plain, truth, float(jnp.finfo(dtype).eps))
