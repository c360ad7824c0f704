"""flex_attention: fused attention with a score function in plain PyTorch."""

import numbers
from typing import NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import AuxOutput, noop_mask

from scoremod.arguments import backend_names, finite, int32
from scoremod.attention import Offsets
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.finite_masks import warn_of_finite_masks
from scoremod.sizes import sizes_of
from scoremod.torch.attention_ops import attention
from scoremod.torch.call import Call, check_dtypes, check_places
from scoremod.torch.captures import Extents
from scoremod.torch.compiled_call import call_in_graph
from scoremod.torch.dtensors import Sharded, is_sharded
from scoremod.torch.eager_calls import EagerCall, is_plain, keep, kind_of, known
from scoremod.torch.kept_traces import KeptTrace, kept_trace, key_of
from scoremod.torch.lengths_and_sinks import bounded, with_sink
from scoremod.torch.other_arguments import refuse_others
from scoremod.torch.strides import taken
from scoremod.torch.trace import trace_graph


_NO_OFFSETS = Offsets()


def flex_attention(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
    mask_mod=None,
    lengths=None,
    sink=None,
    backends=None,
    deterministic=None,
    offsets=_NO_OFFSETS,
    dropout_p=0.0,
    **others,
):
    """O = softmax(score_mod(scale * Q K^T)) V over the keys that mask_mod keeps, as one fused call; torch.nn.attention.flex_attention's signature.

    query, key, value: float32, float16 or bfloat16 tensors [batch, heads, sequence, dim], on the CPU or CUDA. key and value may have fewer heads,
        a divisor of query's, with enable_gqa; value may have another head dim.
    score_mod(score, b, h, q_idx, kv_idx): the modified score. A plain function of 0-dim tensors: float32 score, int32 indices.
    mask_mod(b, h, q_idx, kv_idx): whether the query may look at the key. A query without any key gets output 0 and LSE -inf.
    block_mask: torch's BlockMask; its mask_mod is what counts, and which tiles need no work is found out anew.
    scale: a number; 1 / sqrt(head dim) without it.
    return_lse: also returns float32 [batch, heads, sequence], the natural log of each row's sum of exp of the modified scores.
    return_aux: torch's AuxRequest: of lse, and of max_scores, each row's largest modified score, which has no gradient.
    kernel_options: options of torch's kernels, which mean nothing here.
    lengths: an integer tensor [batch], how many keys of each batch take part, from 0 on; or a pair of such, for queries and keys, of which either may
        be None. Indices beyond are masked.
    sink: a float tensor [heads], or of one number: exp(sink) is added to the sum of each softmax, and no value goes with it. It has a gradient. The LSE
        counts it; a query without any key has LSE sink.
    backends: who may run it: names in order, and names to leave out with a "-" before them, as a list or with commas (docs/python.md).
    deterministic: whether the gradients must be the same bits each time; without it what torch.use_deterministic_algorithms says.
    offsets: scoremod.Offsets that are added to the indices, so that a shard of a larger problem sees true positions.

    dropout_p: the part of the weights that is dropped, from 0 to below 1; the others grow by 1 / (1 - dropout_p). Which ones follows from PyTorch's
        CPU generator (torch.manual_seed).

    The functions may close over tensors: slopes[h], bias[h, q_idx - kv_idx + n], ids[b, q_idx]. Gradients flow to query, key, value and to
    every captured float tensor. docs/torch.md says what the functions can be made of.

    Raises InvalidArgumentError (a ValueError) for what doesn't fit, and UnsupportedError for what can't be expressed or run.
    """
    refuse_others(others, mask_mod)
    mask_mod = _mask_of(block_mask, mask_mod)
    if return_lse and return_aux is not None:
        raise InvalidArgumentError("expected return_lse or return_aux, found both; return_aux=AuxRequest(lse=True) is torch's new way")
    if lengths is not None:
        mask_mod = bounded(mask_mod, lengths, query.shape[0])
    with_lse = bool(return_lse) or (return_aux is not None and return_aux.lse)
    with_max = return_aux is not None and return_aux.max_scores
    # On the host, where a call's numbers are: what the generator gives is the same on every device.
    dropout = torch.randint(2**62, (2,), dtype=torch.int64, device="cpu") if dropout_p else None
    arguments = (query, key, value, score_mod, mask_mod, dropout, bool(enable_gqa), with_lse or sink is not None)
    if torch.compiler.is_dynamo_compiling():
        o, lse, largest = call_in_graph(*arguments, (scale, backends, deterministic, *offsets, dropout_p, with_max))
    elif is_sharded(query):
        sharded = Sharded(query, key, value, offsets)
        functions = sharded.local(score_mod), sharded.local(mask_mod)
        options = _options(scale, backends, deterministic, sharded.offsets, dropout_p, with_max)
        o, lse, largest = sharded.results(*_attend(*sharded.tensors, *functions, *arguments[5:], options), sink)
        sink = None
    else:
        o, lse, largest = _attend(*arguments, _options(scale, backends, deterministic, offsets, dropout_p, with_max))
    if sink is not None:
        o, lse = with_sink(o, lse, sink)
    if return_aux is not None:
        return o, AuxOutput(lse=lse if with_lse else None, max_scores=largest if with_max else None)
    return (o, lse) if return_lse else o


