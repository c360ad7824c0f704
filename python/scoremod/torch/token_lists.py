"""Token lists: each query attends to the keys that its row of a list names. The call becomes one on a paged KV cache with pages of one token, in which
each query is a sequence of its own. Whatever takes page tables runs it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import AuxOutput

from scoremod.call_spec import NO_OFFSETS
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.float8_factors import SCALE_BLOCK, are_block_scales
from scoremod.token_lists import MOST_TOKENS, refuse_beside, wrong_list, wrong_rank
from scoremod.torch.block_masks import mask_of
from scoremod.torch.call import LAYOUT
from scoremod.torch.checked_integers import checked_entries
from scoremod.torch.dtensors import is_sharded
from scoremod.torch.lengths_and_sinks import bounded
from scoremod.torch.other_arguments import refuse_tensor
from scoremod.torch.outputs import copied_to
from scoremod.torch.query_starts import at_positions
from scoremod.torch.sequences import SequenceArguments
from scoremod.user_functions import check_callable

_DTYPES = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)


class ListedCall(NamedTuple):
    """flex_attention's arguments that mean something else beside a token list. others: arguments by their names, with all that can't be given beside it."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    score_mod: Any
    mask_mod: Any
    block_mask: Any
    lengths: Any
    q_start: Any
    offsets: Any
    out: torch.Tensor | None
    others: dict[str, Any]


def attend_to_lists(attend: Callable[..., Any], token_list, call: ListedCall, **options):
    """flex_attention's results beside a token list. attend: flex_attention itself; options: its other arguments."""
    paged = paged_call(token_list, call)
    batch, _, queries, _ = call.query.shape
    out = None if call.out is None else _rows_of_out(call.out, call.query, call.value.shape[3], options["out_dtype"])
    shared = call.key.shape[0] == call.value.shape[0] == 1
    for name, tensor in (("descale_q", call.query), ("descale_k", call.key), ("descale_v", call.value)):
        options[name] = _scales_of_tokens(options[name], tensor, 1 if shared and tensor is not call.query else batch)
    results = attend(**paged, out=out, **options)
    several = results if type(results) is tuple else (results,)
    o, *others = (_of_queries(each, batch, queries) for each in several)
    if call.out is not None:
        o = call.out if out is not None else copied_to(call.out, o)
    return (o, *others) if others else o


def paged_call(token_list, call: ListedCall) -> dict[str, Any]:
    """flex_attention's arguments, by their names, of the call on pages that one with a token list becomes. Raises what that is refused with."""
    _check(token_list, call)
    query, key, value = call.query, call.key, call.value
    score_mod, mask_mod = _functions_of_indices(call)
    if key.shape[2] == 0:  # a pool has at least one page; no entry names it
        key, value = (torch.nn.functional.pad(each, (0, 0, 0, 1)) for each in (key, value))
    is_shared = key.shape[0] == value.shape[0] == 1  # then all batches read the same tokens
    listed = _listed(token_list, query, call.key.shape[2], 0 if is_shared else key.shape[2])
    score_mod, mask_mod = listed.functions(score_mod, mask_mod)
    batch = 1 if is_shared else query.shape[0]
    return {
        "query": _rows(query),
        "key": _tokens(key, batch),
        "value": _tokens(value, batch),
        "score_mod": score_mod,
        "mask_mod": mask_mod,
        "page_table": listed.pages,
        "lengths": listed.lengths,
    }


