"""PyTorch's scaled_dot_product_attention and varlen_attn with scoremod as the active implementation, against dense attention in float64."""

import contextlib
import inspect
import itertools

import dense_reference as dense
import torch
from integration_cases.measured import NotRun, device_ms, held, host_us, of_pages, sequence, with_gradients, worse
from torch.nn.attention import SDPBackend, activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import scoremod.torch
from scoremod.torch import flash_registration

NAMES = ("o", "dq", "dk", "dv")


@contextlib.contextmanager
def active(counts_calls=True):
    """scoremod as the implementation of PyTorch's flash backend, which must have run it."""
    try:
        scoremod.torch.register()
    except scoremod.UnsupportedError as error:
        raise NotRun(str(error)) from None
    made, before = [], {name: getattr(flash_registration, name) for name in ("_run", "flex_attention")}
    if counts_calls:
        for name, run in before.items():
            setattr(flash_registration, name, lambda *arguments, run=run, **options: made.append(1) or run(*arguments, **options))
    activate_flash_attention_impl("scoremod")
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            yield made
    finally:
        restore_flash_attention_impl()
        for name, run in before.items():
            setattr(flash_registration, name, run)
    if counts_calls and not made:
        raise AssertionError("another implementation ran")


def causal_mod(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def heads_of(draw, layout, batch, heads, heads_kv, queries, keys, dim, dtype):
    shapes = [(batch, queries, heads, dim), *2 * [(batch, keys, heads_kv, dim)]]
    if layout == "packed":  # the parts of one projection
        whole = draw.normal(batch, queries, heads + 2 * heads_kv, dim, dtype=dtype)
        return [x.transpose(1, 2) for x in whole.split([heads, heads_kv, heads_kv], dim=2)]
    tensors = [draw.normal(*shape, dtype=dtype).transpose(1, 2) for shape in shapes]
    return tensors if layout == "BSHD" else [x.contiguous() for x in tensors]


def sdpa(draw, layout, dtype, run=lambda function: function):
    measured, size = [], (3, 70) if draw.is_small else (33, 700)
    for is_causal, is_grouped in itertools.product((False, True), (False, True)):
        queries = draw.choose.randint(*size)
        keys = queries if is_causal or layout == "packed" else draw.choose.randint(*size)
        q, k, v = heads_of(draw, layout, 2, 4 if is_grouped else 2, 2, queries, keys, draw.choose.choice([64, 128]), dtype)
        weight = draw.normal(*q.shape, dtype=torch.float32)

        def attention(q, k, v):
            return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=is_grouped)  # noqa: B023

        with active():
            found = with_gradients(run(attention), (q, k, v), weight)
        definition = lambda *x: dense.attention_and_lse(*x, mask_mod=causal_mod if is_causal else None)[0]  # noqa: B023, E731
        exact = [with_gradients(definition, [x.to(kind) for x in (q, k, v)], weight) for kind in (dtype, torch.float64)]
        measured.append(held(found, *exact, NAMES))
    return worse(*measured)


def graph(draw):
    torch._dynamo.reset()
    return sdpa(draw, "BSHD", torch.bfloat16, lambda function: torch.compile(function, fullgraph=True, backend="aot_eager"))


def dropout(draw):
    """With the unit matrix as values an output is the weights that were kept, so that the mask is known; the same seed drops the same of other values."""
    draw.needs_gpu("dropout by scoremod")
    p, dtype = 0.3, torch.bfloat16
    q, k, v = heads_of(draw, "BSHD", 2, 4, 4, 64, 64, 64, dtype)
    weight, seed = draw.normal(*q.shape, dtype=torch.float32), draw.choose.randrange(2**31)

    def attention(q, k, v):
        torch.manual_seed(seed)
        return scaled_dot_product_attention(q, k, v, dropout_p=p)

    with active():
        unit = torch.eye(64, device=draw.device, dtype=dtype).expand(2, 4, 64, 64)
        keep = attention(q, k, unit) != 0
        found = with_gradients(attention, (q, k, v), weight)
        repeated = attention(q, k, v)
    share = 1 - keep.double().mean().item()
    if not abs(share - p) < 5 * (p * (1 - p) / keep.numel()) ** 0.5:
        raise AssertionError(f"expected a part of {p} dropped, found {share}")
    if not torch.equal(found[0], repeated):
        raise AssertionError("the same seed dropped others")

    def definition(q, k, v):
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = (q.to(wide) @ k.to(wide).transpose(-1, -2) / 8).softmax(-1) * keep / (1 - p)
        return (weights.to(v.dtype).to(wide) @ v.to(wide)).to(v.dtype)

    exact = [with_gradients(definition, [x.to(kind) for x in (q, k, v)], weight) for kind in (dtype, torch.float64)]
    return held(found, *exact, NAMES) | {"dropped": round(share, 4)}


def varlen_functions():
    try:
        from torch.nn.attention import varlen
    except ImportError as error:
        raise NotRun(str(error)) from None
    return varlen


