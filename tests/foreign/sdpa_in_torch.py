"""A problem of sdpa_problems.py as a call of scoremod.torch.flex_attention, and held to dense attention in float64 with its gradients.

Wants tests/torch and tests/foreign/torch on the path, for dense_reference and dense_slices.
"""

import dense_reference as dense
import torch
from dense_slices import attention_by_slices

from scoremod.torch import flex_attention


class Laid(torch.autograd.Function):
    """A copy of the tensor with other strides, through which gradients pass."""

    @staticmethod
    def forward(ctx, x, strides):
        # Strides of extents of 1 need no memory.
        elements = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides))
        laid = x.new_full((elements,), float("nan")).as_strided(x.shape, strides)  # a gap that is read shows
        return laid.copy_(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def functions(problem, device):
    """(score_mod, mask_mod): the band along the diagonal; lengths are left out."""
    if problem.left is problem.right is None:
        return None, None
    shifts = [k - q if problem.bottom_right else 0 for q, k in zip(problem.lengths_q, problem.lengths_kv)]
    shift = torch.tensor(shifts, dtype=torch.int32, device=device)
    left, right = problem.left, problem.right

    def band(b, h, q_idx, kv_idx):
        place = q_idx + shift[b]
        kept = kv_idx <= place + right
        return kept if left is None else kept & (kv_idx > place - left)

    return None, band


def call(problem, device, attention=flex_attention):
    """fused(q, k, v, score_mod, mask_mod, sink=) -> (o, lse) of padded tensors, by the problem's kind and strides. attention: takes a call in place of
    flex_attention."""
    lengths = [torch.tensor(each, dtype=torch.int32, device=device) for each in (problem.lengths_q, problem.lengths_kv)]

    def fused(q, k, v, score_mod, mask_mod, sink):
        options = {"mask_mod": mask_mod, "return_lse": True, "enable_gqa": True, "sink": sink}
        if problem.kind != "varlen":
            laid = [Laid.apply(x, strides) for x, strides in zip((q, k, v), problem.strides)]
            return attention(*laid, score_mod, lengths=None if problem.kind == "full" else tuple(lengths), **options)
        # Tokens of all sequences one after the other, and back.
        tokens = [torch.arange(x.shape[2], device=device) < each[:, None] for x, each in ((q, lengths[0]), (k, lengths[1]))]
        packed = [x.transpose(1, 2)[tokens[min(i, 1)]] for i, x in enumerate((q, k, v))]
        offsets = [torch.nn.functional.pad(each.cumsum(0, dtype=torch.int32), (1, 0)) for each in lengths]
        o, lse = attention(*packed, score_mod, q_offsets=offsets[0], kv_offsets=offsets[1], **options)
        padded_o = o.new_zeros((*q.shape[:1], *q.shape[2:0:-1], v.shape[3])).index_put((tokens[0],), o)
        rest = lse.new_full((q.shape[0], q.shape[2], q.shape[1]), -float("inf")) if sink is None else sink.expand(q.shape[0], q.shape[2], -1)
        return padded_o.transpose(1, 2), rest.to(lse.dtype).index_put((tokens[0],), lse).transpose(1, 2)

    return fused


# As many scores need little memory, and are computed at once.
FEW_SCORES = 2**22


def inputs(problem, device):
    """(random numbers' generator, q, k and v, the sink or None) of a problem."""
    random = torch.Generator().manual_seed(problem.seed)
    dtype = getattr(torch, problem.dtype)
    tensors = [torch.randn(shape, generator=random).to(dtype).to(device) for shape in problem.shapes]
    return random, tensors, torch.randn(problem.heads_q, generator=random).to(device) if problem.sink else None


def held(problem, device="cpu", masked_as=None):
    """Holds the call to dense attention, outputs and gradients; returns the lists of the call's results, of plain ones and of true ones.

    masked_as: a problem whose mask the call has in place of the right one, for negative controls.
    """
    random, tensors, sink = inputs(problem, device)
    fused = call(problem, device)
    lengths = [torch.tensor(each, device=device) for each in (problem.lengths_q, problem.lengths_kv)]

    def functions_in_dense():
        score_mod, band = functions(problem, device)

        def masked(b, h, q_idx, kv_idx):
            within = (q_idx < lengths[0][b]) & (kv_idx < lengths[1][b])
            return within if band is None else within & band(b, h, q_idx, kv_idx)

        return score_mod, masked

    def attention(q, k, v, score_mod, mask_mod, sink):
        return fused(q, k, v, *functions(masked_as or problem, device), sink)

    is_large = problem.batch * problem.heads_q * problem.seq_q * problem.seq_kv > FEW_SCORES
    by = attention_by_slices if is_large else dense.attention_and_lse
    return dense.check(attention, tensors, (), functions_in_dense, random, dense=by, sink=sink)
