"""The functions of integrations/hub_kernel, loaded from its folder, against dense attention in float64."""

import importlib.util
import itertools
from pathlib import Path

import torch
from integration_cases.measured import held, of_pages, sequence, with_gradients, worse

FOLDER = Path(__file__).resolve().parents[3] / "integrations" / "hub_kernel" / "build" / "torch-universal"
DTYPE = torch.bfloat16

# Models of transformers ask for these, alone and together.
ASKED = {
    "causal": {"causal": True},
    "window": {"causal": True, "window_size": (40, 0)},
    "window on both sides": {"window_size": (9, 20)},
    "soft cap": {"causal": True, "softcap": 5.0},
    "sinks": {"causal": True, "s_aux": True},
    "ALiBi": {"causal": True, "alibi_slopes": True},
    "window, soft cap, sinks and ALiBi": {"causal": True, "window_size": (40, 0), "softcap": 5.0, "s_aux": True, "alibi_slopes": True},
}


def module():
    spec = importlib.util.spec_from_file_location("hub_kernel", FOLDER / "__init__.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def options_of(draw, asked, heads):
    """The arguments, with numbers drawn where True stands."""
    drawn = {"s_aux": lambda: draw.normal(heads, dtype=torch.float32), "alibi_slopes": lambda: draw.normal(heads, dtype=torch.float32).abs() * 0.1}
    return {name: drawn[name]() if name in drawn else each for name, each in asked.items()}


def sizes(draw):
    """(heads, KV heads, dim, [queries], [keys]): decode steps, chunks, a prompt, more queries than keys, and none."""
    most = 40 if draw.is_small else 600
    heads_kv, group, dim = draw.choose.choice([1, 2, 4]), draw.choose.choice([1, 4]), draw.choose.choice([64, 128])
    queries = [1, draw.choose.randint(2, most), 0, 1, draw.choose.randint(2, most)]
    keys = [draw.choose.randint(1, most), queries[1], draw.choose.randint(1, most), draw.choose.randint(1, most), draw.choose.randint(queries[4], 2 * most)]
    return heads_kv * group, heads_kv, dim, queries, keys


def in_two_dtypes(function, *tensors):
    return [function(*(x.to(kind) for x in tensors)) for kind in (DTYPE, torch.float64)]


def dense(draw, asked):
    """flash_attn_func with gradients, [batch, sequence, heads, dim]."""
    heads, heads_kv, dim, queries, _ = sizes(draw)
    options, seq_q = options_of(draw, asked, heads), queries[1]
    seq_kv = seq_q + draw.choose.choice([0, 31])
    tensors = [draw.normal(2, n, h, dim) for n, h in ((seq_q, heads), (seq_kv, heads_kv), (seq_kv, heads_kv))]
    weight = draw.normal(*tensors[0].shape, dtype=torch.float32)
    found = with_gradients(lambda *x: module().flash_attn_func(*x, **options), tensors, weight)
    definition = lambda q, k, v: torch.stack([sequence(*each, **options)[0] for each in zip(q, k, v)])  # noqa: E731
    exact = [with_gradients(definition, [x.to(kind) for x in tensors], weight) for kind in (DTYPE, torch.float64)]
    return held(found, *exact, ("o", "dq", "dk", "dv"))


def varlen(draw, asked):
    """flash_attn_varlen_func with gradients of keys in a row, and over pages with cu_seqlens_k and with seqused_k."""
    heads, heads_kv, dim, queries, keys = sizes(draw)
    options = options_of(draw, asked, heads)
    of_q, of_k = (draw.integers([0, *itertools.accumulate(each)]) for each in (queries, keys))
    q, k, v = (draw.normal(sum(n), h, dim) for n, h in ((queries, heads), (keys, heads_kv), (keys, heads_kv)))
    weight, most = draw.normal(*q.shape, dtype=torch.float32), (max(queries), max(keys))
    attend = module().flash_attn_varlen_func
    found = with_gradients(lambda *x: attend(*x, of_q, of_k, *most, **options), (q, k, v), weight)

    def definition(q, k, v):
        rows = zip(q.split(queries), k.split(keys), v.split(keys))
        return torch.cat([sequence(*each, **options)[0] for each in rows if len(each[0])])

    exact = [with_gradients(definition, [x.to(kind) for x in (q, k, v)], weight) for kind in (DTYPE, torch.float64)]
    measured = [held(found, *exact, ("o", "dq", "dk", "dv"))]
    page = draw.choose.choice([1, 16, 64])
    pools, table = paged(draw, (k, v), keys, page)
    for lengths in ({"cu_seqlens_k": of_k}, {"seqused_k": draw.integers(keys)}):
        with torch.no_grad():
            o, lse, _ = attend(q, *pools, of_q, max_seqlen_q=most[0], max_seqlen_k=most[1], block_table=table, return_attn_probs=True, **lengths, **options)
        both = in_two_dtypes(lambda *x: [torch.cat(each, axis) for each, axis in zip(zip(*rows_of(x, queries, keys, options)), (0, 1))], q, k, v)
        measured.append(held([o, lse], *both, ("o of pages", "lse of pages")))
    return worse(*measured)


def rows_of(tensors, queries, keys, options):
    q, k, v = tensors
    return [sequence(*each, **options) for each in zip(q.split(queries), k.split(keys), v.split(keys)) if len(each[0])]


def paged(draw, tensors, keys, page):
    """(pools [pages, page size, KV heads, dim] with NaN where no key is, table): pages lie in any order."""
    widths = [-(-each // page) for each in keys]
    ids = torch.randperm(sum(widths) + 5, generator=draw.generator).int().to(draw.device)
    table = torch.full((len(keys), max(widths)), -7, dtype=torch.int32, device=draw.device)
    for row, own in zip(table, ids[: sum(widths)].split(widths)):
        row[: len(own)] = own
    pools = []
    for x in tensors:
        pool = torch.full((len(ids), page, *x.shape[1:]), torch.nan, device=draw.device, dtype=x.dtype)
        for row, width, count, own in zip(table, widths, keys, x.split(keys)):
            block = torch.full((width * page, *x.shape[1:]), torch.nan, device=draw.device, dtype=x.dtype)
            block[:count] = own
            pool[row[:width].long()] = block.view(width, page, *x.shape[1:])
        pools.append(pool)
    return pools, table


def cache(draw, asked):
    """flash_attn_with_kvcache: new keys behind those of rows and of pages, whose places are the cache's afterwards."""
    heads, heads_kv, dim, _, _ = sizes(draw)
    options, new, page = options_of(draw, asked, heads), draw.choose.choice([1, 1, 4]), draw.choose.choice([16, 64])
    before = [0, draw.choose.randint(1, 60), draw.choose.randint(60, 120)]
    tables = torch.randperm(30, generator=draw.generator)[: 3 * (128 // page)].reshape(3, -1).int().to(draw.device)
    measured = []
    for places in ({"block_table": tables}, {}):
        shape = (30, page) if places else (3, 128)
        caches = [draw.normal(*shape, heads_kv, dim) for _ in "kv"]
        q, k, v = draw.normal(3, new, heads, dim), draw.normal(3, new, heads_kv, dim), draw.normal(3, new, heads_kv, dim)
        held_before = [[(of_pages(c, tables[b], before[b]) if places else c[b, : before[b]]).clone() for c in caches] for b in range(3)]
        found = module().flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=draw.integers(before), return_softmax_lse=True, **places, **options)
        whole = [[torch.cat([old, new]) for old, new in zip(held_before[b], (k[b], v[b]))] for b in range(3)]
        both = []
        for kind in (DTYPE, torch.float64):
            rows = [sequence(q[b].to(kind), *(x.to(kind) for x in whole[b]), **options) for b in range(3)]
            both.append([torch.stack(each) for each in zip(*rows)])
        measured.append(held(found, *both, ("o", "lse")))
        for b in range(3):
            for x, expected in zip(caches, whole[b]):
                if not torch.equal(of_pages(x, tables[b], len(expected)) if places else x[b, : len(expected)], expected):
                    raise AssertionError(f"sequence {b}: the cache has other keys than were written")
    return worse(*measured)


CASES = {
    f"{function.__name__} {name}": lambda draw, function=function, asked=asked: function(draw, asked)
    for function, asked in itertools.product((dense, varlen, cache), ASKED.values())
    for name in [next(key for key, each in ASKED.items() if each is asked)]
}
