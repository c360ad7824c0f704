"""Problems that are compiled once for all sizes which their calls bring."""

import ctypes
import functools
import json
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, c_int64, c_size_t, c_void_p

from scoremod import library
from scoremod.arguments import check_names, encode, problem_text
from scoremod.attention import Attention
from scoremod.compile_spec import CompileSpec, compile_options
from scoremod.empty_problems import EMPTIABLE
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
    """A problem that leaves sizes open (None, null in JSON), compiled for all of them; `scoremod docs problem` says which may be open.

    Parameters
    ----------
    problem, backend, backends, memory, max_workspace, new_sizes, threads, disabled_passes, device
        Those of scoremod.Attention; sizes of the problem may be None.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        As scoremod.Attention.
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
        self._spec = CompileSpec.of(
            backend=backend,
            backends=backends,
            memory=memory,
            max_workspace=max_workspace,
            new_sizes=new_sizes,
            threads=threads,
            disabled_passes=disabled_passes,
            device=device,
        )
        self._handle = c_void_p()
        library.call("scoremod_attention_get", encode(problem_text(problem), "problem"), compile_options(self._spec), ctypes.byref(self._handle))
        weakref.finalize(self, library.load().scoremod_attention_destroy, self._handle).atexit = False
        self._names = {}  # of operands, as C has them

    def at(self, *, operands: Mapping[str, Sequence[int]] | None = None, strides: Mapping[str, Sequence[int]] | None = None, **sizes: int) -> Attention:
        """The Attention of these sizes, of which the most recent 1024 are kept.

        Parameters
        ----------
        operands : dict of str to sequence of int, optional
            The shape of each table that the problem leaves open.
        strides : dict of str to sequence of int, optional
            "q", "k", "v", "o", "d_o", "dq", "dk" or "dv" -> the strides of batch, head, sequence and dim in elements, of a tensor that isn't dense.
        **sizes : int
            "batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "tokens_q", "tokens_kv", "blocks" and "blocks_per_sequence", those that the problem
            leaves open. The first five may be 0 where neither tokens nor pages are counted, as Attention says.

        Returns
        -------
        Attention
            Compiled for these sizes; the first ones of a structure build kernels, others take microseconds.

        Raises
        ------
        InvalidArgumentError
            For a size that is missing, or that makes a wrong problem.
        """
        check_names("sizes", sizes, SIZES)
        check_names("strides", strides or {}, _TENSORS)
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
                raise InvalidArgumentError(f"{name}: expected a size of at least 1, found {size!r:.100}")
        empty = self._empty(sizes)
        known = {**sizes, **dict.fromkeys(empty, 1)}
        described = [(name, tuple(size or 1 for size in shape) if empty else tuple(shape), None) for name, shape in (operands or {}).items()]
        # No backend runs an empty problem, so nothing lies anywhere.
        of_ones = self.at_sizes([known.get(name, 0) for name in SIZES], {} if empty else strides or {}, described)
        return of_ones.without(empty) if empty else of_ones

    def _empty(self, sizes):
        """name -> 0 of the sizes of a call that are 0, each of which the problem leaves open."""
        named = [name for name, size in sizes.items() if size == 0]
        if not named:
            return {}
        understood = c_void_p()
        library.call("scoremod_attention_problem", self._handle, ctypes.byref(understood))
        problem = json.loads(library.take_text(understood))
        has_counts = "tokens_q" in problem or "tokens_kv" in problem or problem.get("paged") is not None
        for name in named:
            heads = {problem[each] if problem[each] is not None else sizes.get(each) for each in ("heads_q", "heads_kv")}
            if has_counts or name not in EMPTIABLE or problem[name] is not None or (name.startswith("heads") and heads != {0}):
                raise InvalidArgumentError(f"{name}: expected a size of at least 1, found 0")
        return dict.fromkeys(named, 0)

    def at_sizes(
        self, sizes: Sequence[int], strides: Mapping[str, Sequence[int]], operands: Sequence[tuple[str, Sequence[int], Sequence[int] | None]]
    ) -> Attention:
        """at() of lists. sizes: in the order of SIZES, 0 for those that the problem has; strides: as of at(); operands: (name, shape, strides or None)."""
        numbers = [number for own in strides.values() for number in own]
        for _, shape, own in operands:
            numbers += shape
            numbers += own or ()
        prepared = PreparedSizes(self, tuple(strides), [(name, len(shape), own is not None) for name, shape, own in operands])
        return Attention.of_handle(c_void_p(prepared.at(sizes, numbers)[0]), self._spec)

    def name(self, name: str) -> int:
        """The address of an operand's name, which lives as long as this object."""
        if name not in self._names:
            self._names[name] = ctypes.create_string_buffer(name.encode())
        return addressof(self._names[name])


