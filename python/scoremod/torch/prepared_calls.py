"""Compiled problems with all that their calls have in common, in which a call puts nothing but addresses: those of tensors that look as they were prepared for."""

import ctypes
import functools

import torch

from scoremod import library
from scoremod.open_attention import Handle
from scoremod.torch.looks import Look, Looks, span
from scoremod.torch.native import binding

_ALIGNMENT = 64
_new = binding.PreparedCall.__new__
# Tensors that are made for a call, whose memory is as large as they need. An output that the caller has is looked at before it is taken (outputs).
_MADE_HERE = {"forward": ("o", "lse", "max_logit", "amax_o"), "backward": ("dq", "dk", "dv")}


class Direction(binding.PreparedCall):
    """The calls of one direction of a compiled problem, whose tensors come in the order of their looks. Their workspace is PyTorch's.

    rows, is_like_query: of an eager forward, the shape of an LSE, and whether the output has the query's shape and strides. run_known() is the binding's: run() of tensors
    whose looks were compared already, as an eager call's were, which is found by its kind.
    """

    __slots__ = ("_looks", "_shapes", "of_all")

    def __init__(self, attention, direction, tensors, operands, gradients, workspace_bytes, call, device):
        """tensors: name of a field -> its Look; operands, gradients: (name of the operand, Look) each."""
        self.of_all = _OfAllSizes(direction, tensors, operands, gradients, call, device)
        self.of_all.guess(workspace_bytes)
        self._set(attention, attention._handle.value, [look.nbytes() for look in self.of_all.looks.values()], workspace_bytes, None)

    def _set(self, owner, handle, sizes, workspace_bytes, shapes):
        """owner: what keeps the handle; sizes: the bytes of each tensor; shapes: (shape, strides) of each tensor, None for those of of_all."""
        self._shapes, self._looks = shapes, None
        self.fix(self.of_all.signature, owner, handle, tuple(sizes), workspace_bytes)

    @property
    def looks(self):
        if self._looks is None:
            looks = self.of_all.looks
            if self._shapes is not None:
                pairs = zip(looks.items(), self._shapes, strict=True)
                looks = {name: Look(shape, stride, look.dtype, look.device) for (name, look), (shape, stride) in pairs}
            self._looks = Looks(looks)
        return self._looks

    def run(self, *tensors, dropout=None, offsets=None):
        """Calls it with these tensors. dropout: int64 [2] on the host, the seed and the offset of a problem that drops weights. offsets: the Offsets of one
        that has index offsets.

        Raises InvalidArgumentError for tensors that do not look as those that it was prepared for.
        """
        if not self.looks.fit(tensors):
            self.looks.refuse(self.of_all.function, tensors)
        self.run_known(tensors, dropout, offsets)

    def run_if_plain(self, *tensors, dropout=None, offsets=None):
        """run(), but False without a call where the tensors look otherwise, or are not plain ones (looks.hold_numbers)."""
        if not self.looks.fit(tensors, plain=True):
            return False
        self.run_known(tensors, dropout, offsets)
        return True

    def refuse_short(self, tensors):
        """Raises InvalidArgumentError for tensors whose storage ends before they do, which the binding finds."""
        self.looks.refuse_short(self.of_all.function, tensors)


class AtNewSizes(Direction):
    """A Direction at sizes that may never come again: each call finds the library's attention by the sizes, and the library holds each tensor's memory to them. Nobody
    asks for the workspace that they need, and calls have one of `guessed_bytes`, which is refused where it is too small."""

    __slots__ = ("_numbers", "_prepared", "_sizes")

    @staticmethod
    def of(of_all, prepared, layout, sizes, numbers, shapes):
        """prepared: the PreparedSizes that takes these sizes and numbers; layout: its layout_of(); shapes: (shape, strides) of each tensor."""
        made = _new(AtNewSizes)  # a third of the time of __init__()
        made.of_all, made._prepared, made._sizes, made._numbers = of_all, prepared, sizes, numbers
        made._shapes, made._looks = shapes, None
        made.open(of_all.signature, layout, sizes, numbers, of_all.guessed_bytes)
        return made

    def settled(self):
        """The Direction of these sizes with an attention and a workspace of its own. Raises what the library says of the sizes."""
        handle, workspace_bytes = self._prepared.at(self._sizes, self._numbers)
        self.of_all.guess(workspace_bytes)
        made = _new(Direction)
        made.of_all, made.rows, made.is_like_query = self.of_all, self.rows, self.is_like_query
        pairs = zip(self.of_all.looks.values(), self._shapes, strict=True)
        made._set(Handle(handle), handle, [span(*shape) * look.dtype.itemsize for look, shape in pairs], workspace_bytes, self._shapes)
        return made


