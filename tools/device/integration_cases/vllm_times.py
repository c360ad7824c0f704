"""Times of vLLM's code path: a mixed batch beside its two parts by themselves, and what a call costs the host.

Calls are those of a step's later layers: what the layers of a step share is made once, as a batch is warmed up."""

import torch
import vllm_engine
from integration_cases.measured import device_ms, host_us
from integration_cases.vllm_backend import NOTHING, Batch
from served_requests import Layer

HEADS, HEADS_KV, DIM, PAGE = 32, 8, 128, 16
CHUNKS, CHUNK, DECODES, CACHED = 4, 2048, 60, 8192


def with_keys(draw, backend, counts, lengths):
    """A batch whose sequences have these lengths, and random numbers as their earlier keys."""
    batch = Batch(draw, backend, Layer(HEADS, HEADS_KV, DIM, PAGE, NOTHING), counts, CACHED)
    batch.cache.normal_()
    batch.lengths.copy_(draw.integers(lengths))
    ids = torch.randperm(batch.pages, generator=draw.generator)[: batch.table.numel()]
    batch.table.copy_(ids.view(batch.table.shape))
    batch.describe()
    return batch


def mixed(draw, chunk_keys):
    """4 chunks of 2048 beside 60 decode steps at 8192 keys, in vLLM's order, and each kind by itself."""
    draw.needs_gpu("a time")
    chunks, decodes = [CHUNK] * CHUNKS, [1] * DECODES
    keys = [chunk_keys] * CHUNKS, [CACHED] * DECODES
    with vllm_engine.plugin() as backend:
        batches = {
            "together": with_keys(draw, backend, decodes + chunks, keys[1] + keys[0]),
            "chunks": with_keys(draw, backend, chunks, keys[0]),
            "decodes": with_keys(draw, backend, decodes, keys[1]),
        }
        measured = {f"{name}_ms": ms for name, ms in device_ms(**{name: batch.forward for name, batch in batches.items()}).items()}
        attend = {name: attention_of(batch) for name, batch in batches.items()}
        measured |= {f"{name}_attention_ms": ms for name, ms in device_ms(**attend).items()}
        measured |= {f"{name}_host_us": host_us(batch.forward) for name, batch in batches.items()}
        measured |= {f"{name}_attention_host_us": host_us(call) for name, call in attend.items()}
    for kind in ("ms", "attention_ms"):
        measured[f"together_by_apart_{kind}"] = round(measured[f"together_{kind}"] / (measured[f"chunks_{kind}"] + measured[f"decodes_{kind}"]), 3)
    read = 2 * DECODES * CACHED * HEADS_KV * DIM * 2
    return measured | {"decodes_gb_per_s": round(read / measured["decodes_attention_ms"] * 1e-6), "copy_gb_per_s": copy_rate()}


def attention_of(batch):
    """The call without the new keys' way into the pages."""
    batch = batch_without_writes(batch)
    return batch.forward


def batch_without_writes(batch):
    without = object.__new__(Batch)
    without.__dict__.update(batch.__dict__)
    without.k = without.v = None
    return without


def copy_rate():
    """GB/s, read and written, of the device's own copy."""
    source = torch.empty(2**30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return round(2 * source.numel() / device_ms(copy=lambda: target.copy_(source))["copy"] * 1e-6)


def sdpa_host(draw):
    """A call's cost to the host: a decode step over pages, beside PyTorch's own attention of one query."""
    draw.needs_gpu("a time")
    with vllm_engine.plugin() as backend:
        batch = with_keys(draw, backend, [1] * 8, [1000] * 8)
        q, k, v = draw.normal(8, HEADS, 1, DIM), draw.normal(8, HEADS, 1000, DIM), draw.normal(8, HEADS, 1000, DIM)
        with torch.no_grad():
            sdpa = host_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
            return {"forward_host_us": host_us(batch.forward), "attention_host_us": host_us(attention_of(batch)), "sdpa_host_us": sdpa}


CASES = {
    "mixed batch, chunks of new prompts": lambda draw: mixed(draw, CHUNK),
    "mixed batch, chunks at the end of 8192 keys": lambda draw: mixed(draw, CACHED),
    "host time of a decode step": sdpa_host,
}
