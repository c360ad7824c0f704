"""Compiled problems with the structs of their calls, in which a call puts nothing but addresses: those of tensors that look as the structs were made for."""

import ctypes
import functools
import itertools
import operator
import struct
from ctypes import addressof, c_uint64, sizeof
from itertools import chain

import torch

from scoremod import library
from scoremod.open_attention import Handle
from scoremod.torch.looks import Look, Looks, behind_their_beginnings, reach_their_ends, span

_ALIGNMENT = 64
# TMA loads tensors on a GPU from addresses that are multiples of it.
_TENSOR_ALIGNMENT = 16
_WORD = sizeof(c_uint64)
_address_of = torch.Tensor.data_ptr
_serials = itertools.count(1)
_new = object.__new__
# Tensors that are made for a call, whose memory is as large as they need. An output that the caller has is looked at before it is taken (outputs).
_MADE_HERE = {"forward": ("o", "lse", "max_logit", "amax_o"), "backward": ("dq", "dk", "dv")}


class Direction:
    """The calls of one direction of a compiled problem, whose tensors come in the order of their looks. Their workspace is PyTorch's.

    rows, is_like_query: of an eager forward, the shape of an LSE, and whether the output has the query's shape and strides.
    """

    __slots__ = ("_bytes", "_handle", "_looks", "_owner", "_serial", "_shapes", "_spans", "_workspace_bytes", "is_like_query", "of_all", "rows")

    def __init__(self, attention, direction, tensors, operands, gradients, workspace_bytes, call, device):
        """tensors: name of a field -> its Look; operands, gradients: (name of the operand, Look) each."""
        self.of_all = _OfAllSizes(direction, tensors, operands, gradients, call, device)
        self.of_all.guess(workspace_bytes)
        sizes = [*[look.nbytes() for look in self.of_all.looks.values()], workspace_bytes]
        self._set(attention, attention._handle.value, sizes, None)

    def _set(self, owner, handle, sizes, shapes):
        """owner: what keeps the handle; sizes: the bytes of each tensor, and then of the workspace; shapes: (shape, strides) of each tensor, None for those of
        of_all."""
        self._owner, self._handle, self._serial = owner, handle, next(_serials)
        self._bytes, self._workspace_bytes, self._spans = sizes, sizes[-1], self.of_all.of_callers(sizes)
        self._shapes, self._looks = shapes, None

    def _describe(self, block):
        """Writes into a block all that calls of this Direction have in common."""
        words = block.words
        words[_ATTENTION], words[_SIZES], words[block.bytes] = self._handle, 0, self._bytes

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

    def run_known(self, tensors, dropout=None, offsets=None, keeps_scratch=False):
        """run() of tensors whose looks were compared already: this was found by them, as an eager call's is by its kind. keeps_scratch: whether its workspace may
        be one that other calls had, which none within a graph that replays may."""
        of_all, spans = self.of_all, self._spans
        if spans is not None and not reach_their_ends(of_all.of_callers(tensors), of_all.itemsizes, spans):
            self.looks.refuse_short(of_all.function, tensors)
        try:
            block = of_all.blocks.pop()
        except IndexError:  # each thread in a call has its own
            block = _Block(of_all)
        words, stream = block.words, of_all.stream
        if block.serial != self._serial:
            block.serial = self._serial
            self._describe(block)
        if spans is None:
            nbytes = behind_their_beginnings(tensors)
            if min(nbytes) < 0:  # the storage was made smaller
                self.looks.refuse_short(of_all.function, tensors)
            words[block.bytes] = [*nbytes, self._workspace_bytes]
        addresses = [*map(_address_of, tensors)]
        if stream is not None:
            low = 0
            for address in addresses:
                low |= address
            if low % _TENSOR_ALIGNMENT:
                # The copies live until the call is on the stream; after that PyTorch's allocator keeps their order.
                copies = _put_aligned(addresses, range(len(addresses)), tensors)  # noqa: F841
            words[block.stream] = stream = stream()
        pile = None
        if self._workspace_bytes:
            if keeps_scratch and self._workspace_bytes <= _KEPT_SCRATCH and (stream is None or not _is_capturing()):
                pile = _piles.get((of_all.device, stream))
                if pile is None:
                    pile = _new_pile(of_all.device, stream)
                try:
                    scratch = pile.pop()
                except IndexError:  # another thread's call has the last one
                    scratch = _scratch(_KEPT_SCRATCH, of_all.device)
            else:
                scratch = _scratch(self._workspace_bytes, of_all.device)
            addresses.append(scratch[1])
        else:
            addresses.append(0)
        words[block.addresses] = addresses
        if dropout is not None:
            # The words hold what int64 does without a sign.
            words[block.dropout], words[block.dropout + 1] = dropout.tolist()
        if offsets is not None:
            batch, head, query, key = offsets  # int32 each, which are not negative
            words[block.offsets], words[block.offsets + 1] = batch | head << 32, query | key << 32
        status = block.call(block.first, block.message)
        if status:
            of_all.refuse(status, words)
        if pile is not None:
            pile.append(scratch)
        of_all.blocks.append(block)


