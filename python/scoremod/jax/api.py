"""flex_attention: fused attention with a score function in plain JAX."""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from scoremod.call_spec import CallSpec, check_flags, checked, wrong
from scoremod.changing_constants import warn_of_changing_constants
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.finite_masks import warn_of_finite_masks
from scoremod.jax.arrays import tensors
from scoremod.jax.layout_hint import warn_of_heads_before_positions
from scoremod.jax.call import Call, TracedCall, dtype_of, problem_text, split_scale
from scoremod.jax.differentiate import attend
from scoremod.jax.dropout import call_keys, with_float32_rate
from scoremod.jax.explicit_axes import attend_on_shards, explicit_axes
from scoremod.jax.fallbacks import warn_of_xla
from scoremod.jax.lengths_and_sinks import bounded, checked_lengths, checked_sink, with_sink
from scoremod.jax.float8 import cache_dtype, checked_factors, counts, is_float8, output_dtype
from scoremod.jax.manual_axes import vary_alike
from scoremod.jax.open_sizes import check_numbers, check_open, comparable, is_open
from scoremod.jax.operands import Computed
from scoremod.jax.own_fields import bound_arrays, takes_own_fields, trace_own_fields
from scoremod.jax.query_starts import started
from scoremod.jax.selection import ON_XLA, WAY_OUT, check_fallback, check_runs, chosen_backends, memory_of, platform_of
from scoremod.jax.sequences import MixedBatch, Pages, Sequences
from scoremod.jax.token_lists import ListedCall, attend_to_lists
from scoremod.jax.trace import trace
from scoremod.jax.xla_attention import xla_attention
from scoremod.large_operands import warn_of_large_operands
from scoremod.places import pages_layout
from scoremod.query_positions import named
from scoremod.signatures import Backends, Layout, MaskName, Modifier, NewSizes
from scoremod.sizes import LAYOUTS, sizes_of
from scoremod.unknown_arguments import arguments_of, refuse


