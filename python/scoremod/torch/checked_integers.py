"""Integers of 64 bits as the int32 that score programs compute in, which hold them, or an error says that they don't."""

import weakref

import torch

from scoremod.errors import InvalidArgumentError
from scoremod.torch.bounded_cache import BoundedCache

INT32 = torch.iinfo(torch.int32)
# A limit that all integers of int32 keep.
ANY = -INT32.min

# On a device: id of a tensor -> (a weak reference to it, its state and limit) when its integers were looked at last. PyTorch counts what is written
# into a tensor, but for writes through .data; another look would cost as much as the rest of a call.
_checked = BoundedCache(1024)

_library = torch.library.Library("scoremod", "FRAGMENT")
_library.define("checked_int32(Tensor integers, int limit) -> Tensor")


def checked_int32(tensor, limit):
    """The int32 tensor of one of int32 or int64. Raises InvalidArgumentError for integers of a larger magnitude than the limit, and for those that
    int32 doesn't hold; on a device an assertion does."""
    if tensor.numel():
        (_check_on_host if tensor.device.type == "cpu" else _check_on_device)(tensor, limit)
    return tensor.to(torch.int32)


def _check_on_host(tensor, limit):
    """At each call: whoever shares the memory, as NumPy or .data, writes unseen."""
    low, high = (each.item() for each in torch.aminmax(tensor))
    lowest, highest = -limit, min(limit, INT32.max)
    if low >= lowest and high <= highest:
        return
    found = f"found {low if low < lowest else high}"
    expected = f"a captured tensor of shape {tuple(tensor.shape)}: expected integers from {lowest} to {highest}"
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
    torch._assert_async(((tensor >= -limit) & (tensor <= min(limit, INT32.max))).all())
    _checked[id(tensor)] = weakref.ref(tensor), state


def _run(tensor, limit):
    checked = checked_int32(tensor, limit)
    return checked.clone() if checked is tensor else checked  # an operator returns none of its arguments


def _fold(info, in_dims, tensor, limit):
    return torch.ops.scoremod.checked_int32(tensor, limit), in_dims[0]


for _key in ("CPU", "CUDA"):
    _library.impl("checked_int32", _run, _key)
torch.library.register_fake("scoremod::checked_int32", lambda tensor, limit: torch.empty_like(tensor, dtype=torch.int32), lib=_library)
torch.library.register_vmap("scoremod::checked_int32", _fold, lib=_library)