class AtNewSizes(Direction):
    """A Direction at sizes that may never come again: each call finds the library's attention by the sizes, and the library holds each tensor's memory to them. Nobody
    asks for the workspace that they need, and calls have one of `guessed_bytes`, which is refused where it is too small."""

    __slots__ = ("_numbers", "_prepared", "_sizes")

    @staticmethod
    def of(of_all, prepared, sizes, numbers, shapes):
        """prepared: the PreparedSizes that takes these sizes and numbers; shapes: (shape, strides) of each tensor."""
        made = _new(AtNewSizes)  # a third of the time of __init__()
        made.of_all, made._prepared, made._sizes, made._numbers = of_all, prepared, sizes, numbers
        made._shapes, made._looks, made._spans, made._serial, made._workspace_bytes = shapes, None, None, next(_serials), of_all.guessed_bytes
        return made

    def settled(self):
        """The Direction of these sizes with an attention and a workspace of its own. Raises what the library says of the sizes."""
        handle, workspace_bytes = self._prepared.at(self._sizes, self._numbers)
        self.of_all.guess(workspace_bytes)
        made = _new(Direction)
        made.of_all, made.rows, made.is_like_query = self.of_all, self.rows, self.is_like_query
        pairs = zip(self.of_all.looks.values(), self._shapes, strict=True)
        sizes = [span(*shape) * look.dtype.itemsize for look, shape in pairs]
        made._set(Handle(handle), handle, [*sizes, workspace_bytes], self._shapes)
        return made

    def _describe(self, block):
        if block.sizes is None:
            block.sizes = self._prepared.struct()
        words, base, *_ = block.sizes
        self._prepared.write(words, self._sizes, self._numbers)
        words = block.words
        words[_ATTENTION], words[_SIZES] = self._prepared.open, base


class _OfAllSizes:
    """The part of a Direction that is the same at all sizes.

    looks: name -> the Look of each tensor at the first. of_callers: gives what belongs to the tensors that callers have, of what belongs to all; itemsizes: the bytes
    of an element of each of these. blocks: structs that no call is being made with. guessed_bytes: of a workspace that is large enough at most sizes.
    """

    def __init__(self, direction, tensors, operands, gradients, call, device):
        self.direction, self.tensors, self.operands, self.gradients, self.call, self.device = direction, tensors, operands, gradients, call, device
        self.function = f"scoremod_attention_{direction}"
        of_operands = {f"operand {name}": look for name, look in operands} | {f"gradient of operand {name}": look for name, look in gradients}
        self.looks = tensors | of_operands
        places = [i for i, name in enumerate(self.looks) if name not in _MADE_HERE[direction]]
        self.of_callers = operator.itemgetter(*places)
        self.itemsizes = self.of_callers([look.dtype.itemsize for look in self.looks.values()])
        self.stream, self.blocks, self.guessed_bytes = _stream_of(device), [], _KEPT_SCRATCH

    def guess(self, workspace_bytes):
        """Learns what a workspace needs at some sizes."""
        if workspace_bytes > self.guessed_bytes:
            self.guessed_bytes = max(workspace_bytes, min(2 * workspace_bytes, _MOST_GUESSED))

    def refuse(self, status, words):
        """Raises what a call reported in the words of its block."""
        message = ctypes.c_void_p(words[0])
        words[0] = 0
        library.raise_error(self.function, status, message)


