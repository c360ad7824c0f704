"""Dense attention that follows the documentation of flex_attention's arguments, in any precision."""

import math
from typing import Any, NamedTuple

import torch

from scoremod import Offsets


class NotKnownError(Exception):
    """A call whose result isn't known."""


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
ROUNDING_BAND = 16  # units in the last place of the largest element


class Laid(NamedTuple):
    """A call's tensors as batches of dense scores.

    q, k, v: [batch, heads, sequence, dim].
    b, i, j: the batch, query and key of a score in the call's own numbers, as tensors that broadcast to [batch, 1, queries, keys].
    keep: which scores there are at all.
    given(rows, empty): an output of the call's shape, of rows [batch, heads, queries, ...]. A query that isn't there gets `empty`.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    b: torch.Tensor
    i: torch.Tensor
    j: torch.Tensor
    keep: torch.Tensor
    given: Any


def _grid(batch, queries, keys):
    return [torch.arange(n).view([-1 if d == at else 1 for d in range(4)]) for at, n in ((0, batch), (2, queries), (3, keys))]


def _dense(q, k, v):
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    k, v = (each.expand(batch, -1, -1, -1) for each in (k, v))
    return Laid(q, k, v, *_grid(batch, queries, keys), torch.ones(batch, 1, queries, keys, dtype=torch.bool), lambda rows, empty: rows)


def _listed(q, k, v, listed):
    """Each query as a batch of its own."""
    batch, heads, queries, dim = q.shape
    listed = listed.long().expand(batch, -1, -1).reshape(batch * queries, 1, 1, listed.shape[2])
    of_row = torch.arange(batch * queries).view(-1, 1, 1, 1)
    b, i = of_row // max(queries, 1), of_row % max(queries, 1)
    at = listed.clamp(min=0)[:, 0, 0]
    if k.shape[2] == 0:
        k, v = (torch.nn.functional.pad(each, (0, 0, 0, 1)) for each in (k, v))
    k, v = (each.expand(batch, -1, -1, -1).transpose(1, 2)[b[:, :, 0, 0], at].transpose(1, 2) for each in (k, v))
    rows = q.transpose(1, 2).reshape(batch * queries, heads, 1, dim)

    def given(rows, empty):
        return rows.squeeze(2).unflatten(0, (batch, queries)).transpose(1, 2)

    return Laid(rows, k, v, b, i, listed.clamp(min=0), listed >= 0, given)


def _tokens_at(offsets):
    """(index of each token [sequences, most], whether there is one) of varlen offsets."""
    counts = offsets.diff()
    place = torch.arange(max(int(counts.max()), 1))
    return offsets[:-1, None] + place, place < counts[:, None]


def _rows_of(tokens, at, there):
    """[tokens, heads, dim] as [sequences, heads, most, dim]."""
    safe = tokens[torch.where(there, at, 0)] if tokens.shape[0] else tokens.new_zeros(*at.shape, *tokens.shape[1:])
    return torch.where(there[..., None, None], safe, 0).transpose(1, 2)


def _of_sequences(query, q_offsets):
    """(queries of each sequence, whether each is there, the function `given`)."""
    at, there = _tokens_at(q_offsets.long())

    def given(rows, empty):
        made = rows.new_full((query.shape[0], query.shape[1], *rows.shape[3:]), empty)
        return made.index_put((at[there],), rows.transpose(1, 2)[there])

    return _rows_of(query, at, there), there, given


def _of_pages(pool, table, lengths):
    """[sequences, heads, columns * page size, dim] of a paged KV cache; 0 beyond the lengths."""
    whole = pool[table.long().clamp(0, pool.shape[0] - 1)].transpose(1, 2).flatten(2, 3)
    return torch.where((torch.arange(whole.shape[2]) < lengths[:, None])[:, None, :, None], whole, 0)


def laid_out(given, q, k, v):
    """The Laid of a call's arguments."""
    q_offsets, table, lengths = given.get("q_offsets"), given.get("page_table"), given.get("lengths")
    of_queries, of_keys = lengths if isinstance(lengths, (tuple, list)) else (None, lengths)
    if given.get("token_list") is not None:
        laid = _listed(q, k, v, given["token_list"])
    elif q_offsets is None and table is None:
        laid = _dense(q, k, v)
    else:
        rows, there, back = (q, None, lambda rows, empty: rows) if q_offsets is None else _of_sequences(q, q_offsets)
        if table is not None:
            tables = table if isinstance(table, (tuple, list)) else (table, table)
            k, v = (_of_pages(pool, each, of_keys) for pool, each in zip((k, v), tables))
            there_kv = None
        else:
            at, there_kv = _tokens_at((given["q_offsets"] if given.get("kv_offsets") is None else given["kv_offsets"]).long())
            k, v = _rows_of(k, at, there_kv), _rows_of(v, at, there_kv)
        laid = _dense(rows, k, v)._replace(given=back)
        for mask, shape in ((there, (rows.shape[0], 1, -1, 1)), (there_kv, (rows.shape[0], 1, 1, -1))):
            if mask is not None:
                laid = laid._replace(keep=laid.keep & mask.view(shape))
    offsets = Offsets(*given.get("offsets", ()))  # lengths are those of whole sequences
    if of_keys is not None:
        laid = laid._replace(keep=laid.keep & (laid.j + offsets.key < of_keys[laid.b]))
    if of_queries is not None:
        laid = laid._replace(keep=laid.keep & (laid.i + offsets.query < of_queries[laid.b]))
    return _positioned(given, laid, of_queries, of_keys)