def flex_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    score_mod: Modifier | None = None,
    mask_mod: Modifier | MaskName | None = None,
    *,
    scale: ArrayLike | None = None,
    layout: Layout | Literal["THD"] | None = None,
    lengths: ArrayLike | tuple[ArrayLike | None, ArrayLike | None] | None = None,
    q_offsets: ArrayLike | None = None,
    kv_offsets: ArrayLike | None = None,
    page_table: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    max_length: int | tuple[int, int] | None = None,
    q_start: ArrayLike | Literal["bottom_right"] | None = None,
    token_list: ArrayLike | None = None,
    sink: ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    descale_q: ArrayLike | None = None,
    descale_k: ArrayLike | None = None,
    descale_v: ArrayLike | None = None,
    scale_o: ArrayLike | None = None,
    scale_dq: ArrayLike | None = None,
    scale_dk: ArrayLike | None = None,
    scale_dv: ArrayLike | None = None,
    descale_d_o: ArrayLike | None = None,
    out_dtype: DTypeLike | None = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    return_amax_o: bool = False,
    deterministic: bool = False,
    backend: str | None = None,
    backends: Backends = None,
    new_sizes: NewSizes = None,
    fallback: Literal["xla"] | None = None,
    **unknown: Any,
) -> Any:
    """O = softmax(score_mod(scale * Q K^T)) V over the keys that mask_mod keeps, as one fused call.

    The functions may close over arrays: slopes[h], bias[h, q_idx - kv_idx + n], ids[b, q_idx]. Gradients flow to query, key, value and to every
    captured float array. `scoremod docs jax` says what the functions can be made of.

    Parameters
    ----------
    query, key, value : array
        float32, float16 or bfloat16 arrays (on XLA float64, too) in the order of `layout`. key and value may have fewer heads, a divisor of
        query's; value may have another head dim. Or all of float8_e4m3fn or float8_e5m2, or key and value alone (not on XLA).
    score_mod : function, optional
        score_mod(score, b, h, q_idx, kv_idx) returns the modified score. A plain JAX function of scalars: float32 score, int32 indices.
    mask_mod : function or str, optional
        mask_mod(b, h, q_idx, kv_idx) returns whether the query may look at the key. A query without any key gets output 0. Or a name: "causal" for
        q_idx >= kv_idx, "causal_bottom_right" for the same with q_start="bottom_right".
    scale : float or scalar array, optional
        The factor of Q K^T; 1 / sqrt(head dim) without it.
    layout : {"BSHD", "SBHD", "BHSD", "THD"}, optional
        The order of dimensions: batch, sequence, heads, dim; "BSHD" without it. "THD" goes with q_offsets.
    lengths : integer array [batch] or a pair, optional
        How many keys of each batch take part, from 0 on; or a pair of such, for queries and keys, of which either may be None. Indices beyond are
        masked on every backend. The host checks those that it knows. Others, inside jax.jit and without pages, are clamped to what there is.
    q_offsets : integer array [batch + 1], optional
        Varlen sequences: query [tokens, heads, dim], key and value [tokens_kv, heads_kv, dim] with layout="THD", and sequence b from q_offsets[b]
        up to q_offsets[b + 1]. Each attends to itself alone; the functions see its number as b and the positions in it. Tokens in no sequence
        get output 0. The LSE is [tokens, heads].
    kv_offsets : integer array [batch + 1], optional
        The offsets of the keys; q_offsets without it.
    page_table : integer array [batch, pages of a sequence] or a pair, optional
        Key and value are then a paged KV cache: B is the number of pages and S the positions in one. Position j of a sequence is in page
        page_table[b, j // page size]. Needs lengths of the keys; entries beyond them may be anything. A pair is for key and value. Backends that
        take page tables read the keys in place; for others, and for gradients, XLA gathers them before the attention. With q_offsets it is a mixed
        batch: key and value are [pages, page size, heads, dim], and lengths and rows of page_table are those of the sequences.
    max_length : int or (int, int), optional
        With q_offsets, the most tokens that any sequence has, or a pair for queries and keys; all tokens without it. A kernel's work is laid out
        for so many, and a longer sequence is refused where its offsets are known.
    q_start : int, integer array [batch] or "bottom_right", optional
        The index of the first query in its sequence, as in a step of decoding with a cache. It is added to q_idx. With "bottom_right" each
        sequence's last query stands at its last key, by lengths, offsets or shapes. Queries before its first key then have indices below 0.
    token_list : integer array [batch, queries, entries], optional
        The keys of each query, as in DeepSeek's sparse attention: entry j is the index in key and value of its key number j, for all heads. A negative
        entry stands for no key, and a repeated one counts as often as it is there. The functions see the entry as kv_idx. lengths and q_start mean
        what they do without a list. An entry beyond the keys is refused where the host knows it, and masked elsewhere. The batch may be 1 for all.
        For gradients, and for backends without page tables, XLA gathers the keys.
    sink : float array [heads] or float, optional
        exp(sink) is added to the sum of each softmax, and no value goes with it. It has a gradient. The LSE counts it; a query without any key
        has LSE sink. It is applied to the output and the LSE of backends that have none.
    dropout_rate : float
        The probability in [0, 1) with which each weight is left out of the output. The others are multiplied by 1 / (1 - dropout_rate), and the
        LSE is that of all.
    dropout_key : key of jax.random, optional
        It decides what is dropped; an argument of a jitted function like any other. With one key all backends, shards and mapped calls drop the
        same.
    descale_q, descale_k, descale_v : float or float array of one element, or of block scales, optional
        Positive factors of FP8 arrays: value = stored * descale; 1 without it. Another factor compiles nothing anew. Derivatives take factors for
        constants. With key and value alone in FP8, as a KV cache, descale_k and descale_v must be given, may be [KV heads], and nothing has gradients.
    scale_o : float or float array of one element, optional
        The factor of the output before it is rounded to FP8. Magnitudes beyond the dtype's largest number saturate.
    scale_dq, scale_dk, scale_dv : float or float array of one element, optional
        The factors of the gradients of FP8 arrays. Such a gradient has its array's dtype; it is rounded to bfloat16, then to that, and saturates.
        The default is the descale, which gives the derivative by the stored numbers.
    descale_d_o : float or float array of one element, optional
        The factor of the gradient of an FP8 output: value = stored * descale_d_o. The default is scale_o, for the derivative by the stored
        output.
    out_dtype : dtype, optional
        The output's dtype where query is FP8; bfloat16 without it. An FP8 one needs scale_o, and no other may have it.
    return_lse : bool
        Also returns float32 (float64 for such arrays) [batch, heads, seq_q]: the natural log of each row's sum of exp of the modified scores.
    return_max_logit : bool
        Also returns, last, the largest modified score of each row's kept keys, of the LSE's shape; -inf without one. It has no gradient, and
        leaves the sink out.
    return_amax_o : bool
        With FP8 arrays, also returns, after all, the largest magnitude in the output before scale_o. It is a float32 scalar without a gradient,
        and NaN where the output has one.
    deterministic : bool
        Whether the gradients must be the same bits each time. They always are on the CPU; `scoremod docs problem` says what it costs on CUDA.
        backend="xla" is as deterministic as XLA is.
    backend : str, optional
        The one that may run it, such as "cpu" or "cudnn"; or "xla", which runs it as XLA operations.
    backends : list of str or str, optional
        Names in order, of which the first that supports the call runs it. A "-" before a name leaves it out. A text has commas between names. Those
        for other memory than the platform's are passed over. Without a name the backend that is predicted to be the fastest. Without both,
        SCOREMOD_BACKENDS.
    new_sizes : {"wait", "serve"}, optional
        "wait" for the fastest backend's plan where it has to be built, or "serve": run a ready backend meanwhile. Without it, SCOREMOD_NEW_SIZES,
        else "serve", but "wait" with `deterministic`.
    fallback : {"xla"}, optional
        "xla" runs an attention that no such backend can run as XLA operations, instead of raising. It warns then, and
        scoremod.jax.fallback_counts() counts it.
    unknown
        Other arguments are refused. For those that PyTorch's and JAX's attention functions have, the error says what takes their place.

    Returns
    -------
    array or tuple of arrays
        The output, in the layout of query; a tuple where more is asked for.

    Raises
    ------
    InvalidArgumentError
        A ValueError, for arguments that don't fit.
    UnsupportedError
        For functions that can't be expressed, and for calls that no backend can run.
    """
    if unknown:
        refuse("flex_attention", unknown, arguments_of(flex_attention), ELSEWHERE)
    check_flags(return_lse=return_lse, return_max_logit=return_max_logit, return_amax_o=return_amax_o, deterministic=deterministic)
    query, key, value = tensors(query, key, value)
    if layout is None:
        layout = "BSHD"
        warn_of_heads_before_positions(query, key, 2)
    if not isinstance(layout, str):
        raise wrong("layout", f"a text, {', '.join(LAYOUTS)} or THD", layout, is_type=True)
    if token_list is not None:
        places = {"page_table": page_table, "q_offsets": q_offsets, "kv_offsets": kv_offsets, "max_length": max_length}
        return attend_to_lists(
            flex_attention,
            token_list,
            ListedCall(query, key, value, score_mod, mask_mod, layout, lengths, q_start, places),
            scale=scale,
            sink=sink,
            dropout_rate=dropout_rate,
            dropout_key=dropout_key,
            descale_q=descale_q,
            descale_k=descale_k,
            descale_v=descale_v,
            scale_o=scale_o,
            scale_dq=scale_dq,
            scale_dk=scale_dk,
            scale_dv=scale_dv,
            descale_d_o=descale_d_o,
            out_dtype=out_dtype,
            return_lse=return_lse,
            return_max_logit=return_max_logit,
            return_amax_o=return_amax_o,
            deterministic=deterministic,
            backend=backend,
            backends=backends,
            new_sizes=new_sizes,
            fallback=fallback,
        )
    check_fallback(fallback)
    placed = placed_of(query, key, value, layout, q_offsets, kv_offsets, page_table, lengths, max_length)
    mask_mod, q_start = named(mask_mod, q_start)
    if q_start is not None:
        score_mod, mask_mod = started(q_start, query, key, layout, placed, lengths, score_mod, mask_mod)
    descales = {"descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v}
    gradient_scales = {"scale_dq": scale_dq, "scale_dk": scale_dk, "scale_dv": scale_dv, "descale_d_o": descale_d_o}
    dtype_kv = cache_dtype(query, key)
    kv_layout = pages_layout(layout) if placed is not None and placed.is_paged else layout
    heads = None if dtype_kv is None else _heads_of_cache(query, key, value, layout, placed, kv_layout)
    scaled = dict(zip(descales, ((layout, query.shape), (kv_layout, key.shape), (kv_layout, value.shape))))
    factors, dtype_o, block_scales = checked_factors(query, scaled, descales, scale_o, gradient_scales, out_dtype, return_amax_o, heads)
    if sink is not None and (scale_o is not None or return_amax_o):
        raise UnsupportedError(
            "sink: expected no scale_o and no return_amax_o beside it, found one: they apply to the output before the sink does. Scale the output afterwards"
        )
    keys = functools.partial(call_keys, dropout_key)
    of_call, of_gradients = counts(factors, dtype_kv)
    number, array = split_scale(scale)
    given = CallSpec(
        scale=number,
        backends=chosen_backends(backend, backends),
        deterministic=deterministic,
        new_sizes=new_sizes,
        dropout=dropout_rate,
        with_max=return_max_logit,
        dtype_o=dtype_o,
        amax_o=return_amax_o,
        factors=of_call,
        gradient_factors=of_gradients,
        dtype_kv=dtype_kv,
        block_scales=block_scales,
    )
    spec = with_float32_rate(checked(given))
    results: tuple[Any, ...] | None = None
    if (placed is not None or sink is not None) and not (factors and dtype_kv is None):
        results = _in_own_fields(query, key, value, score_mod, mask_mod, spec, array, layout, keys, placed, lengths, sink, bool(return_lse), fallback, factors)
    if results is None:
        results = _in_arrays(query, key, value, score_mod, mask_mod, spec, array, layout, keys, placed, lengths, sink, bool(return_lse), fallback, factors)
    return results if len(results) > 1 else results[0]  # pyright: ignore[reportGeneralTypeIssues]


def _heads_of_cache(query, key, value, layout, placed, kv_layout):
    """How many KV heads an FP8 cache has."""
    if placed is None:
        return sizes_of(layout, query, key, value, may_be_empty=True).heads_kv
    return key.shape[kv_layout.index("H")]


def placed_of(query, key, value, layout, q_offsets, kv_offsets, page_table, lengths, max_length):
    """The Sequences, Pages or MixedBatch of the arguments; None for dense tensors. Lengths are checked, too."""
    placed = _placed_of(query, key, value, layout, q_offsets, kv_offsets, page_table, lengths, max_length)
    if lengths is not None:
        if placed is None:
            sizes = sizes_of(layout, query, key, value, may_be_empty=True)
            batch, most = sizes.batch, (sizes.seq_q, sizes.seq_kv)
        else:
            batch, most = placed.batch, placed.most()
        checked_lengths(lengths, batch, most)
    return placed


def _placed_of(query, key, value, layout, q_offsets, kv_offsets, page_table, lengths, max_length):
    ragged = q_offsets is not None or kv_offsets is not None
    if max_length is not None and not ragged:
        raise InvalidArgumentError("max_length: expected q_offsets beside it, found none; other tensors have their sequences' length")
    if page_table is not None:
        if kv_offsets is not None:
            raise InvalidArgumentError("page_table: expected no kv_offsets beside it, found them; page_table and lengths say where the keys are")
        if ragged:
            check_numbers("q_offsets", query, key, value, *([q_offsets] if hasattr(q_offsets, "shape") else []))
            return MixedBatch(query, key, value, q_offsets, page_table, lengths, layout, max_length)
        if "B" in layout and len(query.shape) != len(layout):
            raise InvalidArgumentError(f"query: expected {len(layout)} dimensions for layout {layout}, found shape {tuple(query.shape)}")
        return Pages(key, value, page_table, lengths, layout, query.shape[layout.index("B")] if "B" in layout else 0)
    if not ragged:
        return None
    check_numbers("q_offsets", query, key, value, *(offsets for offsets in (q_offsets, kv_offsets) if hasattr(offsets, "shape")))
    return Sequences(query, key, value, q_offsets, kv_offsets, layout, max_length)


def _in_own_fields(query, key, value, score_mod, mask_mod, spec, scale, layout, keys, placed, lengths, sink, return_lse, fallback, factors):
    """The results, in a tuple, on a backend that takes the problem's own fields; None where none does. Called by flex_attention, to whose caller
    warnings point."""
    if spec.backends == ON_XLA:
        return None
    traced = traced_in_own_fields(query, key, value, score_mod, mask_mod, spec, scale, layout, placed, lengths, sink)
    if traced is None:
        return None
    platform = platform_of(query, key, value)
    if fallback is not None:
        try:
            check_runs(traced.problem, traced.call, platform, traced.has_open_sizes, backward=traced.call.has_backward)
        except UnsupportedError:
            return None
    warn_of_finite_masks(traced.call.program, traced.sources, memory_of(platform), 3)
    warn_of_large_operands(_computed_by_xla(traced), "XLA", 3)
    warn_of_changing_constants(traced.call.program, "jnp.asarray(x)", 3)
    operands = [source.array() for source in traced.sources] + bound_arrays(traced.call, query, placed, sink, keys) + factors
    result = _run(traced.call, query, key, value, operands, return_lse)
    return result if isinstance(result, tuple) else (result,)


def traced_in_own_fields(query, key, value, score_mod, mask_mod, spec, scale, layout, placed, lengths, sink):
    """The TracedCall that a backend runs with the problem's own fields; None where none does. query, key and value may be shapes. scale: an array
    or None."""
    unlike_pages = placed is not None and placed.place() is None
    if 0 in (*query.shape, *key.shape, *value.shape) or unlike_pages or is_float8(query):
        return None
    mask_mod = _bounded(mask_mod, placed, lengths, query, layout, keys_too=placed is None or not placed.is_paged)
    try:
        dtype_of(query, key, value, float8=True)
        memory = memory_of(platform_of(query, key, value))
        traced = trace_own_fields(query, key, value, score_mod, mask_mod, spec, scale, layout, placed, sink)
    except UnsupportedError:
        return None
    return traced if takes_own_fields(traced, memory) else None


def tensors_without_fields(query, key, value, placed):
    """Tensors of a call without fields of its own: the tokens of all sequences as one, or gathered keys."""
    if placed is not None and placed.is_paged:
        key, value = placed.gathered()
    return [array[None] for array in (query, key, value)] if isinstance(placed, Sequences) else [query, key, value]


def functions_without_fields(score_mod, mask_mod, query, layout, placed, lengths):
    """The two functions as they see such tensors, and their layout."""
    mask_mod = _bounded(mask_mod, placed, lengths, query, layout)
    if isinstance(placed, Sequences):
        return placed.score_mod(score_mod), placed.mask_mod(mask_mod), "BSHD"
    return score_mod, mask_mod, layout


def _in_arrays(query, key, value, score_mod, mask_mod, spec, scale, layout, keys, placed, lengths, sink, return_lse, fallback, factors):
    """The results, in a tuple, of tensors that no field of the problem describes: pages are gathered, sequences become one, and a sink is
    applied to the output. flex_attention calls it directly, so that warnings point to its caller."""
    sequences = placed if isinstance(placed, Sequences) else None
    if placed is not None and placed.is_paged and spec.block_scales:
        name = spec.block_scales.partition("=")[0]
        raise UnsupportedError(f"{name}: expected one factor, or a backend that reads pages as they lie, found scales of blocks of pages that are gathered")
    score_mod, mask_mod, layout = functions_without_fields(score_mod, mask_mod, query, layout, placed, lengths)
    query, key, value = tensors_without_fields(query, key, value, placed)
    sizes = sizes_of(layout, query, key, value, may_be_empty=True)
    dropout = [keys(jnp.arange(sizes.batch, dtype=jnp.int32))] if spec.dropout else []
    if sequences is not None and dropout:
        if spec.backends != ON_XLA:
            reason = "dropout_rate: expected a backend that takes q_offsets as they are, whose positions decide what is dropped, found none among those for this call"
            if fallback is None:
                raise UnsupportedError(f"{reason}; {WAY_OUT}")
            warn_of_xla(reason, 3)
        spec = spec._replace(backends=ON_XLA)
        (of_query, position), (_, of_key) = sequences.tokens_places()
        dropout = [of_query, position, of_key, *dropout]
    with_lse = return_lse or sink is not None
    if 0 in sizes:
        result = _of_nothing(query, sizes, with_lse, spec)
    else:
        result = _attention(query, key, value, score_mod, mask_mod, spec, scale, layout, with_lse, dropout + factors, fallback)
    o, *rows = result if isinstance(result, tuple) else (result,)
    amax_o = rows.pop() if spec.amax_o else None
    largest = rows.pop() if spec.with_max else None
    lse = rows[0] if with_lse else None
    if sink is not None:
        o, lse = with_sink(o, lse, checked_sink(sink, sizes.heads_q), layout)
    if sequences is not None:
        o, lse, largest = o[0], *(each if each is None else each[0].T for each in (lse, largest))  # pyright: ignore[reportIndexIssue]
    return (o, *[lse] * return_lse, *[largest] * spec.with_max, *[amax_o] * spec.amax_o)


def _bounded(mask_mod, placed, lengths, query, layout, keys_too=True):
    """The mask_mod that keeps indices below the lengths. keys_too: those of the keys as well."""
    if lengths is None:
        return mask_mod
    if placed is not None and placed.is_paged:
        of_queries = lengths[0] if isinstance(lengths, (tuple, list)) else None
        lengths = (of_queries, placed.gathered_lengths() if keys_too else None)
    return bounded(mask_mod, lengths, query.shape[layout.index("B")] if placed is None else placed.batch)


def _attention(query, key, value, score_mod, mask_mod, spec, scale, layout, with_lse, keys, fallback):
    """The output, or (output, lse, largest scores and magnitude) as far as they are wanted, of checked arguments; called by flex_attention, to whose caller warnings point."""
    if spec.backends != ON_XLA:
        try:
            dtype_of(query, key, value, float8=True)
            traced = trace_call(query, key, value, score_mod, mask_mod, spec, scale, layout)
            platform = platform_of(query, key, value)
            memory = memory_of(platform)
            if fallback is not None:  # otherwise what is refused raises where XLA compiles it, and nothing is compiled before
                check_runs(traced.problem, traced.call, platform, traced.has_open_sizes)
        except UnsupportedError as error:
            if fallback is None:
                raise
            warn_of_xla(error, 4)
        else:
            warn_of_finite_masks(traced.call.program, traced.sources, memory, 4)
            warn_of_large_operands(_computed_by_xla(traced), "XLA", 4)
            warn_of_changing_constants(traced.call.program, "jnp.asarray(x)", 4)
            return _run(traced.call, query, key, value, [source.array() for source in traced.sources] + keys, with_lse)
    if spec.factors:
        raise UnsupportedError(
            f"expected query, key and value of 16 bits or more on XLA, found {key.dtype}; convert them with .astype(jnp.bfloat16), or use another backend"
        )
    dtype_of(query, key, value, on_xla=True)
    with comparable():
        scale = spec.scale if scale is None else scale
        o, lse, largest = xla_attention(query, key, value, score_mod, mask_mod, scale=scale, layout=layout, dropout=(spec.dropout, keys))
    return (o, *[lse] * with_lse, *[largest] * spec.with_max) if with_lse or spec.with_max else o


def _run(call, query, key, value, operands, with_lse):
    """attend() of arrays, and of what is bound after the operands, on whatever mesh they lie."""
    if explicit_axes(query):
        return attend_on_shards(call, query, key, value, operands, with_lse=with_lse)
    query, key, value, *operands = vary_alike([query, key, value, *operands])
    return attend(call, query, key, value, tuple(operands), with_lse=with_lse)


def _computed_by_xla(traced):
    """(axes, shape, bytes) of each operand that XLA computes for the indices that it depends on."""
    operands = zip(traced.call.program.operands, traced.sources, traced.operands)
    known = [each for each in operands if isinstance(each[1], Computed) and not is_open(each[2])]
    return [(decl.axes, shape.shape, shape.size * shape.dtype.itemsize) for decl, _, shape in known]


def _of_nothing(query, sizes, with_lse, spec):
    """The results of _attention() without queries or without keys, so that no row has a key."""
    o = jnp.zeros((*query.shape[:-1], sizes.dim_v), output_dtype(spec, query))
    rows = jnp.full((sizes.batch, sizes.heads_q, sizes.seq_q), -jnp.inf, query.dtype if query.dtype == jnp.float64 else jnp.float32)
    return (o, *[rows] * (with_lse + spec.with_max), *[jnp.float32(0)] * spec.amax_o)


# Arguments of other attention functions -> what takes their place here.
ELSEWHERE = {
    "block_mask": "give mask_mod alone: the compiler finds out itself which tiles need no work",
    "enable_gqa": "leave it out: key and value may always have fewer heads than query",
    "kernel_options": "leave it out: what runs is chosen by predicted times",
    "return_aux": "give return_lse=True, return_max_logit=True",
    "return_residual": "give return_lse=True",
    "dropout": "give dropout_rate= and dropout_key=",
    "causal": "give mask_mod=scoremod.jax.zoo.causal()",
    "window_size": "give mask_mod=scoremod.jax.zoo.sliding_window(...)",
    "segment_ids": "give mask_mod=lambda b, h, q_idx, kv_idx: segment_ids[b, q_idx] == segment_ids[b, kv_idx], as scoremod.jax.zoo.documents(segment_ids) is",
    "query_seq_lengths": "give lengths=(query_seq_lengths, key_value_seq_lengths)",
    "key_value_seq_lengths": "give lengths=key_value_seq_lengths",
    "bias": "add it in score_mod: lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx]",
    "mask": "read it in mask_mod: lambda b, h, q_idx, kv_idx: mask[b, h, q_idx, kv_idx]",
    "alibi_slopes": "give score_mod=scoremod.jax.zoo.alibi(alibi_slopes)",
    "soft_cap": "give score_mod=scoremod.jax.zoo.soft_cap(cap)",
    "precision": "leave it out: products are of the arrays' dtype with float32 sums",
    "scale": "give scale=",
    "page_table": "give page_table= and lengths=",
    **dict.fromkeys(("indices", "topk_indices"), "give token_list=, integers [batch, queries, entries]"),
    "offsets": 'give q_offsets= and kv_offsets= with layout="THD"',
    "lengths": "give lengths=",
    "backend": "give backend= or backends=",
    "sink": "give sink=",
}


def trace_call(query, key, value, score_mod, mask_mod, spec, scale, layout):
    """The TracedCall of flex_attention's arguments. query, key and value may be shapes. scale: an array or None."""
    sizes = sizes_of(layout, query, key, value)
    check_open(sizes)
    with comparable():
        program, sources = trace(score_mod, mask_mod, sizes.axes(), scale, like=(query, key, value))
        operands = [jax.eval_shape(source.array) for source in sources]
    call = Call.of(program, layout, spec)
    problem = problem_text(call, query, key, value, operands, backward=False, stats=True)
    return TracedCall(call, sources, operands, problem, is_open(query, key, value, *operands))