# Workspaces of up to so many bytes are kept for the next call on their stream: PyTorch's allocator takes as long as the rest of a call.
_KEPT_SCRATCH = 1 << 20
# A guess of what other sizes need isn't larger than this, or than what some sizes needed.
_MOST_GUESSED = 1 << 26
_MAX_PILES = 256
# (device, stream) -> workspaces that no call is being made with, as (tensor, address). Calls on one stream run in turn, and a thread that makes one has its own.
_piles = {}
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def _new_pile(device, stream):
    if len(_piles) >= _MAX_PILES:  # whoever makes a new stream for each call
        _piles.clear()
    return _piles.setdefault((device, stream), [])


def _scratch(size, device):
    """(tensor, aligned address) of so many bytes. PyTorch's allocator, which knows the stream, keeps the memory for the next call."""
    tensor = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    return tensor, -(-tensor.data_ptr() // _ALIGNMENT) * _ALIGNMENT


class _Block:
    """One call's structs, in one piece of memory: the message, the prepared call and its arrays, the options, the arguments, operands and gradients of operands.

    words: all of it, in words, which are written as such: ctypes' own structs take ten times as long. addresses, bytes: where those of the tensors stand, in
    order, and after them the workspace's. serial: that of the Direction whose attention and bytes are in it. sizes: the struct of an AtNewSizes', once one had it.
    """

    def __init__(self, of_all):
        direction, tensors, operands, gradients = of_all.direction, of_all.tensors, of_all.operands, of_all.gradients
        kind = {"forward": library.ForwardArgs, "backward": library.BackwardArgs}[direction]
        fields, count = _words_of(kind), len(tensors) + len(operands) + len(gradients) + 1
        arrays = 1 + _PREPARED
        options = arrays + 3 * count
        arguments = options + _OPTIONS
        named = arguments + sizeof(kind) // _WORD
        self.words = words = (c_uint64 * (named + (len(operands) + len(gradients)) * _NAMED))()
        self.message = base = addressof(words)
        self.first, self.call, self.serial = base + _WORD, library.load().scoremod_attention_call, 0
        self.sizes = None
        self.addresses, self.bytes = slice(arrays, arrays + count), slice(arrays + count, arrays + 2 * count)
        self.stream, self.offsets, self.dropout = (options + _OPTION_WORDS[name] for name in ("stream", "batch_offset", "dropout_seed"))

        prepared = {direction: arguments, "addresses": arrays, "bytes": arrays + count, "buffers": arrays + 2 * count}
        for name, place in prepared.items():
            words[1 + _PREPARED_WORDS[name]] = base + place * _WORD
        words[1], words[1 + _PREPARED_WORDS["count"]] = sizeof(library.PreparedCall), count
        words[options] = sizeof(library.CallOptions)
        if of_all.call.scale is not None:
            words[options + _OPTION_WORDS["has_scale"]] = _SCALE.unpack(_HAS_SCALE.pack(1, of_all.call.scale))[0]
        words[arguments] = sizeof(kind)
        words[arguments + fields["options"]] = base + options * _WORD
        places = [arguments + fields[name] for name in tensors]
        for i, (name, _) in enumerate(chain(operands, gradients)):
            words[named + i * _NAMED] = _address_of_name(name)
            places.append(named + i * _NAMED + 1)
        places.append(arguments + fields["workspace"])
        words[arrays + 2 * count : options] = [base + place * _WORD for place in places]
        words[arguments + fields["operands"]], words[arguments + fields["operand_count"]] = base + named * _WORD, len(operands)
        if gradients:
            first = base + (named + len(operands) * _NAMED) * _WORD
            words[arguments + fields["d_operands"]], words[arguments + fields["d_operand_count"]] = first, len(gradients)


@functools.cache
def _words_of(kind):
    """field -> the word of a struct that it begins in. Fields of half a word come in pairs."""
    return {name: getattr(kind, name).offset // _WORD for name, _ in kind._fields_}


_OPTIONS, _NAMED = sizeof(library.CallOptions) // _WORD, sizeof(library.NamedBuffer) // _WORD
_PREPARED = sizeof(library.PreparedCall) // _WORD
_OPTION_WORDS, _PREPARED_WORDS = _words_of(library.CallOptions), _words_of(library.PreparedCall)
_ATTENTION, _SIZES = 1 + _PREPARED_WORDS["attention"], 1 + _PREPARED_WORDS["sizes"]
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