def _positioned(given, laid, of_queries, of_keys):
    """The Laid with q_start and offsets in its indices."""
    start = given.get("q_start")
    if given.get("mask_mod") == "causal_bottom_right" or isinstance(start, str):
        queries, keys = given["query"].shape[-2], given["key"].shape[-2]
        if given.get("q_offsets") is not None:
            queries = given["q_offsets"].diff()
            keys = queries if given.get("kv_offsets") is None else given["kv_offsets"].diff()
        start = (keys if of_keys is None else of_keys) - (queries if of_queries is None else of_queries)
    if start is not None:
        laid = laid._replace(i=laid.i + (start.long()[laid.b] if isinstance(start, torch.Tensor) and start.dim() else int(start)))
    offsets = Offsets(*given.get("offsets", ()))
    return laid._replace(b=laid.b + offsets.batch, i=laid.i + offsets.query, j=laid.j + offsets.key)


def _number(given, name):
    value = given.get(name)
    return 1.0 if value is None else value.double() if isinstance(value, torch.Tensor) else float(value)


def _of_elements(scales, shape):
    """Block scales, once for each element of a tensor or of a dimension that shares them."""
    for axis, size in enumerate(shape):
        if scales.shape[axis] not in (1, size):
            scales = scales.index_select(axis, torch.arange(size) // 32)
    return scales


def _numbers_of(given, wide):
    """query, key and value as numbers of a wide dtype, times their factors."""
    tensors = []
    for name, factor in (("query", "descale_q"), ("key", "descale_k"), ("value", "descale_v")):
        number = _number(given, factor)
        if isinstance(number, torch.Tensor) and number.dim() == 1 and number.numel() != 1:  # one for each KV head
            number = number.view(-1, 1) if given[name].dim() == 3 else number.view(-1, 1, 1)
        elif isinstance(number, torch.Tensor) and number.numel() != 1:
            number = _of_elements(number, given[name].shape)
        elif isinstance(number, torch.Tensor):
            number = number.reshape(())
        tensors.append(given[name].to(wide) * number if given[name].dtype in FLOAT8 else given[name].to(wide))
    return [each.to(wide) for each in tensors]


def attention(given, is_wide=False):
    """(o, lse, largest scores) of the arguments of a call. is_wide: in float64, instead of the call's own dtype with sums in float32."""
    wide = torch.float64 if is_wide else torch.float32
    narrow = output_dtype(given)
    laid = laid_out(given, *_numbers_of(given, wide))
    q, group = laid.q, laid.q.shape[1] // max(laid.k.shape[1], 1)
    k, v = (each.repeat_interleave(group, dim=1) for each in (laid.k, laid.v))
    scale = 1 / math.sqrt(q.shape[-1]) if given.get("scale") is None else float(given["scale"])
    scores = (q @ k.transpose(-1, -2)) * scale
    h = torch.arange(q.shape[1]).view(1, -1, 1, 1)
    indices = [each.to(torch.int32) for each in (laid.b, h + Offsets(*given.get("offsets", ())).head, laid.i, laid.j)]
    keep = laid.keep
    is_read = 0 not in scores.shape  # otherwise no function is called
    if given.get("score_mod") is not None and is_read:
        # Scores that are not there have indices beyond the tensors that functions read.
        scores = _called(given["score_mod"], scores, *_inside(indices, keep)).to(wide).expand(scores.shape)
    mask_mod = given["block_mask"].mask_mod if given.get("block_mask") is not None else given.get("mask_mod")
    if isinstance(mask_mod, str):
        keep = keep & (indices[2] >= indices[3])
    elif mask_mod is not None and is_read:
        keep = keep & _called(mask_mod, *_inside(indices, keep)).to(torch.bool)
    o, lse, largest = _softmax(torch.where(keep, scores, -math.inf), v, given.get("sink"), None if is_wide else narrow)
    if given["query"].dtype in FLOAT8:
        o = o * _number(given, "scale_o")
    return tuple(laid.given(x, empty) for x, empty in ((o if is_wide else o.to(narrow), 0.0), (lse, -math.inf), (largest, -math.inf)))


def _called(function, *arguments):
    """Its result. Raises NotKnownError where it has none, as for an index beyond a tensor's end, which scoremod clamps and PyTorch refuses."""
    try:
        return torch.as_tensor(function(*arguments))
    except Exception as error:
        raise NotKnownError from error


def _inside(indices, keep):
    """Indices that are 0 where no score is there."""
    b, h, i, j = indices
    return b, h, torch.where(keep.any(-1, keepdim=True), i, 0), torch.where(keep.any(2, keepdim=True), j, 0)


def _softmax(scores, v, sink, rounded):
    """(o, lse, largest) of masked scores. rounded: a dtype that weights are rounded to, or None."""
    largest = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -math.inf)
    largest, top = largest.detach(), largest.detach()
    if sink is not None:
        sink = sink.to(scores.dtype).expand(scores.shape[1])[:, None]
        top = torch.maximum(top, sink.detach())
    top = torch.where(top.isneginf(), 0, top)
    weights = torch.exp(scores - top[..., None])
    total = weights.sum(-1) + (0 if sink is None else torch.exp(sink - top))
    is_empty = total == 0
    safe = torch.where(is_empty, 1, total)
    p = weights / safe[..., None]
    p = p if rounded is None or rounded in FLOAT8 else p.to(rounded).to(p.dtype)
    return p @ v, torch.where(is_empty, -math.inf, torch.log(safe) + top), largest