class PreparedSizes:
    """The sizes of calls of one OpenAttention whose tensors have the same names and ranks: structs that stand ready, in which a call puts nothing but numbers.

    open: the OpenAttention's handle of the C interface.
    """

    def __init__(self, attention: OpenAttention, strided: Sequence[str], operands: Sequence[tuple[str, int, bool]]) -> None:
        """strided: the tensors that have strides, of those that OpenAttention.at() takes; operands: (name, rank, whether it has strides) each."""
        self._attention, self.strided, self._operands = attention, tuple(strided), operands
        self.open = attention._handle.value  # pyright: ignore[reportPrivateUsage]
        self._first = _WORDS + _OPERAND_WORDS * len(operands)
        count = 4 * len(strided) + sum(rank * (1 + has_strides) for _, rank, has_strides in operands)
        # Half the time of a slice of the words.
        self._write_sizes, self._write_numbers = (struct.Struct(f"={each}q").pack_into for each in (len(SIZES), count))
        self._numbers, self._answers = self._first * _WORD, self._first + count
        self._at, self._workspace_bytes = _at(), _workspace_bytes()
        self._structs = []

    def named_operands(self) -> tuple[tuple[int, int, bool], ...]:
        """(address of the name, rank, whether it has strides) of each operand. The addresses live as long as this object."""
        return tuple((self._attention.name(name), rank, has_strides) for name, rank, has_strides in self._operands)

    def at(self, sizes: Sequence[int], numbers: Sequence[int]) -> tuple[int, int]:
        """(the handle of these sizes, which the caller then owns, its forward's workspace in bytes).

        sizes: in the order of SIZES; numbers: the strides of each tensor, and the shape and strides of each operand, in a row.
        """
        try:
            prepared = self._structs.pop()
        except IndexError:  # threads have their own
            prepared = self.struct()
        words, base, answers, message = prepared
        self.write(words, sizes, numbers)
        name, status = "scoremod_attention_at", self._at(self.open, base, answers, message)
        handle = words[-3]
        if not status:
            name, status = "scoremod_attention_forward_workspace_bytes", self._workspace_bytes(handle, answers + _WORD, message)
            if status:
                _destroy()(handle)
        if status:
            library.raise_error(name, status, c_void_p(words[-1]))
        workspace_bytes = words[-2]
        self._structs.append(prepared)
        return handle, workspace_bytes

    def write(self, words: ctypes.Array[c_int64], sizes: Sequence[int], numbers: Sequence[int]) -> None:
        """Writes at()'s arguments into the words of a struct()."""
        self._write_sizes(words, _WORD, *sizes)
        self._write_numbers(words, self._numbers, *numbers)

    def struct(self) -> tuple[ctypes.Array[c_int64], int, int, int]:
        """A scoremod_sizes and all that it points to, in one piece of memory: (words, their address, that of the answers, that of the message).

        A call's answers follow: a handle, a number and a message.
        """
        words = (c_int64 * (self._answers + 3))()
        base, numbers = addressof(words), self._first
        words[0] = _WORDS * _WORD
        for name in self.strided:
            words[_FIRST_TENSOR + _TENSORS.index(name)] = base + numbers * _WORD
            numbers += 4
        if self._operands:
            words[_OPERANDS], words[_OPERANDS + 1] = base + _WORDS * _WORD, len(self._operands)
        for i, (name, rank, has_strides) in enumerate(self._operands):
            place = _WORDS + _OPERAND_WORDS * i
            words[place : place + 4] = self._attention.name(name), rank, base + numbers * _WORD, base + (numbers + rank) * _WORD if has_strides else 0
            numbers += rank * (1 + has_strides)
        answers = base + self._answers * _WORD
        return words, base, answers, answers + 2 * _WORD


class Handle:
    """An attention of the C interface that is given back once nobody has this object. An Attention's other fields would take as long as the rest of it."""

    __slots__ = ("_destroy", "_value")

    def __init__(self, value: int) -> None:
        self._value, self._destroy = value, _destroy()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing():  # as in Attention
            self._destroy(self._value)


@functools.cache
def _destroy():
    return library.load().scoremod_attention_destroy


@functools.cache
def _at():
    return library.by_addresses("scoremod_attention_at", 4)


@functools.cache
def _workspace_bytes():
    return library.by_addresses("scoremod_attention_forward_workspace_bytes", 3)


assert ctypes.sizeof(c_size_t) == _WORD, "expected a machine of 64 bits"
