"""Calls of the C interface with the memory of tensors, on PyTorch's current stream."""

import ctypes

import torch

from scoremod import library
from scoremod.attention import Attention
from scoremod.problem import OperandTensor, problem_json
from scoremod.program import operand_name
from scoremod.sizes import sizes_of
from scoremod.torch.call import DTYPE_NAMES, MEMORY, call_of

_ALIGNMENT = 64
_STRIDE_NAMES = ("batch", "head", "sequence", "dim")
# What was compiled for calls that look alike. The library keeps what is compiled, too, by the problem; this saves writing the problem.
_MAX_KEPT = 1024
_kept = {}


class _Compiled:
    """One problem, ready to be called."""

    def __init__(self, attention, backward):
        self.attention = attention
        self.handle = attention._handle
        self.forward_bytes = attention.forward_workspace_bytes
        self.backward_bytes = attention.backward_workspace_bytes if backward else 0


def forward(q, k, v, operands, o, lse, call, wanted, backward):
    """Fills o, and lse unless it is None."""
    compiled = _compiled(q, k, v, o, operands, call, wanted, backward, lse is not None)
    arguments = library.ForwardArgs(q=_buffer(q), k=_buffer(k), v=_buffer(v), o=_buffer(o))
    if lse is not None:
        arguments.lse = _buffer(lse)
    arguments.operands, arguments.operand_count = _named(operands, range(len(operands)))
    _run("scoremod_attention_forward", compiled.handle, arguments, compiled.forward_bytes, q, call)


def backward(q, k, v, o, lse, d_o, operands, dq, dk, dv, d_operands, call, wanted):
    """Fills dq, dk, dv and d_operands, which are those of the operands in `wanted`."""
    compiled = _compiled(q, k, v, o, operands, call, wanted, True, True)
    arguments = library.BackwardArgs(
        q=_buffer(q), k=_buffer(k), v=_buffer(v), o=_buffer(o), lse=_buffer(lse), d_o=_buffer(d_o), dq=_buffer(dq), dk=_buffer(dk), dv=_buffer(dv)
    )
    arguments.operands, arguments.operand_count = _named(operands, range(len(operands)))
    arguments.d_operands, arguments.d_operand_count = _named(d_operands, wanted)
    _run("scoremod_attention_backward", compiled.handle, arguments, compiled.backward_bytes, q, call)


def problem_of(q, k, v, o, operands, call, *, wanted, backward, stats):
    """The problem of these tensors as JSON: docs/problem.md. The scale isn't in it: it is bound at each call."""
    described = [
        OperandTensor(DTYPE_NAMES[operand.dtype], tuple(operand.shape), i in wanted, tuple(operand.stride())) for i, operand in enumerate(operands)
    ]
    return problem_json(
        sizes_of("BHSD", q, k, v),
        call.program,
        described,
        dtype=DTYPE_NAMES[q.dtype],
        layout="BHSD",
        backward=backward,
        stats=stats,
        deterministic=call.deterministic,
        index_offsets=any(call.offsets),
        tensors={name: dict(zip(_STRIDE_NAMES, tensor.stride())) for name, tensor in (("q", q), ("k", k), ("v", v), ("o", o))},
    )


def _compiled(q, k, v, o, operands, text, wanted, backward, stats):
    wanted = tuple(wanted)
    key = (text, wanted, backward, stats, q.dtype, q.device, *((x.shape, x.stride()) for x in (q, k, v, o)))
    key += tuple((x.shape, x.stride(), x.dtype) for x in operands)
    found = _kept.get(key)
    if found is None:
        call = call_of(text)
        problem = problem_of(q, k, v, o, operands, call, wanted=wanted, backward=backward, stats=stats)
        attention = Attention(problem, backends=list(call.backends), memory=MEMORY[q.device.type], device=q.device.index if q.is_cuda else None)
        if backward:
            attention.backward_backend  # refuses a backward that nothing runs, before the forward
        while len(_kept) >= _MAX_KEPT:
            _kept.pop(next(iter(_kept)), None)
        found = _kept[key] = _Compiled(attention, backward)
    return found


def _run(function, handle, arguments, workspace_bytes, q, text):
    call = call_of(text)
    options = library.CallOptions(has_scale=call.scale is not None, scale=call.scale or 0.0)
    if any(call.offsets):
        for axis, offset in call.offsets._asdict().items():
            setattr(options, f"{axis}_offset", offset)
    if q.is_cuda:
        options.stream = torch.cuda.current_stream(q.device).cuda_stream
    if workspace_bytes:
        # PyTorch's allocator, which knows the stream, keeps the memory for the next call.
        scratch = torch.empty(workspace_bytes + _ALIGNMENT, dtype=torch.uint8, device=q.device)
        arguments.workspace = library.Buffer(-(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT, workspace_bytes)
    arguments.options = ctypes.pointer(options)
    library.call(function, handle, arguments)


def _buffer(tensor):
    return library.Buffer(tensor.data_ptr(), _bytes(tensor))


def _bytes(tensor):
    """From the first element to the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    return (1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))) * tensor.element_size()


def _named(tensors, numbers):
    entries = (library.NamedBuffer * len(tensors))()
    for entry, number, tensor in zip(entries, numbers, tensors, strict=True):
        entry.name, entry.buffer = operand_name(number).encode(), _buffer(tensor)
    return entries, len(tensors)
