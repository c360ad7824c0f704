"""Dense attention in plain PyTorch, and the tolerance that results are held to.

The truth is the dense computation in float64. The tolerance follows from the error of the same computation in the call's own dtype: twice
that, plus some units in the last place of that dtype.
"""

import math

import torch

ROUNDING_BAND = 8  # units in the last place of the largest element


def attention_and_lse(q, k, v, score_mod=None, mask_mod=None, *, scale=None, sink=None):
    """(o, lse) of [batch, head, sequence, dim]. The functions are called once, with tensors of all scores. Sums are in float32, or in float64
    for such tensors; probabilities are rounded to the dtype of v. sink [heads] is one more term of each sum, without a value."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q.to(wide) @ k.to(wide).transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    indices = grid(scores.shape, q.device)
    if score_mod is not None:
        scores = score_mod(scores, *indices).to(wide).expand(scores.shape)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*indices), scores, -math.inf)
    top = scores.detach().amax(dim=-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink.to(wide)[:, None, None])
    top = torch.where(top.isneginf(), 0, top)  # a row without a kept key
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink.to(wide)[:, None, None] - top)
    empty = total == 0
    p = weights / torch.where(empty, 1, total)
    o = (p.to(v.dtype).to(wide) @ v.to(wide)).to(v.dtype)
    lse = torch.where(empty, -math.inf, torch.log(torch.where(empty, 1, total)) + top)
    return o, lse[..., 0]


def grid(shape, device):
    """b, h, q_idx and kv_idx of every score."""
    return [torch.arange(n, dtype=torch.int32, device=device).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate(shape)]


def results(attention, tensors, weights):
    """[o, lse, gradients of tensors] of attention(*tensors) -> (o, lse), for a loss that weighs every element. lse counts where it is finite."""
    tensors = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in tensors]
    o, lse = attention(*tensors)
    w_o, w_lse = (w.to(x.dtype) for w, x in zip(weights, (o, lse)))
    loss = (o * w_o).sum() + torch.where(lse.isneginf(), 0, lse * w_lse).sum()
    gradients = torch.autograd.grad(loss, tensors)
    return [o.detach(), lse.detach(), *gradients]


def widened(tensors):
    return [tensor.double() for tensor in tensors]


def assert_close(found, plain, truth, names=(), rounded=()):
    """Compares lists of tensors: the tested ones, the dense computation's in the same dtype, and the truth in float64.

    rounded: lists of the dense computation's results for inputs that are off by rounding. Where large terms cancel in a sum, they tell how
        much of its error is due to rounding them."""
    assert len(found) == len(plain) == len(truth)
    for i, (x, p, t) in enumerate(zip(found, plain, truth)):
        name = names[i] if i < len(names) else f"output {i}"
        assert x.shape == p.shape and x.dtype == p.dtype, (name, x.shape, p.shape, x.dtype, p.dtype)
        x, p, t = x.double(), p.double(), t.double()
        assert torch.equal(x.isneginf(), t.isneginf()), name
        finite = ~t.isneginf()
        # Each term of a sum is rounded, and a captured tensor's gradient is a sum over all scores.
        terms = max(1.0, truth[0].shape[2] * truth[0][..., 0].numel() / t.numel()) if i > 4 else 1.0
        ulp = torch.finfo(found[0].dtype).eps
        scale = t[finite].abs().max().item() if finite.any() else 0.0
        allowed = 2 * ((p - t)[finite].abs().max().item() if finite.any() else 0.0) + ROUNDING_BAND * ulp * terms**0.5 * scale
        if rounded and finite.any():
            allowed += 2 * max((each[i] - t)[finite].abs().max().item() for each in rounded)
        error = (x - t)[finite].abs().max().item() if finite.any() else 0.0
        assert error <= allowed, f"{name}: {error} from float64, {allowed} allowed"


NAMES = ("o", "lse", "dq", "dk", "dv")
# One draw of what rounding does to a sum may come out small by chance: in a test of the seed 260225841 it did. Four did where there were four rows,
# for one in fifty tensors of a problem that keeps one key.
_DRAWS, _DRAWN_ROWS = 4, 96


def _rounded(x, dtype, random):
    """Float64 numbers off by what rounding to the dtype may take them."""
    return x * (1 + torch.finfo(dtype).eps * torch.randn(x.shape, generator=random).to(x.device))


def check(fused, tensors, captured, modifiers, random, dense=attention_and_lse, **options):
    """Holds fused(q, k, v, score_mod, mask_mod, **options) -> (o, lse) to the dense computation: outputs, and gradients of q, k, v and of every
    captured tensor. modifiers(*captured) -> (score_mod, mask_mod). Returns the lists of fused's results, of the plain ones and of the true ones.

    dense: another function that computes what attention_and_lse does."""
    weights = drawn_weights(tensors, random)
    found = results(with_modifiers(fused, modifiers, options), [*tensors, *captured], weights)
    plain, truth, rounded = expected(found, tensors, captured, modifiers, weights, random, dense, **options)
    assert_close(found, plain, truth, NAMES, rounded)
    return found, plain, truth


def drawn_weights(tensors, random):
    """Weights of the loss for o and lse of q, k and v."""
    q, _, v = tensors
    return [torch.randn(shape, generator=random).to(q.device) for shape in ((*q.shape[:3], v.shape[3]), q.shape[:3])]


def with_modifiers(attention, modifiers, options):
    return lambda q, k, v, *captured: attention(q, k, v, *modifiers(*captured), **options)


def expected(found, tensors, captured, modifiers, weights, random, dense=attention_and_lse, **options):
    """Computes what assert_close holds found to: plain results, true ones, and those for inputs that are off by rounding."""
    attention = with_modifiers(dense, modifiers, options)
    plain = results(attention, [*tensors, *captured], weights)
    truth = results(attention, widened([*tensors, *captured]), widened(weights))
    # A fused backward computes delta, a row's sum of d_o * o, from the rounded o and in its own order. The error of delta acts as a weight of
    # the log-sum-exp. Seed 1484610543 got all of a captured tensor's error from rounding o. Seed 910000096 got it from rounding the sum,
    # whose terms cancel in rows that keep one key. It makes P anew from the rounded log-sum-exp, whose error scales a row's gradients: seed
    # 1255068848 had log-sum-exps near 80, and got most of dv's error so.
    w_o, w_lse = weights[0].to(found[0].dtype).double(), weights[1].double()
    error, terms = (w_o * (found[0].double() - truth[0])).sum(dim=-1), (w_o * truth[0]).abs().sum(dim=-1)
    factor = torch.exp(torch.where(truth[1].isneginf(), 0, truth[1] - found[1].double()))
    rounded = []
    for _ in range(max(_DRAWS, _DRAWN_ROWS // max(truth[1].numel(), 1))):
        off = [_rounded(x.double(), x.dtype, random) for x in (*tensors, *weights)]
        rounded.append(results(attention, [*off[:3], *widened(captured)], off[3:]))
        off = [x.to(like.dtype) for x, like in zip(off, (*tensors, *weights))]
        rounded.append(results(attention, [*off[:3], *captured], off[3:]))
        off_sum = error + _rounded(terms, found[1].dtype, random) - terms
        off = [w_o * factor[..., None], (w_lse - off_sum) * factor]
        rounded.append(results(attention, widened([*tensors, *captured]), off))
    return plain, truth, rounded
