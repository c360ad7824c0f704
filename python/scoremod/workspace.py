"""Scratch memory that calls share one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

import numpy as np

from scoremod.errors import InvalidArgumentError
from scoremod.library import Buffer

_ALIGNMENT = 64


class Workspace:
    """Scratch memory for calls of any Attention over NumPy arrays, one at a time: it grows to what the largest call needs, and stays. Threads have one
    each; a call raises InvalidArgumentError for one that another call is using."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._in_use = threading.Lock()

    def __repr__(self) -> str:
        return f"<scoremod.Workspace of {self.nbytes} bytes>"

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        # Its contents mean nothing to another process.
        return Workspace, ()

    @property
    def nbytes(self) -> int:
        """Bytes that it holds now."""
        return self._memory.nbytes

    @contextlib.contextmanager
    def taken(self, needed: int) -> Generator[Buffer]:
        """A Buffer of so many bytes, which nobody else gets meanwhile."""
        if not self._in_use.acquire(blocking=False):
            raise InvalidArgumentError(
                "workspace: expected one that no other call is using, found one in use; give each thread a scoremod.Workspace of its own"
            )
        try:
            yield self._buffer(needed)
        finally:
            self._in_use.release()

    def _buffer(self, needed):
        if needed == 0:
            return Buffer(None, 0)
        if self._memory.nbytes < needed + _ALIGNMENT:
            self._memory = np.empty(0, np.uint8)  # so that both are never there at once
            self._memory = np.empty(needed + _ALIGNMENT, np.uint8)
        first = self._memory.ctypes.data
        return Buffer(first + -first % _ALIGNMENT, needed)


@contextlib.contextmanager
def workspace_of(args, workspace, bytes_needed):
    """Lets a call's struct have a Workspace, or none, while the call runs. bytes_needed: a function without arguments."""
    if workspace is None:
        yield
        return
    if not isinstance(workspace, Workspace):
        raise InvalidArgumentError(f"workspace: expected a scoremod.Workspace, found {type(workspace).__name__}")
    with workspace.taken(bytes_needed()) as buffer:
        args.workspace = buffer
        yield
