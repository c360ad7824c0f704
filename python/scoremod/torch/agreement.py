"""The agreement of a group's processes before they send each other tensors. A process that has other sizes, or stops alone, would leave the
others waiting."""

import hashlib
import weakref
from typing import Any

import torch
import torch.distributed as dist

from scoremod.errors import InvalidArgumentError, UnsupportedError

_REFUSED = -1
# group -> the descriptions that its processes had alike.
_agreed = weakref.WeakKeyDictionary()


def agree(group, device, description, refusal=None):
    """Raises on all processes of the group unless all have the same description (name -> value), and none a refusal, an exception of its own.

    Tensors on the CPU are compared at each call. On a GPU a description is compared once, for the host would wait for the device each time.
    """
    agreed = _agreed.setdefault(group, set())  # of devices' calls alone
    number = _REFUSED if refusal is not None else _number_of(description)
    if device.type != "cpu" and number in agreed:
        return
    own = torch.tensor([number], dtype=torch.int64, device=device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    if number != _REFUSED and all(each == number for each in torch.cat(found).tolist()):
        if device.type != "cpu":
            agreed.add(number)
        return
    told: list[Any] = [None] * len(found)
    dist.all_gather_object(told, (description, None if refusal is None else (isinstance(refusal, UnsupportedError), str(refusal))), group=group)
    if refusal is not None:
        raise refusal
    for rank, (_, refused) in enumerate(told):
        if refused is not None:
            is_unsupported, message = refused
            raise (UnsupportedError if is_unsupported else InvalidArgumentError)(f"rank {rank} of the group refused its call: {message}")
    raise InvalidArgumentError(_difference([of_rank for of_rank, _ in told]))


def _number_of(description):
    """A number that other descriptions don't have, at least 0."""
    digest = hashlib.sha256(repr(sorted(description.items())).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def _difference(descriptions):
    """A message of what differs first."""
    name = next(name for name in descriptions[0] if any(each.get(name) != descriptions[0][name] for each in descriptions))
    ranks = {}
    for rank, each in enumerate(descriptions):
        ranks.setdefault(each.get(name), []).append(rank)
    found = ", and ".join(f"{value} on rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}" for value, of in ranks.items())
    return f"{name}: expected the same on each process of the group, found {found}"
