"""integrations/vllm over stand-ins of vLLM's classes: steps of an engine, CUDA graphs with other batches at each replay, and what is refused."""

import itertools

import torch
import vllm_engine
from integration_cases.measured import NotRun, held, worse
from served_requests import Layer, Request, answer
from vllm_engine import CommonAttentionMetadata

from scoremod import InvalidArgumentError, UnsupportedError

# A model may ask for these, alone and together.
ASKED = {
    "plain": {},
    "window": {"sliding_window": 33},
    "soft cap": {"logits_soft_cap": 5.0},
    "sinks": {"sinks": True},
    "ALiBi": {"alibi_slopes": True},
    "window, soft cap, sinks and ALiBi": {"sliding_window": 33, "logits_soft_cap": 5.0, "sinks": True, "alibi_slopes": True},
}
NOTHING = dict.fromkeys(("alibi_slopes", "sliding_window", "logits_soft_cap", "sinks"))


def layer_of(draw, asked, page=16, dim=128):
    heads_kv = draw.choose.choice([1, 2, 8])
    heads = heads_kv * draw.choose.choice([1, 4])
    options = NOTHING | asked
    if options["sinks"]:
        options["sinks"] = torch.randn(heads, generator=draw.generator)
    if options["alibi_slopes"]:
        options["alibi_slopes"] = (torch.rand(heads, generator=draw.generator) * 0.1).tolist()
    return Layer(heads, heads_kv, dim, page, options)


def answers(layer, request, first, end, causal=True):
    """Dense attention in the cache's dtype, and in float64."""
    return [[answer(layer, request, first, end, causal, kind)] for kind in (request.q.dtype, torch.float64)]


def engine(draw, dtype, causal):
    """Steps of engines whose layers are drawn, until each request's tokens are done: chunks of prompts beside decode steps."""
    measured = []
    with vllm_engine.plugin() as backend:
        for _ in range(2 if draw.is_small else 5):
            steps = vllm_engine.Engine(
                backend, draw.choose, draw.generator, causal=causal, device=draw.device, dtype=dtype, tokens=40 if draw.is_small else 60, dims=(64, 128)
            )
            while not steps.is_done():
                for request, first, end, found in steps.step():
                    measured.append(held([found], *answers(steps.layer, request, first, end, causal), ["o"]))
    return worse(*measured)


