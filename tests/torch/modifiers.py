"""Score functions that the tests run: name -> (captured float tensors, modifiers(*captured) -> (score_mod, mask_mod))."""

import torch


def cases(sizes, random, device="cpu"):
    """sizes: (batch, heads, seq_q, seq_kv)."""
    batch, heads, seq_q, seq_kv = sizes

    def normal(*shape):
        return torch.randn(shape, generator=random).to(device)

    q_ids = torch.randint(0, 3, (batch, seq_q), generator=random).sort(dim=1).values.to(device)
    kv_ids = torch.randint(0, 3, (batch, seq_kv), generator=random).sort(dim=1).values.to(device)
    lengths = torch.randint(1, seq_kv + 1, (batch,), generator=random, dtype=torch.int32).to(device)
    causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731

    def alibi(slopes):
        return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx), causal

    def soft_cap(cap):
        return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap), None

    def table(bias):
        return lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx - kv_idx + seq_kv], None

    def full_bias(bias):
        return lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx], None

    def computed(x, y):
        # A product of captured tensors, of which PyTorch has the gradient; and a read of an expression.
        return lambda score, b, h, q_idx, kv_idx: score * (x * y).sum() + (x.exp() * 2)[h], None

    def documents():
        return None, lambda b, h, q_idx, kv_idx: (q_ids[b, q_idx] == kv_ids[b, kv_idx]) & (kv_idx < lengths[b])

    def window():
        return lambda score, b, h, q_idx, kv_idx: torch.where((q_idx - kv_idx).abs() <= 3, score, -float("inf")), None

    def by_other_axes(x):
        # The tensor's dimensions stand in another order than the indices.
        return lambda score, b, h, q_idx, kv_idx: score + x[kv_idx, h] * 0.5, None

    def from_the_end(x):
        return lambda score, b, h, q_idx, kv_idx: score + x[-1 - h] + x[..., 0], None

    def several(slopes, bias, cap):
        def score_mod(score, b, h, q_idx, kv_idx):
            score = score + slopes[h] * (q_idx - kv_idx).abs()
            score *= 0.5
            score = score + bias[b, kv_idx] * (h % 2)
            return torch.where(score > 0, cap * torch.tanh(score / cap), score * 0.25)

        return score_mod, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (kv_idx < 2)

    return {
        "plain": ((), lambda: (None, None)),
        "causal": ((), lambda: (None, causal)),
        "alibi": ((normal(heads) * 0.1,), alibi),
        "soft_cap": ((torch.tensor(5.0, device=device),), soft_cap),
        "table": ((normal(heads, seq_q + seq_kv),), table),
        "full_bias": ((normal(batch, heads, seq_q, seq_kv),), full_bias),
        "computed": ((normal(heads) * 0.3, normal(heads) * 0.3), computed),
        "documents": ((), documents),
        "window": ((), window),
        "by_other_axes": ((normal(seq_kv, heads),), by_other_axes),
        "from_the_end": ((normal(heads),), from_the_end),
        "several": ((normal(heads) * 0.1, normal(batch, seq_kv), torch.tensor(4.0, device=device)), several),
    }


NAMES = tuple(cases((1, 1, 1, 1), torch.Generator()))
