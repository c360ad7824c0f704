"""Requests to a server whose tokens' queries, keys and values are known beforehand, so that each step of an engine has a dense answer."""

import dataclasses

import dense_reference as dense
import torch

SCALE = 0.3


@dataclasses.dataclass
class Layer:
    heads: int
    heads_kv: int
    dim: int
    page: int
    options: dict

    @staticmethod
    def drawn(choose, random, dims=(8, 16)):
        heads_kv = choose.choice([1, 2])
        heads = heads_kv * choose.choice([1, 2])
        options = {
            "alibi_slopes": choose.choice([None, torch.rand(heads, generator=random).tolist()]),
            "sliding_window": choose.choice([None, None, 1, 3, 7]),
            "logits_soft_cap": choose.choice([None, None, 0, 2.0]),
            "sinks": choose.choice([None, torch.randn(heads, generator=random)]),
        }
        return Layer(heads, heads_kv, choose.choice(dims), choose.choice([1, 4, 16]), options)


class Request:
    """A request's tokens, how many of them are done, and its pages."""

    def __init__(self, tokens, pages, layer, random, device="cpu", dtype=torch.float32):
        self.done, self.pages = 0, pages
        heads = layer.heads, layer.heads_kv, layer.heads_kv
        self.q, self.k, self.v = (torch.randn(tokens, each, layer.dim, generator=random).to(device, dtype) for each in heads)


def answer(layer, request, first, end, causal=True, dtype=torch.float64):
    """Rows first to end of a request, of the keys up to end, by dense attention in dtype."""
    q, k, v = (each.to(dtype) for each in (request.q[first:end], request.k[:end], request.v[:end]))
    slopes, window, cap, sinks = (layer.options[name] for name in ("alibi_slopes", "sliding_window", "logits_soft_cap", "sinks"))

    def score_mod(s, b, h, i, j):
        s = cap * torch.tanh(s / cap) if cap else s
        return s if slopes is None else s - torch.tensor(slopes, device=s.device)[h] * (i + first - j).abs()

    def mask_mod(b, h, i, j):
        kept = (i + first >= j) if causal else (i >= -1) & (j >= 0)
        return kept if window is None else kept & (i + first - j < window)

    arrays = [each.transpose(0, 1)[None] for each in (q, k, v)]
    return dense.attention_and_lse(*arrays, score_mod, mask_mod, scale=SCALE, sink=None if sinks is None else sinks.to(q.device))[0][0].transpose(0, 1)