def call_options(block_mask, mask_mod):
    """(mask_mod, Call of the defaults) of a call that isn't run."""
    return _mask_of(block_mask, mask_mod), _options(None, None, None, Offsets())


def _mask_of(block_mask, mask_mod):
    if block_mask is None:
        return mask_mod
    if mask_mod is not None:
        raise InvalidArgumentError("expected block_mask or mask_mod, found both; a BlockMask has its mask_mod")
    if not hasattr(block_mask, "mask_mod"):
        raise InvalidArgumentError(f"block_mask: expected torch's BlockMask, found {type(block_mask).__name__}; a function goes into mask_mod=")
    if block_mask.mask_mod is noop_mask:
        if block_mask.sparsity() > 0:
            raise UnsupportedError(
                "block_mask: expected one that was made of a mask_mod (create_block_mask), found one of blocks alone; write its blocks as a mask_mod: "
                "blocks[b, h, q_idx // 128, kv_idx // 128]"
            )
        return None
    return block_mask.mask_mod


def _options(scale, backends, deterministic, offsets, dropout_p=0.0, with_max=False):
    """The Call of everything but the program."""
    if scale is None and backends is None and deterministic is None and offsets is _NO_OFFSETS and not dropout_p and not with_max:
        return _DEFAULTS[torch.are_deterministic_algorithms_enabled()]
    if scale is not None:
        if not isinstance(scale, numbers.Real):
            raise InvalidArgumentError(f"scale: expected a number, found {scale!r:.100}; a learned factor goes into score_mod")
        scale = finite(scale, "scale")
        if abs(scale) > np.finfo(np.float32).max:
            raise InvalidArgumentError(f"scale: expected a number that float32 holds, found {scale!r}")
    if not isinstance(offsets, (tuple, list)) or len(offsets) > len(Offsets()):
        raise InvalidArgumentError(f"offsets: expected scoremod.Offsets(batch, head, query, key), found {offsets!r}")
    offsets = Offsets(*(int32(value, f"offsets.{axis}") for axis, value in Offsets(*offsets)._asdict().items()))
    if any(offset < 0 for offset in offsets):
        raise InvalidArgumentError(f"offsets: expected numbers that are not negative, found {offsets}")
    deterministic = torch.are_deterministic_algorithms_enabled() if deterministic is None else bool(deterministic)
    if not isinstance(dropout_p, numbers.Real) or not 0 <= dropout_p < 1:
        raise InvalidArgumentError(f"dropout_p: expected a number from 0 to below 1, found {dropout_p!r:.100}")
    return Call(None, scale, tuple(backend_names(backends)), deterministic, offsets, float(dropout_p), bool(with_max))


# Of the defaults, which most calls have.
_DEFAULTS = tuple(Call(None, None, (), deterministic, Offsets()) for deterministic in (False, True))


