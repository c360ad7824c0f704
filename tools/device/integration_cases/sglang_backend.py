"""integrations/sglang over stand-ins of SGLang's classes: steps of an engine, and a CUDA graph of decode steps."""

import sglang_engine
import torch
from integration_cases.measured import held, worse
from served_requests import answer
from sglang_engine import ForwardMode, radix_attention

DIMS = (64, 128)


def errors(layer, found):
    return [
        held([rows], *([answer(layer, request, first, end, True, kind)] for kind in (rows.dtype, torch.float64)), ["o"]) for request, first, end, rows in found
    ]


def engine_of(draw, create, tokens):
    return sglang_engine.Engine(create, draw.choose, draw.generator, device=draw.device, dtype=torch.bfloat16, tokens=tokens, dims=DIMS)


def engine(draw):
    measured = []
    with sglang_engine.plugin() as create:
        for _ in range(2 if draw.is_small else 5):
            steps = engine_of(draw, create, 40 if draw.is_small else 60)
            while not steps.is_done():
                measured += errors(steps.layer, steps.step())
    return worse(*measured)


class DecodeSteps:
    """One token of each request at a time, in tensors that stay where they are."""

    def __init__(self, draw, create):
        self.engine = engine = engine_of(draw, create, 80)
        self.backend, self.layer = engine.backend, radix_attention(engine.layer)
        self.backend.init_cuda_graph_state(8, 8)
        # Prompts are done but for the last tokens of the shortest.
        shortest = min(len(each.q) for each in engine.requests)
        self.steps = min(6, shortest)
        for each in engine.requests:
            each.done = len(each.q) - self.steps
            for buffer, rows in zip(engine.pool.buffers, (each.k, each.v)):
                slots = engine.req_to_token[engine.rows[engine.requests.index(each)], : each.done].long()
                slots = slots if not hasattr(engine.pool, "mapping") else engine.pool.mapping[slots]
                buffer[slots] = rows[: each.done]
        self.forward, tensors = self._next()
        self.tensors = [x.clone() for x in tensors]

    def _next(self):
        forward, tensors = self.engine.batch(self.engine.requests, [1] * len(self.engine.requests), False)
        forward.forward_mode = ForwardMode.DECODE
        return forward, tensors

    def renew(self):
        """The next token of each request, in the tensors of the first."""
        forward, tensors = self._next()
        for own, new in zip((*self.tensors, self.forward.out_cache_loc), (*tensors, forward.out_cache_loc)):
            own.copy_(new)
        self.backend.init_forward_metadata_out_graph(forward)

    def run(self):
        q, k, v = self.tensors
        return self.backend.forward(q.flatten(1), k, v, self.layer, self.forward, **self.engine.options)


def graph(draw):
    """Replays of one graph, with a step's lengths, slots and pages each, have the bits of calls without it."""
    draw.needs_gpu("a CUDA graph")
    measured, replays = [], 0
    with sglang_engine.plugin() as create:
        for _ in range(3):
            steps = DecodeSteps(draw, create)
            steps.backend.init_forward_metadata_out_graph(steps.forward, in_capture=True)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    steps.run()
            torch.cuda.current_stream().wait_stream(side)
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                o = steps.run()
            requests, layer = steps.engine.requests, steps.engine.layer
            for _ in range(steps.steps):
                steps.renew()
                o.fill_(torch.nan)
                recorded.replay()
                torch.cuda.synchronize()
                rows = o.view(-1, layer.heads, layer.dim)
                measured += errors(layer, [(each, each.done, each.done + 1, rows[i : i + 1]) for i, each in enumerate(requests)])
                replayed = o.clone()
                if not torch.equal(replayed, steps.run()):
                    raise AssertionError("a replay has other bits than a call without a graph")
                replays += 1
                for each in requests:
                    each.done += 1
    return worse(*measured) | {"replays": replays, "bits": "equal"}


CASES = {"steps of an engine": engine, "graph of decode steps": graph}