class _Listed(NamedTuple):
    """A list's rows, one for each query of each batch, [batch * queries, entries] in int32.

    keys: the index of each key in its sequence; below 0 for none. pages: its token among those of all batches. lengths: how many entries there are up to
    the last key, [batch * queries]. sizes: (batch, queries).
    """

    keys: torch.Tensor
    pages: torch.Tensor
    lengths: torch.Tensor
    sizes: tuple[int, int]

    def functions(self, score_mod, mask_mod):
        """The functions of a row's number and of an entry's place in it, for those of a call's indices. A kernel reads the indices, and divides nothing.
        They are never negative, which the trace is told: otherwise the sizes of all that they index would be part of the program."""
        keys = self.keys

        def is_key(b, h, q_idx, kv_idx):
            return keys[b, kv_idx] >= 0

        if all(each is None for each in (score_mod, mask_mod)):
            return None, is_key
        of_batch, of_query = _indices_of_rows(*self.sizes, keys.device)

        def indices(b, h, kv_idx):
            return of_batch[b].clamp(min=0), h, of_query[b].clamp(min=0), keys[b, kv_idx].clamp(min=0)

        def score_mod_of_rows(score, b, h, q_idx, kv_idx):
            return score_mod(score, *indices(b, h, kv_idx))

        def mask_mod_of_rows(b, h, q_idx, kv_idx):
            kept = mask_mod(*indices(b, h, kv_idx))
            # The tracer says what is wrong with other results.
            return (keys[b, kv_idx] >= 0) & kept if isinstance(kept, (bool, torch.Tensor)) else kept

        return None if score_mod is None else score_mod_of_rows, is_key if mask_mod is None else mask_mod_of_rows


def _indices_of_rows(batch, queries, device):
    """The batch and the query of each row, [batch * queries] in int32."""
    of_batch, of_query = (torch.arange(size, dtype=torch.int32, device=device) for size in (batch, queries))
    return of_batch[:, None].expand(batch, queries).reshape(-1), of_query.expand(batch, queries).reshape(-1)


def _listed(token_list, query, tokens, step):
    """The _Listed of a caller's list over so many tokens of each batch, which begin `step` tokens after those of the one before."""
    batch, _, queries, _ = query.shape
    # Narrow integers don't hold the number of tokens that they are compared with.
    entries = checked_entries(token_list if token_list.dtype == torch.int64 else token_list.to(torch.int32), tokens)
    if entries.shape[2] == 0:  # a page table has at least one column
        entries = entries.new_full((*entries.shape[:2], 1), -1)
    # Each of these is a kernel of its own on a GPU, and takes as long as a part of a decode step: there are no more than it takes.
    keys = torch.where(entries < tokens, entries, -1).clamp(min=-1).to(torch.int32)
    keys = keys.expand(batch, -1, -1).reshape(batch * queries, keys.shape[2])
    there = keys >= 0
    places = torch.arange(1, keys.shape[1] + 1, dtype=torch.int32, device=query.device)
    lengths = torch.where(there, places, 0).amax(1)
    # An entry without a key between others reads a key of its own row: no other memory, which may hold NaN, is ever read.
    pages = torch.where(there, keys, keys.amax(1, keepdim=True))
    if batch > 1 and step > 0:
        firsts = torch.arange(0, batch * step, step, dtype=torch.int32, device=query.device)
        pages = pages.view(batch, queries, pages.shape[1]).add(firsts[:, None, None]).view(pages.shape)
    return _Listed(keys, pages, lengths, (batch, queries))


def _functions_of_indices(call):
    """(score_mod, mask_mod) with all that the call says about positions: of a query's and a key's index in the call's tensors."""
    query, key = call.query, call.key
    refuse_tensor(call.mask_mod)
    mask_mod = mask_of(call.block_mask, call.mask_mod, query, key, False)
    for name, function in (("score_mod", call.score_mod), ("mask_mod", mask_mod)):
        if function is not None and not torch.compiler.is_dynamo_compiling():
            check_callable(name, function)
    score_mod = call.score_mod
    if call.q_start is not None:
        score_mod, mask_mod = at_positions(call.q_start, query, key, SequenceArguments(lengths=call.lengths), score_mod, mask_mod)
    if call.lengths is not None:
        mask_mod = bounded(mask_mod, call.lengths, query.shape[0], (query.shape[2], key.shape[2]))
    return score_mod, mask_mod


