"""The tensor that a caller gives for an output."""

import torch

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.torch.dtensors import is_sharded
from scoremod.torch.looks import span


def check_out(out, query):
    """Raises where flex_attention's `out` can't be an output, as far as that is known before the call."""
    if is_sharded(query) or is_sharded(out):
        raise UnsupportedError("out: expected none beside DTensors, found one; leave it out")
    if not isinstance(out, torch.Tensor):
        raise InvalidArgumentError(f"out: expected a torch.Tensor, found {type(out).__name__}")
    if any([stride == 0 and size > 1 for size, stride in zip(out.shape, out.stride())]):  # noqa: C419 (faster)
        raise InvalidArgumentError(
            f"out: expected elements in places of their own, found shape {tuple(out.shape)} with strides {out.stride()}, as expand() makes; give its clone()"
        )
    if torch.is_grad_enabled():
        raise InvalidArgumentError(
            "out: expected gradients to be off, found them on; call within torch.no_grad() or torch.inference_mode(), or leave out= away, since a tensor that "
            "is written to has no derivative"
        )


def check_shape(out, shape, dtype, device):
    """Raises InvalidArgumentError for a caller's tensor that is no output of this shape, dtype and device, or whose storage ends before it does."""
    if out.shape != shape or out.dtype != dtype or out.device != device:
        name = str(dtype).removeprefix("torch.")
        raise InvalidArgumentError(
            f"out: expected {name} of shape {tuple(shape)} on {device}, as the output is, found {str(out.dtype).removeprefix('torch.')} of shape "
            f"{tuple(out.shape)} on {out.device}"
        )
    itemsize = out.element_size()
    end, found = (out.storage_offset() + span(out.shape, out.stride())) * itemsize, out.untyped_storage().nbytes()
    if found < end:
        raise InvalidArgumentError(
            f"out: expected its storage to have the {end} bytes of memory that it reaches, found {found}; it was resized (untyped_storage().resize_): give it "
            "its size back before the call"
        )


def copied_to(out, o):
    """The caller's tensor with what was computed elsewhere."""
    check_shape(out, o.shape, o.dtype, o.device)
    return out.copy_(o)
