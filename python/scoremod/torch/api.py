"""flex_attention: fused attention with a score function in plain PyTorch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

from scoremod.call_spec import NO_OFFSETS, CallSpec, Offsets, checked_offsets
from scoremod.decode_masks import warn_of_decode_masks
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.places import FACTORS
from scoremod.query_positions import named
from scoremod.torch.attention_ops import attention, refuse_tangents
from scoremod.torch.block_masks import mask_of
from scoremod.torch.call import FLOAT8, MEMORY, TENSOR_DTYPES, check_dtypes, check_places, has_float8_cache
from scoremod.torch.call_options import check_flags, check_rate, options_of
from scoremod.torch.captures import Extents, learned
from scoremod.torch.changing_numbers import numbers_of, open_trace, opened
from scoremod.torch.compiled_call import call_in_graph, flex_attention_operator
from scoremod.torch.dtensors import Sharded, is_sharded
from scoremod.torch.eager_calls import EagerCall, is_plain, keep, kind_of, known
from scoremod.torch.empty_calls import is_empty, of_nothing
from scoremod.torch.float8 import check_without_factors, factors_of
from scoremod.torch.function_keys import key_of
from scoremod.torch.kept_traces import KeptTrace, kept_trace
from scoremod.torch.lengths_and_sinks import bounded, checked_sink, with_sink
from scoremod.torch.open_sizes import hold_open_sizes
from scoremod.torch.other_arguments import ELSEWHERE, refuse_tensor
from scoremod.torch.outputs import check_out, copied_to
from scoremod.torch.parts import taken_part
from scoremod.torch.query_starts import is_step, started
from scoremod.torch.repeated_calls import remember, repeated
from scoremod.torch.sequences import SequenceArguments, placed_of
from scoremod.signatures import Backends, MaskName, NewSizes
from scoremod.torch.signatures import Lengths, MaskMod, MaxLength, PageTable, QueryStart, ScoreMod
from scoremod.torch.strides import all_taken, of_each_batch
from scoremod.torch.token_lists import ListedCall, attend_to_lists
from scoremod.torch.trace import trace_graph
from scoremod.unknown_arguments import arguments_of, refuse
from scoremod.user_functions import check_callable


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    return_amax_o: bool = False,
    mask_mod: MaskMod | MaskName | None = None,
    lengths: Lengths = None,
    q_offsets: torch.Tensor | None = None,
    kv_offsets: torch.Tensor | None = None,
    page_table: PageTable = None,
    max_length: MaxLength = None,
    sink: torch.Tensor | None = None,
    backends: Backends = None,
    deterministic: bool | None = None,
    new_sizes: NewSizes = None,
    q_start: QueryStart = None,
    token_list: torch.Tensor | None = None,
    offsets: Offsets = NO_OFFSETS,
    dropout_p: float = 0,  # torch.compile(dynamic=True) leaves a float open, at the cost of one more graph
    descale_q: float | torch.Tensor | None = None,
    descale_k: float | torch.Tensor | None = None,
    descale_v: float | torch.Tensor | None = None,
    scale_o: float | torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    """O = softmax(score_mod(scale * Q K^T)) V over the keys that mask_mod keeps, as one fused call; torch.nn.attention.flex_attention's signature.

    The functions may close over tensors: slopes[h], bias[h, q_idx - kv_idx + n], ids[b, q_idx]. Gradients flow to query, key, value and to every
    captured float tensor. `scoremod docs functions` says what the functions can be made of.

    Parameters
    ----------
    query, key, value : Tensor [batch, heads, sequence, dim]
        float32, float16 or bfloat16 tensors on the CPU or CUDA. key and value may have fewer heads, a divisor of query's, with enable_gqa, and one
        batch for all of query's; value may have another head dim. Or all of float8_e4m3fn or float8_e5m2, which have no gradient themselves
        (UnsupportedError). Captured tensors have one where out_dtype is of 16 bits or more.
    score_mod : function, optional
        score_mod(score, b, h, q_idx, kv_idx) returns the modified score. A plain function of 0-dim tensors: float32 score, int32 indices.
    block_mask : BlockMask, optional
        torch's. Its mask_mod is what counts, and which tiles need no work is found out anew. One without a mask_mod masks by its blocks.
    scale : float, optional
        The factor of Q K^T; 1 / sqrt(head dim) without it.
    enable_gqa : bool
        Whether key and value may have fewer heads than query.
    return_lse : bool
        Also returns float32 [batch, heads, sequence], the natural log of each row's sum of exp of the modified scores.
    kernel_options : dict, optional
        Options of torch's kernels, which mean nothing here.
    return_aux : AuxRequest, optional
        torch's: of lse, and of max_scores, each row's largest modified score, which has no gradient.
    return_amax_o : bool
        With FP8 tensors, also returns, after all, the largest magnitude in the output before scale_o. It is a float32 scalar without a gradient,
        and NaN where the output has one.
    mask_mod : function or str, optional
        mask_mod(b, h, q_idx, kv_idx) returns whether the query may look at the key. A query without any key gets output 0 and LSE -inf. Or a name:
        "causal" for q_idx >= kv_idx, "causal_bottom_right" for the same with q_start="bottom_right".
    lengths : integer Tensor [batch] or a pair, optional
        How many keys of each batch take part, from 0 on; or a pair of such, for queries and keys, of which either may be None. Indices beyond are
        masked.
    q_offsets : integer Tensor [batch + 1], optional
        Varlen sequences: query [tokens, heads, dim], key and value [tokens_kv, heads_kv, dim], and sequence b from q_offsets[b] up to
        q_offsets[b + 1]. It is on query's device. Each sequence attends to itself alone; the functions see its number as b and the positions in
        it. Tokens in no sequence get output 0 and LSE -inf. The LSE is [tokens, heads].
    kv_offsets : integer Tensor [batch + 1], optional
        The offsets of the keys; q_offsets without it.
    page_table : integer Tensor [batch, pages of a sequence] or a pair, optional
        Key and value are then a paged KV cache [pages, heads, page size, dim] in any strides; a pair is for key and value. Position j of a sequence
        is in page page_table[b, j // page size]. It needs lengths of the keys; entries beyond them may be anything. Keys are read in place, and
        gathered for gradients. With q_offsets it is a mixed batch: sequences with one query and with many in one call, whose keys the cache has.
        lengths and page_table then have a row for each sequence.
    max_length : int or (int, int), optional
        With q_offsets, the most tokens that any sequence has, or a pair for queries and keys. Without it offsets on the CPU say it, and for others
        all tokens are taken for it. A kernel's work is laid out for so many. A longer sequence is refused where offsets are on the CPU.
    sink : float Tensor [heads] or [1], optional
        exp(sink) is added to the sum of each softmax, and no value goes with it. It has a gradient. The LSE counts it; a query without any key
        has LSE sink.
    backends : list of str or str, optional
        Who may run it: names in order, and names to leave out with a "-" before them, as a list or with commas (`scoremod docs gpus`).
    deterministic : bool, optional
        Whether the gradients must be the same bits each time in a process, whichever call it is; without it what
        torch.use_deterministic_algorithms says.
    new_sizes : {"wait", "serve"}, optional
        "wait" for the fastest backend's plan where a size has none yet, or "serve": run a ready plan meanwhile (`scoremod docs serving`).
    q_start : int, integer Tensor [batch] or "bottom_right", optional
        The index of the first query in its sequence, as in a step of decoding with a cache; a tensor is on query's device. It is added to q_idx, so
        that q_idx >= kv_idx keeps all keys up to the query. No value of it compiles anything. With "bottom_right" each sequence's last query
        stands at its last key, by lengths, offsets or the tensors' sizes. Queries before its first key then have indices below 0.
    token_list : integer Tensor [batch, queries, entries], optional
        The keys of each query, as in DeepSeek's sparse attention: entry j is the index in key and value of its key number j, for all heads. A negative
        entry stands for no key, and a repeated one counts as often as it is there. The functions see the entry as kv_idx. lengths, q_start and
        block_mask mean what they do without a list. In host memory an entry beyond the keys is refused; on a device it is masked. The batch may be
        1 for all. Keys are read in place where the batches' tokens lie in equal steps, else from a copy, and gathered for gradients.
    offsets : Offsets
        scoremod.Offsets that are added to the indices, where the tensors are a part of more, such as a shard: those of its first batch, head,
        query and key.
    dropout_p : float
        The probability in [0, 1) with which each weight is dropped; the others grow by 1 / (1 - dropout_p). Which ones follows from PyTorch's CPU
        generator (torch.manual_seed).
    descale_q, descale_k, descale_v : float or float Tensor of one element, or of block scales, optional
        Positive factors of FP8 tensors, value = stored * descale, on query's device; 1 without it. Derivatives take them for constants. Key and value
        alone may be FP8, as a KV cache under a query of 16 or 32 bits: descale_k and descale_v must then be given, may be [KV heads], and nothing has
        gradients. Block scales have the tensor's dimensions, each as it is or 1; the sequence and the head dim also in blocks of 32, as in
        MXFP8. float8_e8m0fnu will do, too.
    scale_o : float or float Tensor of one element, optional
        The factor of the output before it is rounded to FP8. Magnitudes beyond the dtype's largest number saturate.
    out_dtype : dtype, optional
        The output's dtype where query is FP8; torch.bfloat16 without it. An FP8 one takes a scale_o, and no other does.
    out : Tensor, optional
        The tensor that the output is written to and that is returned in its place, where gradients are off. It overlaps no other tensor of the
        call; where it has other strides than an output, it is copied to.
    others
        Other arguments are refused. For those that PyTorch's and FlashAttention's functions have, the error says what takes their place.

    Returns
    -------
    Tensor or tuple
        The output, [batch, heads, sequence, dim of value]; a tuple of it and what return_lse, return_aux and return_amax_o ask for, in this order.

    Raises
    ------
    InvalidArgumentError
        A ValueError, for arguments that don't fit.
    UnsupportedError
        For functions that can't be expressed, and for calls that no backend can run.
    """
    request = None
    if out is not None:
        check_out(out, query)
    if isinstance(mask_mod, str):
        mask_mod, q_start = named(mask_mod, q_start)
        if score_mod is None and q_offsets is None and offsets is NO_OFFSETS and is_step(mask_mod, q_start, query):
            mask_mod = q_start = None
    if token_list is not None:
        places = {"page_table": page_table, "q_offsets": q_offsets, "kv_offsets": kv_offsets, "max_length": max_length}
        return attend_to_lists(
            flex_attention,
            token_list,
            ListedCall(query, key, value, score_mod, mask_mod, block_mask, lengths, q_start, offsets, out, places),
            scale=scale,
            enable_gqa=enable_gqa,
            return_lse=return_lse,
            kernel_options=kernel_options,
            return_aux=return_aux,
            return_amax_o=return_amax_o,
            sink=sink,
            backends=backends,
            deterministic=deterministic,
            new_sizes=new_sizes,
            dropout_p=dropout_p,
            descale_q=descale_q,
            descale_k=descale_k,
            descale_v=descale_v,
            scale_o=scale_o,
            out_dtype=out_dtype,
            **others,
        )
    is_usual = block_mask is return_aux is q_start is descale_q is descale_k is descale_v is scale_o is out_dtype is None and offsets is NO_OFFSETS
    try:
        is_usual = is_usual and not (others or dropout_p != 0 or return_amax_o or is_dynamo_compiling())
    except (RuntimeError, ValueError):  # of the truth of a tensor or an array
        is_usual = False
    if is_usual:
        plain = scale, enable_gqa, return_lse, backends, deterministic, new_sizes, max_length  # repeated_calls.PlainOptions
        request = query, key, value, score_mod, mask_mod, (lengths, q_offsets, kv_offsets, page_table, sink), plain
        found = repeated(*request, out)
        if found is not None:
            o = found[0] if out is None or found[0] is out else copied_to(out, found[0])
            return (o, found[1]) if return_lse else o
    if others:
        refuse("flex_attention", others, arguments_of(flex_attention), ELSEWHERE)
    refuse_tensor(mask_mod)
    check_flags(enable_gqa=enable_gqa, return_lse=return_lse, return_amax_o=return_amax_o, deterministic=deterministic)
    if type(dropout_p) is not int:  # the default
        check_rate(dropout_p)
    if block_mask is not None:
        mask_mod = mask_of(block_mask, mask_mod, query, key, q_offsets is not None or page_table is not None)
    if return_lse and return_aux is not None:
        raise InvalidArgumentError("expected return_lse or return_aux, found both; return_aux=AuxRequest(lse=True) is torch's new way")
    if return_aux is not None and not (hasattr(return_aux, "lse") and hasattr(return_aux, "max_scores")):
        raise InvalidArgumentError(f"return_aux: expected torch's AuxRequest(lse=, max_scores=), found {return_aux!r:.100}")
    of_whole, is_start = offsets, False
    if q_start is not None:
        sequences = SequenceArguments(q_offsets=q_offsets, kv_offsets=kv_offsets, page_table=page_table, max_length=max_length, lengths=lengths)
        score_mod, mask_mod, offsets, is_start = started(q_start, query, key, sequences, score_mod, mask_mod, offsets)
    with_lse = bool(return_lse) or (return_aux is not None and return_aux.lse)
    with_max = return_aux is not None and return_aux.max_scores
    # On the host, where a call's numbers are: what the generator gives is the same on every device.
    dropout = torch.randint(2**62, (2,), dtype=torch.int64, device="cpu") if dropout_p else None
    if is_sharded(query):
        if q_offsets is not None or kv_offsets is not None or page_table is not None:
            raise UnsupportedError("q_offsets, page_table: expected none beside DTensors, found them; call flex_attention with each process' own sequences")
        check_without_factors(query, key, "DTensors")
        sharded, batch = Sharded(query, key, value, offsets), query.shape[0]
        query, key, value = sharded.tensors
        if lengths is not None:
            of_whole_batch = tuple(map(sharded.whole, lengths)) if isinstance(lengths, (tuple, list)) else sharded.whole(lengths)
            mask_mod = bounded(mask_mod, of_whole_batch, batch, _most(query, key, of_whole))
        spec = CallSpec(
            scale=scale,
            backends=backends,
            deterministic=deterministic,
            offsets=sharded.offsets,
            new_sizes=new_sizes,
            dropout=dropout_p,
            with_max=with_max,
        )
        rows = _attend(
            query, key, value, score_mod, mask_mod, dropout, (), bool(enable_gqa), with_lse or sink is not None, options_of(spec), whole=sharded.whole
        )
        o, lse, largest = sharded.results(rows[0], rows[1], rows[2], sink)
        amax = None
    else:
        bound, place, longest, covers, dtype_o = (), None, (None, None), True, None
        of_float8: dict[str, Any] = {}
        # Arguments that most calls lack are skipped, for each call would pay for looking.
        is_placed = q_offsets is not None or kv_offsets is not None or page_table is not None or max_length is not None or lengths is not None
        if is_placed or sink is not None:
            sequences = SequenceArguments(q_offsets=q_offsets, kv_offsets=kv_offsets, page_table=page_table, max_length=max_length, lengths=lengths)
            mask_mod, bound, placed = _bound(query, key, value, mask_mod, sequences, sink, of_whole)
            if placed is not None:
                place, longest, covers = placed.place, placed.longest, placed.covers
        has_factors = descale_q is not None or descale_k is not None or descale_v is not None or scale_o is not None or out_dtype is not None
        if has_factors or return_amax_o or getattr(query, "dtype", None) in FLOAT8 or getattr(key, "dtype", None) in FLOAT8:
            check_places(query, key, value)
            descales = {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
            factors, dtype_o = factors_of(query, key, value, descales, scale_o, out_dtype, return_amax_o)
            of_float8 = {**_options_of_float8(query, key, factors, dtype_o), "amax_o": bool(return_amax_o)}
            bound = (*bound, *factors)
        arguments = query, key, value, score_mod, mask_mod, dropout, bound, bool(enable_gqa), with_lse
        spec = CallSpec(
            scale=scale,
            backends=backends,
            deterministic=deterministic,
            offsets=offsets,
            new_sizes=new_sizes,
            q_start=is_start,
            dropout=dropout_p,
            with_max=with_max,
            place=place,
            longest=longest,
            sink=sink is not None,
            **of_float8,
        )
        if is_dynamo_compiling():
            o, lse, largest, amax = call_in_graph(*arguments, spec, dtype_o or query.dtype)
        else:
            o, lse, largest, amax = _attend(*arguments, options_of(spec), covers, request=request, out=out)
    if out is not None and o is not out:
        o = copied_to(out, o)
    results = [o]
    if return_aux is not None:
        results.append(AuxOutput(lse=lse if with_lse else None, max_scores=largest if with_max else None))
    elif return_lse:
        results.append(lse)
    if return_amax_o:
        results.append(amax)
    return results[0] if len(results) == 1 else tuple(results)


def _bound(query, key, value, mask_mod, sequences, sink, offsets=NO_OFFSETS):
    """(mask_mod, tensors of Call.bound(), Placed or None) of flex_attention's arguments."""
    if not is_dynamo_compiling():  # where attend_graph does
        check_places(query, key, value)
    placed, lengths = placed_of(query, key, value, sequences), sequences.lengths
    if lengths is not None:
        if placed is not None and placed.is_paged:  # those of the keys are bound
            lengths = (lengths[0] if isinstance(lengths, (tuple, list)) else None, None)
        batch, most = (query.shape[0], _most(query, key, offsets)) if placed is None else (placed.batch, placed.most)
        mask_mod = bounded(mask_mod, lengths, batch, most, checked_offsets(offsets).batch)
    bound = () if placed is None else placed.bound
    return mask_mod, bound if sink is None else (*bound, _sink_of_heads(sink, query)), placed


def _most(query, key, offsets):
    """How many queries and keys a length may be; None where the tensors are a shard's."""
    return (query.shape[2], key.shape[2]) if offsets == NO_OFFSETS else (None, None)


def _sink_of_heads(sink, query):
    """The sink of each head, as the problem takes it."""
    sink = checked_sink(sink, query.shape[1])
    if sink.device != query.device:
        raise InvalidArgumentError(f"sink: expected a tensor on {query.device}, where query is, found one on {sink.device}; move it")
    return (sink.to(torch.float32) if sink.dtype == torch.float64 else sink).contiguous()


def _options_of_float8(query, key, factors, dtype_o) -> dict[str, Any]:
    """The fields of CallSpec that say of which dtypes FP8 tensors are, and how many factors they have."""
    return {
        "dtype_o": None if dtype_o is None else TENSOR_DTYPES.get(dtype_o),
        "factors": len(factors),
        "dtype_kv": FLOAT8[key.dtype] if has_float8_cache(query, key) else None,
    }


def call_of_arguments(query, key, value, block_mask, mask_mod, scale, backends, sequences, sink):
    """(mask_mod, tensors of Call.bound(), Call without its program) of a call that isn't run. sequences: SequenceArguments."""
    has_places = sequences.q_offsets is not None or sequences.kv_offsets is not None or sequences.page_table is not None
    mask_mod = mask_of(block_mask, mask_mod, query, key, has_places)
    mask_mod, bound, placed = _bound(query, key, value, mask_mod, sequences, sink)
    place, longest = (None, (None, None)) if placed is None else (placed.place, placed.longest)
    # A call that isn't run needs no factor of an FP8 cache.
    given = dict.fromkeys(FACTORS[:3]) | (dict.fromkeys(FACTORS[1:3], 1.0) if has_float8_cache(query, key) else {})
    factors, dtype_o = factors_of(query, key, value, given, None, None, False)
    of_float8 = _options_of_float8(query, key, factors, dtype_o)
    return mask_mod, (*bound, *factors), options_of(CallSpec(scale=scale, backends=backends, place=place, longest=longest, sink=sink is not None, **of_float8))


def _attend(query, key, value, score_mod, mask_mod, dropout, bound, enable_gqa, with_lse, options, covers=True, whole=None, request=None, out=None):
    """(o, lse, largest scores, largest magnitude). bound: the tensors of options.bound(); covers: whether each token is in a sequence; whole: what makes
    whole tensors of captured DTensors, where there may be such. request: the call's arguments as repeated_calls takes them; None for a call that it can't know. out: what the
    output may be written to.
    """
    functions, captured = key_of(score_mod, mask_mod)
    if whole is not None:
        captured = list(map(whole, captured))
    offsets = options.offsets if options.offsets is not NO_OFFSETS and options.has_offsets else None
    structure = options if offsets is None else options.structure()
    is_short = functions is not None and covers and is_plain(query, key, value, *captured, *bound)
    kind = None
    if is_short:
        query, key, value = in_autocast_dtype(query, key, value)
        kind = kind_of(functions, (*captured, *bound), query, key, value, enable_gqa, with_lse, structure)
        call = known(kind)
        if call is not None and (offsets is None or call.serves(offsets)):
            if request is not None:
                remember(request, call, captured, bound)
            return call(query, key, value, captured, bound, dropout, offsets, out)
        changed = opened(functions, options.deterministic)
        if changed is not None:
            call = known(kind_of(changed.key, (*captured, *bound), query, key, value, enable_gqa, with_lse, structure))
            if call is not None and (offsets is None or call.serves(offsets)):
                return call(query, key, value, [*captured, *numbers_of(call.numbers, changed, query.device)], bound, dropout, offsets, out)
    check_places(query, key, value)
    if is_empty(query, key, value, options, () if covers else bound[: 1 if options.is_paged else 2]):
        for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
            if function is not None:  # otherwise tracing would look at it
                check_callable(name, function)
        query, key, value = in_autocast_dtype(query, key, value)
        return of_nothing(query, key, value, bound, options, captured)
    given = query, key, value
    query, key, value, extents = checked(query, key, value, bound, enable_gqa, options)
    found = open_trace((score_mod, mask_mod), functions, captured, extents, query.device, options.deterministic) if is_short else None
    if found is not None:
        changed, traced, sources, numbers = found
        kind, captured, is_kept = kind_of(changed.key, (*captured, *bound), *given, enable_gqa, with_lse, structure), [*captured, *numbers], True
    else:
        traced, sources, is_kept = kept_trace((score_mod, mask_mod), functions, captured, extents, query.device, whole)
    _warn_of_masks(traced.program, extents, options)
    part = taken_part(query, key, value, traced, sources, bound, options)
    if not is_short or not is_kept or not part.is_as_given:
        return _by_operator(query, part, dropout, with_lse)
    call = EagerCall(query, key, value, captured, bound, traced, extents, part.wanted, part.backward, with_lse, part.structure)
    if (key.shape, value.shape) != (given[1].shape, given[2].shape):
        call = OfEachBatch(call)
    keep(kind, call)
    if request is not None and found is None:
        remember(request, call, captured, bound)
    return call(query, key, value, captured, bound, dropout, offsets, out)


class OfEachBatch:
    """An EagerCall of key and value that have one batch for all of query's."""

    def __init__(self, call):
        self._call, self.numbers, self.serves = call, call.numbers, call.serves

    def __call__(self, query, key, value, *others):
        return self._call(query, *of_each_batch(query, key, value), *others)


def attend_graph(body, query, key, value, dropout, bound, captured, /, *, enable_gqa, with_lse, has_score_mod, has_mask_mod, **options):
    """_attend() for a graph that torch.compile made: body(score, b, h, q_idx, kv_idx, query, key, value) -> (score, keep, ...).

    captured: the tensors that it reads. options: CallSpec.in_graph()."""
    spec = CallSpec.of_graph(**options)
    options = options_of(spec)
    hold_open_sizes(query, key, value)
    if is_empty(query, key, value, options):
        query, key, value = in_autocast_dtype(query, key, value)
        return of_nothing(query, key, value, bound, options, captured)
    query, key, value, extents = checked(query, key, value, bound, enable_gqa, options)
    tensors = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in (query, key, value)]
    program, sources = trace_graph(body, tensors, has_score_mod, has_mask_mod, extents, query.device)
    _warn_of_masks(program, extents, options)
    part = taken_part(query, key, value, KeptTrace(program, ()), sources, bound, options)
    return _by_operator(query, part, dropout if spec.dropout else None, with_lse)


