"""The loops of docs/guide/serving.md on this device: each call of the page is computed again in float64."""

import sys

import dense_reference as dense
import page_python
import torch
from integration_cases.measured import held, of_pages, sequence, worse

import scoremod.torch

PAGE = "docs/guide/serving.md"
SCALES = "descale_k", "descale_v"  # of an FP8 cache, for each KV head


class Recorder:
    """flex_attention, and the arguments and results of its calls."""

    def __init__(self):
        self.calls, self._run = [], scoremod.torch.flex_attention

    def __call__(self, *tensors, **options):
        result = self._run(*tensors, **options)
        self.calls.append((tuple(x.clone() for x in tensors), options, result))
        return result


def exact(tensors, options, dtype):
    """[output, and the LSE where it was asked for] of a call by dense attention, each sequence by itself."""
    q, *cache = tensors
    k, v = (x if scale is None else x.to(dtype) * scale[:, None, None] for x, scale in zip(cache, map(options.get, SCALES)))
    known = {"mask_mod", "page_table", "lengths", "q_offsets", "max_length", "out", "return_lse", *SCALES}
    if not set(options) <= known or options.get("mask_mod") not in (None, "causal_bottom_right"):
        raise AssertionError(f"the page has a call that this case doesn't know: {sorted(options)}; teach exact() of it")
    is_causal, is_ragged = options.get("mask_mod") is not None, "q_offsets" in options
    rows = q.split(options["q_offsets"].diff().tolist()) if is_ragged else [x.transpose(0, 1) for x in q]
    o, lse = [], []
    for b, row in enumerate(rows):
        if "page_table" in options:
            own = [of_pages(pool.transpose(1, 2), options["page_table"][b], int(options["lengths"][b])) for pool in (k, v)]
        else:
            own = [x[b].transpose(0, 1) for x in (k, v)]
        one, own_lse = sequence(*(x.to(dtype) for x in (row, *own)), causal=is_causal)
        o.append(one if is_ragged else one.transpose(0, 1))
        lse.append(own_lse.T if is_ragged else own_lse)
    join = torch.cat if is_ragged else torch.stack
    return [join(o), join(lse)] if options.get("return_lse") else [join(o)]


def page(draw):
    recorder, own = Recorder(), scoremod.torch.flex_attention
    torch.manual_seed(draw.seed)
    scoremod.torch.flex_attention = recorder
    try:
        with torch.device(draw.device):
            names = page_python.run_page(PAGE, "torch")
    finally:
        scoremod.torch.flex_attention = own
        sys.modules.pop("page", None)
    measured = []
    for tensors, options, result in recorder.calls:
        found = list(result) if isinstance(result, tuple) else [result]
        if any(x.device.type != draw.device for x in found):
            raise AssertionError(f"a result is on {found[0].device}")
        measured.append(held(found, *(exact(tensors, options, kind) for kind in (tensors[0].dtype, torch.float64)), ("o", "lse")[: len(found)]))
    measured += [appended(names), merged(names)]
    return worse(*measured) | {"calls": len(recorder.calls)}


def appended(names):
    """The pages have the last new keys and values of each sequence."""
    found, expected = [], []
    ends, cached = names["ends"].tolist(), names["cached"].tolist()
    for pool, new in ((names["k_pages"], names["key"]), (names["v_pages"], names["value"])):
        for b, pages in enumerate(names["pages"]):
            own = new[ends[b] : ends[b + 1]]
            found.append(of_pages(pool.transpose(1, 2), pages, cached[b])[cached[b] - len(own) :])
            expected.append(own)
    if not all(map(torch.equal, found, expected)):
        raise AssertionError("append_to_pages: the pages have other keys or values than were given")
    return held(found, found, expected, [f"pages {n}" for n in range(len(found))])


def merged(names):
    """The cascade's parts together are attention to the prefix and what each sequence has after it."""
    both = []
    for kind in (torch.float32, torch.float64):
        q, k, v = (x.to(kind) for x in (names["query"], *(torch.cat([names[f"prefix_{x}"].expand(3, -1, -1, -1), names[f"own_{x}"]], 2) for x in "kv")))
        both.append(list(dense.attention_and_lse(q, k, v)))
    return held([names["o"], names["lse"]], *both, ("merged o", "merged lse"))


CASES = {PAGE: page}