def _attend(query, key, value, score_mod, mask_mod, dropout, enable_gqa, with_lse, options):
    """(o, lse, largest scores)."""
    functions, captured = key_of(score_mod, mask_mod)
    if functions is None or not is_plain(query, key, value):
        query, key, value, extents = checked(query, key, value, enable_gqa, options)
        traced, sources, _ = kept_trace((score_mod, mask_mod), functions, captured, extents, query.device)
        return _by_operator(query, key, value, traced, sources, dropout, with_lse, options)
    query, key, value = _autocast(query, key, value)
    kind = kind_of(functions, captured, query, key, value, enable_gqa, with_lse, options)
    call = known(kind)
    if call is None:
        query, key, value, extents = checked(query, key, value, enable_gqa, options)
        traced, sources, is_kept = kept_trace((score_mod, mask_mod), functions, captured, extents, query.device)
        if not is_kept:
            return _by_operator(query, key, value, traced, sources, dropout, with_lse, options)
        _, wanted, backward, text = _arguments(query, key, value, traced, sources, options)
        call = EagerCall(query, key, value, captured, traced.sources, wanted, backward, with_lse, text)
        keep(kind, call)
    return call(query, key, value, captured, dropout)


def attend_graph(body, query, key, value, dropout, *, enable_gqa, with_lse, has_score_mod, has_mask_mod, options):
    """The same of a graph that torch.compile made: body(score, b, h, q_idx, kv_idx, query, key, value) -> (score, keep, ...)."""
    scale, backends, deterministic, *offsets, dropout_p, with_max = options
    options = _options(scale, backends, deterministic, offsets, dropout_p, with_max)
    query, key, value, extents = checked(query, key, value, enable_gqa, options)
    tensors = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in (query, key, value)]
    program, sources = trace_graph(body, tensors, has_score_mod, has_mask_mod, extents, query.device)
    return _by_operator(query, key, value, KeptTrace(program, ()), sources, dropout if dropout_p else None, with_lse, options)


class Part(NamedTuple):
    """A call of the operators: attention_ops has what their arguments are."""

    operands: list
    wanted: list
    backward: bool
    text: str


def part_of_call(query, key, value, score_mod, mask_mod, enable_gqa, options):
    """The Part of a call, which isn't run. options: scale, backends, deterministic, offsets."""
    options = _options(*options)
    query, key, value, extents = checked(query, key, value, enable_gqa, options)
    functions, captured = key_of(score_mod, mask_mod)
    traced, sources, _ = kept_trace((score_mod, mask_mod), functions, captured, extents, query.device)
    return Part(*_arguments(query, key, value, traced, sources, options))


def checked(query, key, value, enable_gqa, options):
    """(query, key, value, Extents), the tensors in the dtype that is computed in."""
    check_places(query, key, value)
    query, key, value = _autocast(query, key, value)
    check_dtypes(query, key, value)
    sizes = sizes_of("BHSD", query, key, value)
    if sizes.heads_q != sizes.heads_kv and not enable_gqa:
        raise InvalidArgumentError(
            f"key: expected the number of heads of query, {sizes.heads_q}, found {sizes.heads_kv}; enable_gqa=True lets groups of query's heads share one"
        )
    return query, key, value, Extents(*zip(options.offsets, sizes.axes().values()))


def _arguments(query, key, value, traced, sources, options):
    """(operands, those whose gradients are wanted, whether a backward may follow, Call.text()) of a call."""
    operands = [source.tensor(query.device) for source in sources]
    if query.is_cuda:
        warn_of_finite_masks(traced.program, sources, None, 5, "float('-inf')")
    learned = torch.is_grad_enabled()
    wanted = [i for i, operand in enumerate(operands) if learned and operand.requires_grad]
    backward = bool(wanted) or (learned and any(x.requires_grad for x in (query, key, value)))
    text = traced.texts.get(options)
    if text is None:
        text = traced.texts[options] = options._replace(program=traced.program).text()
    return operands, wanted, backward, text


def _by_operator(query, key, value, traced, sources, dropout, with_lse, options):
    operands, wanted, backward, text = _arguments(query, key, value, traced, sources, options)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in (query, key, value, *operands)):
        raise UnsupportedError("flex_attention has derivatives in reverse mode only, found a tensor with a tangent of torch.autograd.forward_ad")
    return attention(taken(query), taken(key), taken(value), operands, dropout, wanted, backward, with_lse, text)


def _autocast(*tensors):
    """The tensors in the dtype that torch.autocast asks for."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(each.to(dtype) if each.dtype in (torch.float32, torch.float16, torch.bfloat16) else each for each in tensors)
