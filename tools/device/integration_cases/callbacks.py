"""fused_attention, whose score function builds on a graph, and problems whose sizes are open, against dense attention in float64."""

import itertools
import math

import dense_reference as dense
import torch
from integration_cases.measured import held, of_pages, sizes_of_errors, worse

import scoremod
from scoremod.torch import flex_attention, fused_attention

DTYPE = torch.bfloat16


class SoftCap:
    """Leaves its tanh for the backward callback."""

    def forward(self, graph, score, tensors):
        self.tanh = graph.tanh(input=graph.div(a=score, b=tensors["cap"]))
        return graph.mul(a=self.tanh, b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        return graph.mul(a=dscore, b=graph.sub(a=tensors["one"], b=graph.mul(a=self.tanh, b=self.tanh)))


def causal_bias(graph, score, tensors):
    row, column = (graph.gen_index(input=score, axis=axis) for axis in (2, 3))
    keep = graph.cmp_ge(input=row, comparison=column)
    return graph.binary_select(input0=graph.bias(input=score, bias=tensors["bias"]), input1=float("-inf"), mask=keep)


def size_of(draw, most=300):
    return draw.choose.randint(3, 40 if draw.is_small else most)


def tensors_of(draw, seq_q, seq_kv, heads=4, heads_kv=2, dim=64, batch=2):
    return [draw.normal(batch, h, s, dim, dtype=DTYPE) for h, s in ((heads, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv))]


def both(draw, attention, score_mod, mask_mod, tensors, captured):
    """attention(q, k, v, *captured) -> (o, lse), and its gradients, held to dense attention by the functions of captured tensors."""

    def modifiers(*own):
        given = score_mod(*own) or (lambda score, *_: score)
        given.captured = own
        return given, mask_mod

    run = lambda q, k, v, given, _: attention(q, k, v, *given.captured)  # noqa: E731
    return sizes_of_errors(*dense.check(run, tensors, captured, modifiers, draw.generator))


def soft_cap(draw, layout, with_backward):
    cap, limit = SoftCap(), torch.tensor(draw.choose.uniform(1, 3), device=draw.device)
    axes = [layout.index(axis) for axis in "BHSD"]

    def attention(q, k, v, limit):
        given = {"score_mod": cap.forward, "score_mod_tensors": {"cap": limit}}
        if with_backward:
            given |= {"score_mod_bprop": cap.backward, "score_mod_bprop_tensors": {"one": 1.0}}
        moved = [x.permute(["BHSD".index(axis) for axis in layout]) for x in (q, k, v)]
        o, lse = fused_attention(*moved, layout=layout, return_lse=True, **given)
        return o.permute(axes), lse

    modifier = lambda limit: lambda score, *_: limit * torch.tanh(score / limit)  # noqa: E731
    return both(draw, attention, modifier, None, tensors_of(draw, size_of(draw), size_of(draw)), [limit])


def bias(draw):
    measured = []
    for shape in ("1h1k", "hqk", "k"):
        queries, keys = size_of(draw), size_of(draw)
        sizes = {"h": 4, "q": queries, "k": keys, "1": 1}
        given = draw.normal(*(sizes[axis] for axis in shape), dtype=torch.float32)
        attention = lambda q, k, v, bias: fused_attention(q, k, v, score_mod=causal_bias, score_mod_tensors={"bias": bias}, return_lse=True)  # noqa: E731
        modifier = lambda bias: lambda score, b, h, i, j: torch.where(i >= j, score + bias, -math.inf)  # noqa: E731
        measured.append(both(draw, attention, modifier, None, tensors_of(draw, queries, keys), [given]))
    return worse(*measured)


def places(draw):
    """A bias of positions beside offsets, a page table and both."""
    lengths, most = [size_of(draw, 120) for _ in range(3)], 128
    given = draw.normal(3, 1, most, most, dtype=torch.float32)
    fused = {"score_mod": causal_bias, "score_mod_tensors": {"bias": given}}
    q, k, v = (draw.normal(sum(lengths), heads, 64, dtype=DTYPE) for heads in (4, 2, 2))
    offsets, counts = draw.integers([0, *itertools.accumulate(lengths)]), draw.integers(lengths)
    pools = [draw.normal(30, 16, 2, 64, dtype=DTYPE) for _ in "kv"]
    table = torch.randperm(30, generator=draw.generator)[:24].view(3, 8).int().to(draw.device)
    pages = [x.transpose(1, 2) for x in pools]
    measured = []
    for keys, place in (
        ((k, v), {"q_offsets": offsets}),
        (pages, {"q_offsets": offsets, "page_table": table, "lengths": counts}),
    ):
        with torch.no_grad():
            found = fused_attention(q, *keys, **fused, **place, max_length=most)
        exact = []
        for kind in (DTYPE, torch.float64):
            rows = []
            for b, (row, own) in enumerate(zip(q.split(lengths), zip(k.split(lengths), v.split(lengths)))):
                own = own if keys[0] is k else [of_pages(pool, table[b], lengths[b]) for pool in pools]
                score_mod = lambda s, _, h, i, j, b=b: torch.where(i >= j, s + given[b, 0, i, j], -math.inf)  # noqa: E731
                dense_tensors = [x.transpose(0, 1)[None].to(kind) for x in (row, *own)]
                rows.append(dense.attention_and_lse(*dense_tensors, score_mod)[0][0].transpose(0, 1))
            exact.append([torch.cat(rows)])
        measured.append(held([found], *exact, ["o"]))
    return worse(*measured)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def open_sizes(draw, run, with_captured):
    """Sizes change from call to call. "problems" says how many were compiled for all."""
    before, measured = scoremod.cache.statistics()["compiled"]["problems"], []
    slopes = draw.normal(4, dtype=torch.float32) * 0.1
    for _ in range(4 if draw.is_small else 10):
        batch, queries, keys = draw.choose.randint(1, 3), size_of(draw, 900), size_of(draw, 900)
        score_mod = lambda slopes: lambda s, b, h, i, j: s + slopes[h] * (i - j)  # noqa: E731
        captured = [slopes] if with_captured else []

        def attention(q, k, v, *own):
            return flex_attention(q, k, v, score_mod(*own) if own else None, mask_mod=causal, enable_gqa=True, return_lse=True)  # noqa: B023

        modifier = score_mod if with_captured else lambda: None
        tensors = tensors_of(draw, queries, keys, batch=batch)
        measured.append(both(draw, run(attention), modifier, causal, tensors, captured))
    return worse(*measured) | {"problems": scoremod.cache.statistics()["compiled"]["problems"] - before}


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)


CASES = {
    **{
        f"soft cap {layout}{', own backward callback' if own else ''}": lambda draw, layout=layout, own=own: soft_cap(draw, layout, own)
        for layout, own in itertools.product(("BHSD", "BSHD", "SBHD"), (False, True))
    },
    "bias with gradients": bias,
    "bias beside offsets and pages": places,
    "open sizes": lambda draw: open_sizes(draw, lambda function: function, False),
    "open sizes with captured slopes": lambda draw: open_sizes(draw, lambda function: function, True),
    "open sizes in a compiled graph": lambda draw: open_sizes(draw, compiled, False),
}
