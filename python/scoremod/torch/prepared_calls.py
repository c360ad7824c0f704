"""Compiled problems with the structs of their calls, in which a call puts nothing but addresses: those of tensors that look as the structs were made for."""

import ctypes
import functools
import operator
import struct
from ctypes import addressof, c_uint64, sizeof
from itertools import chain

import torch

from scoremod import library
from scoremod.torch.looks import Looks, reach_their_ends

_ALIGNMENT = 64
# TMA loads tensors on a GPU from addresses that are multiples of it.
_TENSOR_ALIGNMENT = 16
_WORD = sizeof(c_uint64)
# Tensors that a call writes: their memory was made for it.
_RESULTS = {"forward": ("o", "lse", "max_logit", "amax_o"), "backward": ("dq", "dk", "dv")}


class Direction:
    """The calls of one direction of a compiled problem."""

    def __init__(self, attention, direction, tensors, operands, gradients, workspace_bytes, call, device):
        """tensors: name of a field -> its Look; operands, gradients: (name of the operand, Look) each.

        A call's tensors come in this order, and its workspace is PyTorch's.
        """
        of_operands = {f"operand {name}": look for name, look in operands} | {f"gradient of operand {name}": look for name, look in gradients}
        self.looks = Looks(tensors | of_operands)
        given = [(i, look) for i, (name, look) in enumerate([*tensors.items(), *operands]) if i >= len(tensors) or name not in _RESULTS[direction]]
        self._given, self._extents = operator.itemgetter(*(i for i, _ in given)), [(look.dtype.itemsize, look.nbytes()) for _, look in given]
        self._attention = attention  # which the handle belongs to
        self._handle = attention._handle.value
        self._name = f"scoremod_attention_{direction}"
        self._function = library.by_addresses(self._name)
        self._kind = {"forward": library.ForwardArgs, "backward": library.BackwardArgs}[direction]
        self.tensors, self.operands, self.gradients = tensors, operands, gradients
        self._workspace_bytes = workspace_bytes
        self._call, self._device = call, device
        self._stream = _stream_of(device)
        self._blocks = []

    def run(self, *tensors, dropout=None, offsets=None):
        """Calls it with these tensors. dropout: int64 [2] on the host, the seed and the offset of a problem that drops weights. offsets: the Offsets of one
        that has index offsets.

        Raises InvalidArgumentError for tensors that do not look as those that it was prepared for.
        """
        if not self.looks.fit(tensors):
            self.looks.refuse(self._name, tensors)
        self.run_known(*tensors, dropout=dropout, offsets=offsets)

    def run_if_plain(self, *tensors, dropout=None, offsets=None):
        """run(), but False without a call where the tensors look otherwise, or are not plain ones (looks.hold_numbers)."""
        if not self.looks.fit(tensors, plain=True):
            return False
        self.run_known(*tensors, dropout=dropout, offsets=offsets)
        return True

    def run_known(self, *tensors, dropout=None, offsets=None):
        """run() of tensors whose looks were compared already: this was found by them, as an eager call's is by its kind."""
        if not reach_their_ends(self._given(tensors), self._extents):
            self.looks.refuse_short(self._name, tensors)
        try:
            block = self._blocks.pop()
        except IndexError:  # each thread in a call has its own
            block = _Block(self._kind, self.tensors, self.operands, self.gradients, self._call)
        words = block.words
        low = 0
        for place, tensor in zip(block.places, tensors):
            words[place] = address = tensor.data_ptr()
            low |= address
        if low % _TENSOR_ALIGNMENT and self._stream is not None:
            # The copies live until the call is on the stream; after that PyTorch's allocator keeps their order.
            copies = _put_aligned(words, block.places, tensors)  # noqa: F841
        if self._workspace_bytes:
            # PyTorch's allocator, which knows the stream, keeps the memory for the next call.
            scratch = torch.empty(self._workspace_bytes + _ALIGNMENT, dtype=torch.uint8, device=self._device)
            words[block.workspace] = -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT
            words[block.workspace + 1] = self._workspace_bytes
        if self._stream is not None:
            words[block.stream] = self._stream()
        if dropout is not None:
            # The words hold what int64 does without a sign.
            words[block.dropout], words[block.dropout + 1] = dropout.tolist()
        if offsets is not None:
            batch, head, query, key = offsets  # int32 each, which are not negative
            words[block.offsets], words[block.offsets + 1] = batch | head << 32, query | key << 32
        status = self._function(self._handle, block.arguments, block.message)
        if status or words[0]:
            self._raise(status, words)
        self._blocks.append(block)

    def _raise(self, status, words):
        message = ctypes.c_void_p(words[0])
        words[0] = 0
        library.raise_error(self._name, status, message)


class _Block:
    """One call's structs, in one piece of memory: the message, the options, the arguments, operands and gradients of operands.

    words: all of it, in words, which are written as such: ctypes' own structs take ten times as long, and each new size has some. places: those of the
    tensors' addresses, in order.
    """

    def __init__(self, kind, tensors, operands, gradients, call):
        fields, arguments, named = _words_of(kind), 1 + _OPTIONS, 1 + _OPTIONS + sizeof(kind) // _WORD
        self.words = words = (c_uint64 * (named + (len(operands) + len(gradients)) * _NAMED))()
        self.message = base = addressof(words)
        self.arguments = base + arguments * _WORD
        self.stream, self.offsets, self.dropout = (1 + _OPTION_WORDS[name] for name in ("stream", "batch_offset", "dropout_seed"))
        self.workspace = arguments + fields["workspace"]

        words[1] = sizeof(library.CallOptions)
        if call.scale is not None:
            words[1 + _OPTION_WORDS["has_scale"]] = _SCALE.unpack(_HAS_SCALE.pack(1, call.scale))[0]
        words[arguments] = sizeof(kind)
        words[arguments + fields["options"]] = base + _WORD
        self.places = []
        for name, look in tensors.items():
            place = arguments + fields[name]
            words[place + 1] = look.nbytes()
            self.places.append(place)
        for i, (name, look) in enumerate(chain(operands, gradients)):
            place = named + i * _NAMED
            words[place], words[place + 2] = _address_of_name(name), look.nbytes()
            self.places.append(place + 1)
        words[arguments + fields["operands"]], words[arguments + fields["operand_count"]] = base + named * _WORD, len(operands)
        if gradients:
            first = base + (named + len(operands) * _NAMED) * _WORD
            words[arguments + fields["d_operands"]], words[arguments + fields["d_operand_count"]] = first, len(gradients)


@functools.cache
def _words_of(kind):
    """field -> the word of a struct that it begins in. Fields of half a word come in pairs."""
    return {name: getattr(kind, name).offset // _WORD for name, _ in kind._fields_}


_OPTIONS, _NAMED = sizeof(library.CallOptions) // _WORD, sizeof(library.NamedBuffer) // _WORD
_OPTION_WORDS = _words_of(library.CallOptions)
_HAS_SCALE, _SCALE = struct.Struct("=if"), struct.Struct("=Q")


def _put_aligned(words, places, tensors):
    """Copies the tensors that begin in between, such as a view from some element on, and puts the copies' addresses in their places.

    A call's outputs are memory of their own, which begins where it should, and are never copied.
    """
    copies = []
    for place, tensor in zip(places, tensors):
        if tensor.data_ptr() % _TENSOR_ALIGNMENT:
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