def varlen(draw, window):
    attend = varlen_functions().varlen_attn
    taken = inspect.signature(attend).parameters
    if "window_size" in taken:
        options = {"window_size": window}
    elif window in ((-1, -1), (-1, 0)):
        options = {"is_causal": window == (-1, 0)}
    else:
        raise NotRun(f"varlen_attn of PyTorch {torch.__version__} takes no window")
    dtype, group, dim = torch.bfloat16, 2 if "enable_gqa" in taken else 1, 64
    options |= {"enable_gqa": True} if group > 1 else {}
    measured, most = [], 12 if draw.is_small else 300
    for is_self in (True, False):
        queries = [draw.choose.randint(1, most), 0, draw.choose.randint(1, most), draw.choose.randint(1, most)]
        keys = queries if is_self else [draw.choose.randint(each and 1, most) for each in queries]
        of_q, of_k = (draw.integers([0, *itertools.accumulate(each)]) for each in (queries, keys))
        of_k = of_q if is_self else of_k
        tensors = [draw.normal(sum(n), heads, dim) for n, heads in ((queries, 2 * group), (keys, 2), (keys, 2))]
        weight = draw.normal(*tensors[0].shape, dtype=torch.float32)
        with active():
            found = with_gradients(lambda *x: attend(*x, of_q, of_k, max(queries), max(keys), **options), tensors, weight)  # noqa: B023
        ends = [x.tolist() for x in (of_q, of_k)]

        def definition(q, k, v):
            parts = [slice(*each) for each in zip(ends[0], ends[0][1:])], [slice(*each) for each in zip(ends[1], ends[1][1:])]  # noqa: B023
            return torch.cat([sequence(q[a], k[b], v[b], window_size=window)[0] for a, b in zip(*parts) if a.start < a.stop])

        exact = [with_gradients(definition, [x.to(kind) for x in tensors], weight) for kind in (dtype, torch.float64)]
        measured.append(held(found, *exact, NAMES))
    return worse(*measured)


def varlen_pages(draw):
    attend = getattr(varlen_functions(), "varlen_attn_out", None)
    if attend is None or not {"seqused_k", "block_table"} <= set(inspect.signature(attend).parameters):
        raise NotRun(f"PyTorch {torch.__version__} has no varlen_attn_out with seqused_k and block_table")
    queries, keys = [1, 5, 1, 17], [draw.choose.randint(17, 60) for _ in range(4)]
    pools, table = [draw.normal(20, 16, 2, 64) for _ in "kv"], torch.randperm(20, generator=draw.generator)[:16].reshape(4, 4).int().to(draw.device)
    q, of_q = draw.normal(sum(queries), 4, 64), draw.integers([0, *itertools.accumulate(queries)])
    out = torch.full_like(q, torch.nan)
    options = dict(seqused_k=draw.integers(keys), block_table=table, window_size=(-1, 0), enable_gqa=True)
    with active(), torch.no_grad():
        attend(out, q, *pools, of_q, None, max(queries), 64, **options)
    exact = []
    for kind in (q.dtype, torch.float64):
        rows = [x.to(kind) for x in q.split(queries)]
        exact.append([torch.cat([sequence(x, *(of_pages(p, table[b], keys[b]).to(kind) for p in pools), causal=True)[0] for b, x in enumerate(rows)])])
    return held([out], *exact, ["o"])


def times(draw):
    """Causal attention of a training step, PyTorch's own flash backend beside scoremod's in its place."""
    draw.needs_gpu("a time")
    measured = {}
    for layout in ("BHSD", "BSHD"):
        q, k, v = (x.requires_grad_() for x in heads_of(draw, layout, 4, 16, 16, 4096, 4096, 128, torch.bfloat16))
        upstream = torch.randn_like(q)
        for name, chosen in (("torch", sdpa_kernel(SDPBackend.FLASH_ATTENTION)), ("scoremod", active(counts_calls=False))):
            with chosen:
                forward = lambda: scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: B023, E731
                o = forward()
                backward = lambda: torch.autograd.grad(o, (q, k, v), upstream, retain_graph=True)  # noqa: B023, E731
                measured |= {f"{name}_{layout}_{key}_ms": ms for key, ms in device_ms(forward=forward, backward=backward).items()}
                measured[f"{name}_{layout}_forward_host_us"] = host_us(forward)
    return measured


CASES = {
    **{
        f"sdpa {layout} {str(dtype)[6:]}": lambda draw, layout=layout, dtype=dtype: sdpa(draw, layout, dtype)
        for layout in ("BHSD", "BSHD", "packed")
        for dtype in (torch.bfloat16, torch.float16)
    },
    "sdpa in a compiled graph": graph,
    "sdpa dropout": dropout,
    **{f"varlen_attn window {window}": lambda draw, window=window: varlen(draw, window) for window in ((-1, -1), (-1, 0), (9, 0), (5, 7))},
    "varlen_attn_out over pages": varlen_pages,
    "sdpa times": times,
}