flex_attention_operator.attend = attend_graph


def part_of_call(query, key, value, score_mod, mask_mod, enable_gqa, spec, step=None):
    """(Part, captures.learned()) of a call, which isn't run. spec: a CallSpec. step: the stripes.Step that the functions are of."""
    options = options_of(spec)
    query, key, value, traced, sources = _traced(query, key, value, score_mod, mask_mod, enable_gqa, options)
    if step is not None:
        traced, sources = step.rewritten(traced, sources)
    return taken_part(query, key, value, traced, sources, (), options), learned(sources)


def learned_by_call(query, key, value, score_mod, mask_mod, enable_gqa, spec):
    """captures.learned() of a call, which isn't run. Raises what it would for its functions."""
    *_, sources = _traced(query, key, value, score_mod, mask_mod, enable_gqa, options_of(spec))
    return learned(sources)


def _traced(query, key, value, score_mod, mask_mod, enable_gqa, options):
    check_without_factors(query, key, "context_parallel_attention")
    query, key, value, extents = checked(query, key, value, (), enable_gqa, options)
    functions, captured = key_of(score_mod, mask_mod)
    traced, sources, _ = kept_trace((score_mod, mask_mod), functions, captured, extents, query.device)
    return query, key, value, traced, sources


def checked(query, key, value, bound, enable_gqa, options):
    """(query, key, value, Extents), the tensors in the dtype that is computed in."""
    check_places(query, key, value)
    query, key, value = in_autocast_dtype(query, key, value)
    check_dtypes(query, key, value)
    if options.place is None:
        key, value = of_each_batch(query, key, value)
    sizes = options.sizes(query, key, value, bound)
    if sizes.heads_q != sizes.heads_kv and not enable_gqa:
        raise InvalidArgumentError(
            f"key: expected the number of heads of query, {sizes.heads_q}, found {sizes.heads_kv}; enable_gqa=True lets groups of query's heads share one"
        )
    return (
        query,
        key,
        value,
        Extents(*zip(options.offsets, sizes.axes().values()), are_limits=options.limits(), is_part=options.offsets is not NO_OFFSETS and not options.q_start),
    )


