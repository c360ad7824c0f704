"""Tensors that autograd keeps for a backward. What it hands back may be others: hooks of saved tensors (torch.autograd.graph.saved_tensors_hooks) give what
they like, and a new .data changes a tensor under everybody."""

from scoremod.errors import InvalidArgumentError
from scoremod.torch.looks import hold_numbers, look_of

# In the order in which a call saves them, before its captured tensors.
_NAMES = ("query", "key", "value", "output", "log-sum-exp", "dropout's numbers")


def save(ctx, *tensors, looks=None):
    """ctx.save_for_backward of tensors, of which some may be None. looks: those of all, if they are known."""
    ctx.save_for_backward(*tensors)
    if looks is None and hold_numbers(*(tensor for tensor in tensors if tensor is not None)):  # not where a compiler looks at them
        looks = [None if tensor is None else look_of(tensor) for tensor in tensors]
    ctx.looks = looks


def as_saved(ctx, tensors, names=_NAMES):
    """The tensors that autograd handed back, in the dtypes in which they were saved. names: for messages; those after them are captured tensors.

    Raises InvalidArgumentError where one has another shape or device, or numbers that have no conversion.
    """
    if ctx.looks is None:
        return tensors
    names = [*names, *["captured tensor"] * (len(tensors) - len(names))]
    return [_as_saved(*each) for each in zip(names, tensors, ctx.looks)]


def _as_saved(name, tensor, look):
    if look is None:
        return tensor
    if tensor.shape == look.shape and tensor.device == look.device:
        if tensor.dtype == look.dtype:
            return tensor
        if tensor.dtype.is_floating_point and look.dtype.is_floating_point:  # a hook that keeps fewer bits
            return tensor.to(look.dtype)
    raise InvalidArgumentError(
        f"flex_attention's backward: expected the {name} that its forward saved, {look}; found {look_of(tensor)}. A hook of saved tensors "
        "(torch.autograd.graph.saved_tensors_hooks), or a new .data before the backward, changed it; hand back a tensor of the same shape and device, and of "
        "the same dtype unless both are floating-point"
    )
