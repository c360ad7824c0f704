"""Which tensors scoremod takes as they lie, and how those lie that it makes. Dimensions are [batch, head, sequence, dim], or of sequences one after
the other [token, head, dim]."""

import torch


def taken(tensor, *, is_only_read=False):
    """The tensor itself, or a contiguous copy of one whose elements share memory, or whose last dimension has gaps. is_only_read: whether no gradient is
    written with its strides, so that batches may share memory."""
    if tensor.is_contiguous():
        return tensor
    if tensor.shape[-1] != 1 and tensor.stride(-1) != 1:
        return tensor.contiguous()
    one = tensor[0] if is_only_read and tensor.dim() == 4 and tensor.stride(0) == 0 else tensor
    return tensor if _nested(one) else tensor.contiguous()


def all_taken(query, key, value, backward):
    """The three as they are taken; keys and values that batches share are copied for a backward alone."""
    return taken(query), taken(key, is_only_read=not backward), taken(value, is_only_read=not backward)


def of_each_batch(query, *tensors):
    """Key and value for each of query's batches, as views, where they have one for all."""
    if query.dim() != 4:
        return tensors
    return tuple(each.expand(query.shape[0], -1, -1, -1) if each.dim() == 4 and each.shape[0] == 1 and query.shape[0] != 1 else each for each in tensors)


def taken_operand(tensor, wanted):
    """An operand as it is taken; one whose gradient isn't wanted may repeat elements."""
    if tensor.is_contiguous() or _nested(tensor):
        return tensor
    return tensor.contiguous() if wanted or any(stride < 0 for stride in tensor.stride()) or not _nested(tensor, repeats=True) else tensor


def _nested(tensor, repeats=False):
    """Whether each stride is larger than what the inner dimensions span. repeats: but for strides of 0."""
    span = 0
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride == 0 and repeats:
            continue
        if stride <= span:
            return False
        span += stride * (size - 1)
    return True


def output_strides(query, dim):
    """The strides of a dense output with another head dim, whose dimensions have the query's order in memory."""
    outer = query.dim() - 1
    order = sorted(range(outer), key=lambda i: query.stride(i), reverse=True)
    strides, step = [*[0] * outer, 1], dim
    for i in reversed(order):
        strides[i] = step
        step = step * query.shape[i]
    return strides


def empty_output(query, value, dtype):
    shape = (*query.shape[:-1], value.shape[-1])
    return torch.empty_strided(shape, output_strides(query, value.shape[-1]), dtype=dtype, device=query.device)


def empty_like(tensor, dtype=None):
    """A new tensor with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device=tensor.device)


def lying_as(tensor, look):
    """The tensor with the strides and the dtype of a Look of its shape and device; itself where it has another shape or device."""
    if (tensor.stride() == look.stride and tensor.dtype == look.dtype) or tensor.shape != look.shape or tensor.device != look.device:
        return tensor
    return look.empty().copy_(tensor)
