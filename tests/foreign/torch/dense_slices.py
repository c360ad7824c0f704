"""Dense attention of large problems, one batch and KV head at a time: only one slice's scores are in memory, also in the backward."""

import torch
from dense_reference import attention_and_lse
from torch.utils.checkpoint import checkpoint


def attention_by_slices(q, k, v, score_mod=None, mask_mod=None, *, sink=None):
    """As attention_and_lse. The functions see the indices of the whole problem."""
    group = q.shape[1] // k.shape[1]
    o, lse = [], []
    for b in range(q.shape[0]):
        rows = []
        for h in range(k.shape[1]):
            heads = slice(h * group, (h + 1) * group)
            inputs = q[b : b + 1, heads], k[b : b + 1, h : h + 1], v[b : b + 1, h : h + 1]
            functions = _moved(score_mod, b, h * group, of_score=True), _moved(mask_mod, b, h * group, of_score=False)
            of_heads = None if sink is None else sink[heads]
            rows.append(checkpoint(attention_and_lse, *inputs, *functions, sink=of_heads, use_reentrant=False))
        o.append(torch.cat([row[0] for row in rows], dim=1))
        lse.append(torch.cat([row[1] for row in rows], dim=1))
    return torch.cat(o), torch.cat(lse)


def _moved(function, batch, head, of_score):
    """The function, given indices of a slice."""
    if function is None:
        return None
    if of_score:
        return lambda score, b, h, q_idx, kv_idx: function(score, b + batch, h + head, q_idx, kv_idx)
    return lambda b, h, q_idx, kv_idx: function(b + batch, h + head, q_idx, kv_idx)