class Batch:
    """A batch of one layer whose tensors stay where they are, as those of a graph must: lengths, places and pages change in them."""

    def __init__(self, draw, backend, layer, counts, most_keys):
        self.draw, self.layer, self.counts, self.tokens = draw, layer, list(counts), sum(counts)
        width = -(-most_keys // layer.page)
        self.most, self.pages = (max(counts), most_keys), len(counts) * width + 3
        shape = backend.get_kv_cache_shape(self.pages, layer.page, layer.heads_kv, layer.dim)
        self.cache = torch.full(shape, torch.nan, device=draw.device, dtype=torch.bfloat16)
        rows = [draw.normal(self.tokens, heads, layer.dim) for heads in (layer.heads, layer.heads_kv, layer.heads_kv)]
        self.q, self.k, self.v = rows
        self.output = torch.empty(self.tokens, layer.heads * layer.dim, device=draw.device, dtype=torch.bfloat16)
        self.offsets, self.lengths = draw.integers([0, *itertools.accumulate(counts)]), draw.integers(counts)
        self.table = torch.zeros(len(counts), width, dtype=torch.int32, device=draw.device)
        self.implementation = vllm_engine.implementation(layer, backend, draw.device)
        self.builder, self.requests = vllm_engine.builder(backend, draw.device), []
        self.describe()

    def describe(self, for_graph=False):
        """Describes the batch as it is now to the layer, as vLLM does in each step and before it captures a graph."""
        on_host = torch.tensor([0, *itertools.accumulate(self.counts)], dtype=torch.int32)
        common = CommonAttentionMetadata(self.offsets, on_host, self.lengths, len(self.counts), self.tokens, *self.most, self.table)
        self.metadata = self.builder.build_for_cudagraph_capture(common) if for_graph else self.builder.build(0, common)

    def renew(self, shuffles_counts, for_graph=False):
        """Other requests: lengths, pages, earlier keys in the cache and, where asked, how many queries each has."""
        draw, layer = self.draw, self.layer
        if shuffles_counts:
            draw.choose.shuffle(self.counts)
        ids = torch.randperm(self.pages, generator=draw.generator)[: self.table.numel()].view(self.table.shape)
        self.requests = [
            Request(draw.choose.randint(n, self.most[1]), own.tolist(), layer, draw.generator, draw.device, torch.bfloat16) for n, own in zip(self.counts, ids)
        ]
        self.cache.fill_(torch.nan)
        for request, count in zip(self.requests, self.counts):
            request.done = len(request.q) - count
            pages = torch.tensor(request.pages, device=draw.device)
            for place, rows in enumerate((request.k, request.v)):
                at = torch.arange(request.done, device=draw.device)
                self.cache[pages[at // layer.page], place, at % layer.page] = rows[: request.done]
        for own, name in ((self.q, "q"), (self.k, "k"), (self.v, "v")):
            own.copy_(torch.cat([getattr(each, name)[each.done :] for each in self.requests]))
        self.offsets.copy_(draw.integers([0, *itertools.accumulate(self.counts)]))
        self.lengths.copy_(draw.integers([len(each.q) for each in self.requests]))
        self.table.copy_(ids)
        self.describe(for_graph)

    def forward(self):
        self.implementation.forward(None, self.q, self.k, self.v, self.cache, self.metadata, self.output)

    def held(self):
        """The output's errors, each request by itself."""
        rows = self.output.view(self.tokens, self.layer.heads, self.layer.dim).split(self.counts)
        return [held([found], *answers(self.layer, each, each.done, len(each.q)), ["o"]) for each, found in zip(self.requests, rows)]


def graph(draw, counts, asked):
    """A batch captured in a CUDA graph, replayed with other lengths, pages and places, has the bits of a call without a graph, and a cache with the same."""
    draw.needs_gpu("a CUDA graph")
    with vllm_engine.plugin() as backend:
        batch = Batch(draw, backend, layer_of(draw, asked), counts, 700)
        batch.renew(False, for_graph=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                batch.forward()
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            batch.forward()
        measured = []
        for _ in range(4):
            batch.renew(max(counts) > 1, for_graph=True)
            cache = batch.cache.clone()
            batch.output.fill_(torch.nan)
            recorded.replay()
            torch.cuda.synchronize()
            measured += batch.held()
            replayed, written = batch.output.clone(), batch.cache.clone()
            batch.cache.copy_(cache)
            batch.output.fill_(torch.nan)
            batch.forward()
            same = {"output": torch.equal(replayed, batch.output), "cache": torch.equal(written.nan_to_num(nan=9.0), batch.cache.nan_to_num(nan=9.0))}
            if not all(same.values()):
                raise AssertionError(f"equal bits with a graph and without: {same}; largest difference {(replayed - batch.output).abs().max().item()}")
    return worse(*measured) | {"replays": 4, "bits": "equal"}


def mixed(draw, asked):
    """Chunks of prompts beside decode steps, without a graph, of other requests each time."""
    with vllm_engine.plugin() as backend:
        counts = [1, 1, 9, 1, 1, 14] if draw.is_small else [1] * 12 + [300, 1, 1, 47]
        batch, measured = Batch(draw, backend, layer_of(draw, asked, dim=64), counts, 60 if draw.is_small else 900), []
        for _ in range(2):
            batch.renew(True)
            batch.forward()
            measured += batch.held()
    return worse(*measured)


def pages_that_are_not_there(draw):
    """Beyond a sequence's keys a page table may say anything; its rows are right, and no memory is read that isn't the cache's."""
    with vllm_engine.plugin() as backend:
        batch = Batch(draw, backend, layer_of(draw, {}), [1, 5, 1, 20], 100)
        batch.renew(False)
        for row, request in zip(batch.table, batch.requests):
            row[-(-len(request.q) // batch.layer.page) :] = draw.choose.choice([-1, 2**31 - 1, batch.pages, -(2**31)])
        batch.forward()
        return worse(*batch.held())


def eight_bits(draw):
    """A KV cache of 8 bits: what the plugin says of it, and that no number comes of one that is passed all the same."""
    with vllm_engine.plugin() as backend:
        if backend.supports_kv_cache_dtype("fp8"):
            raise NotRun("the plugin supports caches of 8 bits: this case holds that it refuses them")
        reason = backend.supports_combination(128, torch.bfloat16, "fp8", 16, False, False, False, False, None)
        batch = Batch(draw, backend, layer_of(draw, {}), [1, 1], 40)
        batch.renew(False)
        batch.cache = batch.cache.nan_to_num().to(torch.float8_e4m3fn)
        try:
            batch.forward()
        except (InvalidArgumentError, UnsupportedError) as error:
            return {"says": reason, "raises": str(error)[:300]}
    raise AssertionError("a cache of 8 bits was taken, which the plugin says it refuses")


CASES = {
    **{
        f"steps of an engine, {'causal' if causal else 'bidirectional'} {str(dtype)[6:]}": lambda draw, dtype=dtype, causal=causal: engine(draw, dtype, causal)
        for causal, dtype in ((True, torch.bfloat16), (False, torch.bfloat16), (True, torch.float16), (True, torch.float32))
    },
    **{f"mixed batch, {name}": lambda draw, asked=asked: mixed(draw, asked) for name, asked in ASKED.items()},
    **{f"graph of decode steps, {name}": lambda draw, asked=asked: graph(draw, [1] * 24, asked) for name, asked in ASKED.items()},
    **{f"graph of a mixed batch, {name}": lambda draw, asked=asked: graph(draw, [1] * 8 + [200, 1, 37], asked) for name, asked in ASKED.items()},
    "pages that are not there": pages_that_are_not_there,
    "a KV cache of 8 bits": eight_bits,
}