def _warn_of_masks(program, extents, options):
    is_known = isinstance(extents.q_idx[1], int) and isinstance(extents.kv_idx[1], int)  # a graph may leave sizes open
    if is_known and options.offsets is NO_OFFSETS and not options.is_ragged:
        warn_of_decode_masks(program, extents.q_idx[1], extents.kv_idx[1], 4)


def _by_operator(query, part, dropout, with_lse):
    """(o, lse, largest scores, largest magnitude) of a Part."""
    refuse_tangents(query, part.key, part.value, *part.operands)
    with_lse = with_lse or part.sink_after is not None
    tensors = all_taken(query, part.key, part.value, part.backward)
    o, lse, *others = attention(*tensors, part.operands, dropout, part.wanted, part.backward, with_lse, part.text)
    if part.sink_after is not None:
        o, lse = with_sink(o, lse, part.sink_after, part.offsets_q)
    return o, lse, *others


def in_autocast_dtype(*tensors: torch.Tensor) -> Any:
    """The tensors in the dtype that torch.autocast asks for."""
    if not torch._C._is_any_autocast_enabled():  # pyright: ignore[reportPrivateUsage]  # a sixth of the time that asking for one device takes
        return tensors
    device = tensors[0].device.type
    if device not in MEMORY or not torch.is_autocast_enabled(device):  # others are refused, and some of them autocast doesn't know
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(each.to(dtype) if each.dtype in (torch.float32, torch.float16, torch.bfloat16) else each for each in tensors)