def _check(token_list, call):
    """Raises InvalidArgumentError unless the list fits the call's tensors, and nothing beside it says otherwise where keys are."""
    refuse_beside(call.others)
    if call.offsets is not NO_OFFSETS:
        raise InvalidArgumentError(f"token_list: expected no offsets beside it, found {call.offsets!r:.100}; give q_start= where queries begin later")
    query, key, value = call.query, call.key, call.value
    if any(map(is_sharded, (query, key, value, token_list))):
        raise UnsupportedError("token_list: expected no DTensors beside it, found them; call flex_attention with each process' own tensors")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
            found = f"shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise wrong_rank(name, "[batch, heads, sequence, dim]", found)
    batch = query.shape[0]
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape[0] not in (1, batch) or tensor.shape[2] != key.shape[2]:
            raise InvalidArgumentError(
                f"{name}: expected 1 or {batch} batches, as query has, of key's {key.shape[2]} tokens, found shape {tuple(tensor.shape)}"
            )
    is_list = isinstance(token_list, torch.Tensor) and token_list.dtype in _DTYPES and token_list.dim() == 3 and token_list.device == query.device
    if not is_list or token_list.shape[0] not in (1, batch) or token_list.shape[1] != query.shape[2]:
        found = (
            f"{token_list.dtype} of shape {tuple(token_list.shape)} on {token_list.device}"
            if isinstance(token_list, torch.Tensor)
            else type(token_list).__name__
        )
        raise wrong_list("signed integers or uint8", batch, query.shape[2], found, f" on {query.device}, where query is")
    if isinstance(key.shape[2], int) and batch * key.shape[2] > MOST_TOKENS:
        raise InvalidArgumentError(
            f"token_list: expected at most {MOST_TOKENS} tokens in all batches of key, found {batch * key.shape[2]}; attend to fewer batches in a call"
        )


def _rows(tensor):
    """[batch, heads, queries, dim] as one query of each of batch * queries sequences."""
    return tensor.transpose(1, 2).flatten(0, 1).unsqueeze(2)


def _tokens(tensor, batch):
    """The tokens of all batches as pages of one token, [tokens, heads, 1, dim]: a view where strides allow."""
    return _rows(tensor if tensor.shape[0] == batch else tensor.expand(batch, -1, -1, -1))


def _scales_of_tokens(scales, tensor, batch):
    """The block scales of a tensor's tokens, in the order of _tokens(); other factors as they are."""
    if not isinstance(scales, torch.Tensor) or not are_block_scales(scales.shape, LAYOUT, tensor.shape):
        return scales
    size = tensor.shape[2]
    if size == 0:  # nothing is read
        return torch.ones((), device=scales.device)
    if scales.shape[2] not in (1, size):
        scales = scales.to(torch.float32).index_select(2, torch.arange(size, device=scales.device) // SCALE_BLOCK)
    return _rows(scales.expand(batch, -1, size, -1))


def _of_queries(result, batch, queries):
    """A result of rows, [batch * queries, heads, 1, ...], as one of the caller's queries; a number stays one."""
    if isinstance(result, AuxOutput):
        return AuxOutput(*(each if each is None else _of_queries(each, batch, queries) for each in result))
    return result if result.dim() == 0 else result.squeeze(2).unflatten(0, (batch, queries)).transpose(1, 2)


def _rows_of_out(out, query, dim, dtype):
    """A caller's output as rows; None where no view of it has them, or where it can't be the call's output, which copying refuses."""
    batch, heads, queries, _ = query.shape
    expected = dtype or (torch.bfloat16 if query.dtype.itemsize == 1 else query.dtype)
    if (out.shape, out.dtype, out.device) != ((batch, heads, queries, dim), expected, query.device):
        return None
    try:
        return out.transpose(1, 2).view(batch * queries, heads, 1, dim)
    except RuntimeError:
        return None