class _OfAllSizes:
    """The part of a Direction that is the same at all sizes.

    looks: name -> the Look of each tensor at the first. signature: the binding's. guessed_bytes: of a workspace that is large enough at most sizes.
    """

    def __init__(self, direction, tensors, operands, gradients, call, device):
        self.tensors, self.operands, self.gradients = tensors, operands, gradients
        self.function = f"scoremod_attention_{direction}"
        of_operands = {f"operand {name}": look for name, look in operands} | {f"gradient of operand {name}": look for name, look in gradients}
        self.looks = tensors | of_operands
        self.guessed_bytes = binding.KEPT_SCRATCH
        self.signature = binding.Signature.make(
            ctypes.cast(library.load().scoremod_attention_call, ctypes.c_void_p).value,
            direction == "forward",
            tuple(tensors),
            tuple(_address_of_name(name) for name, _ in operands),
            tuple(_address_of_name(name) for name, _ in gradients),
            call.scale,
            tuple(look.dtype.itemsize for look in self.looks.values()),
            _MADE_HERE[direction],
            device.index if device.type == "cuda" else -1,
            _names,
            _stream_of(device),
            functools.partial(_scratch, device),
            functools.partial(_refuse, self.function),
            _put_aligned,
        )

    def guess(self, workspace_bytes):
        """Learns what a workspace needs at some sizes."""
        if workspace_bytes > self.guessed_bytes:
            self.guessed_bytes = max(workspace_bytes, min(2 * workspace_bytes, _MOST_GUESSED))


def layout_of(prepared):
    """The binding's layout of the sizes that a PreparedSizes takes."""
    return binding.SizesLayout.make(prepared, prepared.open, prepared.strided, prepared.named_operands())


def _refuse(function, status, message):
    """Raises what a call reported. message: its address."""
    library.raise_error(function, status, ctypes.c_void_p(message))


# A guess of what other sizes need isn't larger than this, or than what some sizes needed.
_MOST_GUESSED = 1 << 26


def _scratch(device, size):
    """(tensor, aligned address) of so many bytes. PyTorch's allocator, which knows the stream, keeps the memory for the next call."""
    tensor = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    return tensor, -(-tensor.data_ptr() // _ALIGNMENT) * _ALIGNMENT


def _put_aligned(words, tensors):
    """Copies the tensors that begin in between, such as a view from some element on, and puts the copies' addresses in the places of their own.

    A call's outputs are memory of their own, which begins where it should, and are never copied.
    """
    copies = []
    for place, tensor in enumerate(tensors):
        if tensor.data_ptr() % binding.TENSOR_ALIGNMENT:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            copies.append(tensor.detach().as_strided((extent,), (1,)).clone())  # its gaps, too: the strides stay
            words[place] = copies[-1].data_ptr()
    return copies


@functools.cache
def _address_of_name(name):
    """The address of the operand's name as C has it; the text stays there."""
    text = ctypes.c_char_p(name.encode())
    _names.append(text)
    return ctypes.cast(text, ctypes.c_void_p).value


_names = []


def _stream_of(device):
    """A function that gives PyTorch's current stream on the device; None where there are no streams."""
    if device.type != "cuda":
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:  # what the public way wraps, in a tenth of its time
        return functools.partial(raw, device.index)
    return lambda: torch.cuda.current_stream(device).cuda_stream
