"""Integers that callers give, held to what a call can do with them: int32, in which score programs compute, and lengths and page ids in range.

Integers in host memory are refused by name. Graphs of torch.compile and torch.export have no numbers yet: there operators check them when they run.
"""

import weakref

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from scoremod.bounded_cache import BoundedCache
from scoremod.errors import InvalidArgumentError
from scoremod.token_lists import wrong_entry
from scoremod.torch.fold_batch import one_by_one

INT32 = torch.iinfo(torch.int32)
# A limit that all integers of int32 keep.
ANY = -INT32.min
CAPTURED = "a captured tensor"

# On a device: id of a tensor -> (a weak reference to it, its state and limit) when its integers were looked at last. PyTorch counts what is written
# into a tensor, but for writes through .data; another look would cost as much as the rest of a call.
_checked = BoundedCache(1024)

_library = torch.library.Library("scoremod", "FRAGMENT")
# An operator returns a copy of what it checked: one without a result that somebody reads would be dropped from a graph.
_library.define("checked_int32(Tensor integers, int limit, str name) -> Tensor")
_library.define("lengths_within(Tensor lengths, SymInt? most, str of) -> Tensor")
_library.define("entries_within(Tensor entries, SymInt tokens) -> Tensor")
_library.define("pages_within(Tensor table, Tensor lengths, SymInt blocks, SymInt block_size) -> Tensor")


def checked_int32(tensor, limit, name):
    """The int32 tensor of one of int32 or int64. Raises InvalidArgumentError for integers of a larger magnitude than the limit, and for those that
    int32 doesn't hold; on a device an assertion does. name: of the tensor, for the message."""
    if tensor.numel():
        if tensor.device.type == "cpu":
            _check_on_host(tensor, limit, name)
        else:
            _check_on_device(tensor, limit)
    return tensor.to(torch.int32)


def int32_in_graph(tensor, name):
    """checked_int32() of a tensor of a graph that is being made."""
    return torch.ops.scoremod.checked_int32(tensor, ANY, name) if tensor.dtype == torch.int64 else tensor


def on_host(tensor):
    """Whether a call can look at its numbers without waiting for a device."""
    return tensor.device.type == "cpu"


def checked_starts(starts):
    """Integers [batch], refused where one is below 0."""
    return checked_lengths(starts, None, "q_start")


def checked_lengths(lengths, most, of):
    """Integers [batch], refused where one is no length from 0 to `most`; None where a shard's may be larger. of: "queries", "keys", or "q_start"."""
    if not on_host(lengths):
        return lengths
    if torch.compiler.is_dynamo_compiling():
        return torch.ops.scoremod.lengths_within(lengths, most, of)
    known = _in_memory(lengths)
    if known is None:
        return torch.ops.scoremod.lengths_within(lengths, most, of)
    _check_lengths(known, most, of)
    return lengths


def has_lengths(lengths, most):
    """Whether integers of one dimension in host memory are all from 0 to `most`."""
    numbers = lengths.tolist()
    return 0 <= min(numbers) and max(numbers) <= most


def checked_pages(table, lengths, blocks, block_size):
    """A table [batch, blocks of a sequence], refused where a block that holds keys below a length is none of the pool."""
    return table if not on_host(table) else torch.ops.scoremod.pages_within(table, lengths, blocks, block_size)


def checked_entries(entries, tokens):
    """The entries of token lists, refused where one is none of so many keys."""
    if not on_host(entries):
        return entries
    if torch.compiler.is_dynamo_compiling() or _in_memory(entries) is None:
        return torch.ops.scoremod.entries_within(entries, tokens)
    _check_entries(_in_memory(entries), tokens)
    return entries