def output_dtype(given):
    query = given["query"]
    if query.dtype in FLOAT8:
        return given.get("out_dtype") or torch.bfloat16
    return query.dtype


def close(found, plain, truth, off, eps):
    """A text that says what is wrong with a result, or None.

    plain: of the same precision. truth: in float64. off: of inputs that are off by rounding. eps: that of the dtype that the result was rounded in."""
    if found.shape != truth.shape:
        return f"expected shape {tuple(truth.shape)}, found {tuple(found.shape)}"
    found, plain, truth = found.double(), plain.double(), truth.double()
    if not (plain.isfinite() | plain.isneginf()).all() or not (truth.isfinite() | truth.isneginf()).all():
        return None  # what overflows or has NaN may do so in any way
    if (plain.isneginf() & ~truth.isneginf()).any():
        return None  # finite scores that overflow to -inf: an empty row in this precision
    if not torch.equal(found.isneginf(), truth.isneginf()):
        return f"expected -inf in {truth.isneginf().sum()} places, found it in {found.isneginf().sum()}"
    finite = ~truth.isneginf()
    if not finite.any():
        return None
    off = [each for each in map(torch.Tensor.double, off) if (each.isfinite() | each.isneginf()).all() and torch.equal(each.isneginf(), truth.isneginf())]
    scale = truth[finite].abs().max().item()
    allowed = 2 * max([(each - truth)[finite].abs().max().item() for each in (plain, *off)]) + ROUNDING_BAND * eps * scale
    error = (found - truth)[finite].abs().max().item()
    return None if error <= allowed + 1e-30 else f"error {error} from float64, {allowed} allowed, largest magnitude {scale}"
