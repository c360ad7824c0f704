"""Lengths and page ids out of range are refused wherever their numbers are in host memory. Graphs of torch.compile and torch.export have no numbers
yet: there operators check them when they run.
"""

import torch

from scoremod.errors import InvalidArgumentError
from scoremod.torch.fold_batch import one_by_one

_library = torch.library.Library("scoremod", "FRAGMENT")
# An operator returns a copy of what it checked: one without a result that somebody reads would be dropped from a graph.
_library.define("lengths_within(Tensor lengths, SymInt? most, str of) -> Tensor")
_library.define("pages_within(Tensor table, Tensor lengths, SymInt blocks, SymInt block_size) -> Tensor")
_library.define("within_int32(Tensor integers, str name) -> Tensor")


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


def checked_int32(integers, name):
    """Integers of a graph as int32, refused where that doesn't hold them."""
    checked = torch.ops.scoremod.within_int32(integers, name) if on_host(integers) and integers.dtype == torch.int64 else integers
    return checked.to(torch.int32)


def _in_memory(tensor):
    """The tensor of numbers within torch.func's transformations; None where there are none."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor if type(tensor) in (torch.Tensor, torch.nn.Parameter) else None


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
    for b, (pages, length) in enumerate(zip(table.tolist(), lengths.tolist())):
        for i, page in enumerate(pages[: -(-length // block_size)] if length > 0 else ()):
            if not 0 <= page < blocks:
                raise InvalidArgumentError(
                    f"page_table: expected blocks from 0 to {blocks - 1}, found {page} at [{b}, {i}], which holds keys below the sequence's length of {length}"
                )
    return table.clone()


def _within_int32(integers, name):
    limits = torch.iinfo(torch.int32)
    number = next((each for each in integers.reshape(-1).tolist() if not limits.min <= each <= limits.max), None)
    if number is not None:
        raise InvalidArgumentError(f"{name}: expected integers from {limits.min} to {limits.max}, which int32 holds, found {number}")
    return integers.clone()


def _register(name, check):
    _library.impl(name, check, "CPU")
    torch.library.register_fake(f"scoremod::{name}", lambda integers, *_: torch.empty_like(integers), lib=_library)
    operator = getattr(torch.ops.scoremod, name)
    torch.library.register_vmap(f"scoremod::{name}", lambda info, in_dims, *arguments: _mapped(operator, info.batch_size, in_dims, *arguments), lib=_library)


def _mapped(operator, count, in_dims, *arguments):
    results, dims = one_by_one(lambda *each: (operator(*each),), count, in_dims, *arguments)
    return results[0], dims[0]


for _name, _check in (("lengths_within", _lengths_within), ("pages_within", _pages_within), ("within_int32", _within_int32)):
    _register(_name, _check)
