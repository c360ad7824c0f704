"""Problems that are compiled once for all sizes which their calls bring."""

import ctypes
import weakref
from collections.abc import Iterable, Mapping, Sequence
from ctypes import addressof, c_int64, c_size_t, c_void_p

from scoremod import library
from scoremod.arguments import backend_names, check_names, compile_options, encode, problem_text
from scoremod.attention import Attention
from scoremod.errors import InvalidArgumentError
from scoremod.signatures import Backends, Memory, NewSizes, Problem

SIZES = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "tokens_q", "tokens_kv", "blocks", "blocks_per_sequence")
_TENSORS = ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")
_WORD = ctypes.sizeof(c_int64)
# The words of scoremod_sizes, and where its pieces begin.
_FIRST_TENSOR = 1 + len(SIZES)
_OPERANDS = _FIRST_TENSOR + len(_TENSORS)
_WORDS = _OPERANDS + 2
_OPERAND_WORDS = 4


class OpenAttention:
    """A problem that leaves sizes open (None, null in JSON), compiled for all of them; docs/reference/problem.md says which may be open.

    problem and options are those of scoremod.Attention, which raises what this raises.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        backend: str | None = None,
        threads: int = 0,
        disabled_passes: Iterable[str] = (),
        device: int | None = None,
        backends: Backends = None,
        memory: Memory = None,
        max_workspace: int | None = None,
        new_sizes: NewSizes = None,
    ) -> None:
        selection = {"backends": backend_names(backends), "memory": memory, "max_workspace": max_workspace, "new_sizes": new_sizes}
        self._arguments = (backend, threads, tuple(disabled_passes), device, selection)
        self._handle = c_void_p()
        text = encode(problem_text(problem), "problem")
        library.call("scoremod_attention_get", text, compile_options(backend, threads, disabled_passes, device, **selection), ctypes.byref(self._handle))
        weakref.finalize(self, library.load().scoremod_attention_destroy, self._handle).atexit = False
        self._at = library.load().scoremod_attention_at
        self._names = {}  # of operands, as C has them

    def at(self, *, operands: Mapping[str, Sequence[int]] | None = None, strides: Mapping[str, Sequence[int]] | None = None, **sizes: int) -> Attention:
        """The scoremod.Attention of these sizes, of which the most recent 1024 are kept.

        sizes: "batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "tokens_q", "tokens_kv", "blocks" and "blocks_per_sequence", those that the problem
            leaves open.
        operands: name -> shape of a table that the problem leaves open.
        strides: "q", "k", "v", "o", "d_o", "dq", "dk" or "dv" -> the strides of batch, head, sequence and dim in elements, of a tensor that isn't dense.

        Raises InvalidArgumentError for a size that is missing, or that makes a wrong problem.
        """
        check_names("sizes", sizes, SIZES)
        check_names("strides", strides or {}, _TENSORS)
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
                raise InvalidArgumentError(f"{name}: expected a size of at least 1, found {size!r:.100}")
        described = [(name, tuple(shape), None) for name, shape in (operands or {}).items()]
        return self.at_sizes([sizes.get(name, 0) for name in SIZES], strides or {}, described)

    def at_sizes(
        self, sizes: Sequence[int], strides: Mapping[str, Sequence[int]], operands: Sequence[tuple[str, Sequence[int], Sequence[int] | None]]
    ) -> Attention:
        """at() of lists. sizes: in the order of SIZES, 0 for those that the problem has; strides: as of at(); operands: (name, shape, strides or None)."""
        words = self._words(sizes, strides, operands)
        handle, message = c_void_p(), c_void_p()
        status = self._at(self._handle, addressof(words), ctypes.byref(handle), ctypes.byref(message))
        if status or message.value:
            library.raise_error("scoremod_attention_at", status, message)
        return Attention.of_handle(handle, self._arguments)

    def _words(self, sizes, strides, operands):
        """A scoremod_sizes and all that it points to, in one piece of memory."""
        count = len(operands)
        first_strides = _WORDS
        first_operand = first_strides + 4 * len(strides)
        numbers = first_operand + _OPERAND_WORDS * count
        words = (c_int64 * (numbers + sum(2 * len(shape) for _, shape, _ in operands)))()
        base = addressof(words)
        words[0] = _WORDS * _WORD
        words[1:_FIRST_TENSOR] = sizes
        for i, (name, own) in enumerate(strides.items()):
            place = first_strides + 4 * i
            words[_FIRST_TENSOR + _TENSORS.index(name)] = base + place * _WORD
            words[place : place + 4] = own
        if count:
            words[_OPERANDS], words[_OPERANDS + 1] = base + first_operand * _WORD, count
        for i, (name, shape, own) in enumerate(operands):
            place, rank = first_operand + _OPERAND_WORDS * i, len(shape)
            words[place : place + 4] = self._name(name), rank, base + numbers * _WORD, 0 if own is None else base + (numbers + rank) * _WORD
            words[numbers : numbers + rank] = shape
            if own is not None:
                words[numbers + rank : numbers + 2 * rank] = own
            numbers += 2 * rank
        return words

    def _name(self, name):
        """The address of an operand's name, which lives as long as this object."""
        if name not in self._names:
            self._names[name] = ctypes.create_string_buffer(name.encode())
        return addressof(self._names[name])


assert ctypes.sizeof(c_size_t) == _WORD, "expected a machine of 64 bits"