def _in_memory(tensor):
    """The tensor of numbers within torch.func's transformations; None where there are none."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor if type(tensor) in (torch.Tensor, torch.nn.Parameter) else None


def _check_on_host(tensor, limit, name):
    """At each call: whoever shares the memory, as NumPy or .data, writes unseen."""
    low, high = (each.item() for each in torch.aminmax(tensor))
    lowest, highest = -limit, min(limit, INT32.max)
    if low >= lowest and high <= highest:
        return
    found = f"found {low if low < lowest else high}"
    expected = f"{name} of shape {tuple(tensor.shape)}: expected integers from {lowest} to {highest}"
    if limit == ANY:
        raise InvalidArgumentError(f"{expected}, which int32 holds, {found}; score programs have no others")
    raise InvalidArgumentError(
        f"{expected}, so that int32, which score programs compute in, holds what score_mod or mask_mod makes of them by additions, {found}; subtract what "
        "they have in common before"
    )


def _check_on_device(tensor, limit):
    state = None if tensor.is_inference() else (tensor._version, tensor.data_ptr(), tensor.shape, limit)
    reference, before = _checked.get(id(tensor), (None, None))
    if state is not None and state == before and reference() is tensor:
        return
    torch._assert_async(((tensor >= -limit) & (tensor <= min(limit, INT32.max))).all())  # pyright: ignore[reportPrivateImportUsage]  PyTorch has no public one
    _checked[id(tensor)] = weakref.ref(tensor), state


def _check_lengths(lengths, most, of):
    numbers = lengths.tolist() if lengths.dim() == 1 else lengths.reshape(-1).tolist()
    if numbers and (min(numbers) < 0 or (most is not None and max(numbers) > most)):
        number = next(each for each in numbers if each < 0 or (most is not None and each > most))
        expected = "from 0" if most is None else f"from 0 to {most}, how many there are"
        named = "q_start: expected indices" if of == "q_start" else f"lengths: expected lengths of {of}"
        raise InvalidArgumentError(f"{named} {expected}, found {number} of batch {numbers.index(number)}")


def _lengths_within(lengths, most, of):
    _check_lengths(lengths, most, of)
    return lengths.clone()


def _pages_within(table, lengths, blocks, block_size):
    used = torch.arange(table.shape[1]) * block_size < lengths[:, None]
    wrong = (used & ((table < 0) | (table >= blocks))).nonzero()
    if wrong.shape[0]:
        b, i = wrong[0].tolist()
        raise InvalidArgumentError(
            f"page_table: expected blocks from 0 to {blocks - 1}, found {table[b, i]} at [{b}, {i}], which holds keys below the sequence's length of {lengths[b]}"
        )
    return table.clone()


def _check_entries(entries, tokens):
    if entries.numel() and entries.max() >= tokens:
        place = (entries >= tokens).nonzero()[0].tolist()
        raise wrong_entry(place, entries[tuple(place)].item(), tokens)


def _entries_within(entries, tokens):
    _check_entries(entries, tokens)
    return entries.clone()


def _checked_int32(tensor, limit, name):
    checked = checked_int32(tensor, limit, name)
    return checked.clone() if checked is tensor else checked


def _fold(info, in_dims, tensor, *arguments):
    return torch.ops.scoremod.checked_int32(tensor, *arguments), in_dims[0]


def _mapped(operator, count, in_dims, *arguments):
    results, dims = one_by_one(lambda *each: (operator(*each),), count, in_dims, *arguments)
    return results[0], dims[0]


for _key in ("CPU", "CUDA"):
    _library.impl("checked_int32", _checked_int32, _key)
torch.library.register_fake("scoremod::checked_int32", lambda tensor, *_: torch.empty_like(tensor, dtype=torch.int32), lib=_library)
torch.library.register_vmap("scoremod::checked_int32", _fold, lib=_library)


def _register(name, check):
    _library.impl(name, check, "CPU")
    torch.library.register_fake(f"scoremod::{name}", lambda integers, *_: torch.empty_like(integers), lib=_library)
    operator = getattr(torch.ops.scoremod, name)
    torch.library.register_vmap(f"scoremod::{name}", lambda info, in_dims, *arguments: _mapped(operator, info.batch_size, in_dims, *arguments), lib=_library)


for _name, _check in (("lengths_within", _lengths_within), ("entries_within", _entries_within), ("pages_within", _pages_within)):
    _register(_name, _check)
