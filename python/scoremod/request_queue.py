"""Calls that wait their turn and run in threads of the library: the request queue of the C interface."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoremod import library
from scoremod.array_call import DropoutState
from scoremod.attention import Attention, Gradients
from scoremod.call_spec import NO_OFFSETS, Offsets
from scoremod.errors import BY_STATUS, BugError, Error, InvalidArgumentError


class Reply(Future[Any]):
    """The result of a queued call. `result()` waits for it, and so does `await` where asyncio runs. It can't be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        # The library may have begun already, and writes into the arrays: Future.cancel() says no from here on.
        self.set_running_or_notify_cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        from asyncio import wrap_future  # whoever awaits has imported it, and `import scoremod` needs it not

        return wrap_future(self).__await__()


# Number -> the reply, its result, and what the call points to, from submitting it until the reply.
_open_requests: dict[int, tuple[Reply, Any, Any]] = {}
_numbers = itertools.count(1)
_queues: weakref.WeakSet[RequestQueue] = weakref.WeakSet()
_this_thread = threading.local()


@library.QUEUE_REPLY
def _answer(number, status, message):
    reply, result, _ = _open_requests.pop(number)
    was_replying, _this_thread.replies = getattr(_this_thread, "replies", False), True
    try:
        if status == 0:
            reply.set_result(result)
        else:
            reply.set_exception(BY_STATUS.get(status, BugError)(message.decode("utf-8", "replace")))
    finally:
        _this_thread.replies = was_replying


class RequestQueue:
    """Runs calls of compiled attentions in threads of the library, without Python's lock, in the order in which they are submitted.

    Several threads may submit at the same time. The queue owns the workspaces and keeps the attention, the arrays and the outputs until the reply.
    Inputs are not copied: nothing may write to them meanwhile. As a context manager it waits for all of its requests at the end, and shuts down.

    Parameters
    ----------
    capacity : int
        Requests that may wait to begin, at least 1.
    refuse_when_full : bool
        Whether a request beyond the capacity raises QueueFullError from its reply. Otherwise submitting it blocks its thread, also one of asyncio.
    threads : int
        Requests that run at the same time, at least 1. One call uses all cores by itself.

    Raises
    ------
    InvalidArgumentError
        For a capacity or a number of threads below 1.
    EnvironmentError
        If the system refuses a thread.

    Examples
    --------
    >>> with scoremod.RequestQueue() as queue:
    ...     replies = [queue.forward(attention, q, k, v) for q, k, v in batches]
    ...     outputs = [reply.result() for reply in replies]
    """

    def __init__(self, *, capacity: int = 64, refuse_when_full: bool = False, threads: int = 1) -> None:
        options = library.RequestQueueOptions(
            capacity=_count(capacity, "capacity", 2**63 - 1),
            refuse_when_full=bool(refuse_when_full),
            threads=_count(threads, "threads", 2**31 - 1),
        )
        self._handle = ctypes.c_void_p()
        self._process = os.getpid()
        library.call("scoremod_request_queue_create", options, ctypes.byref(self._handle))
        self._destroy = library.load().scoremod_request_queue_destroy
        _queues.add(self)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing, _getpid: Callable[[], int] = os.getpid) -> None:
        if "_destroy" not in self.__dict__ or _is_finalizing() or _getpid() != self._process:
            return  # a child of fork() has none of the queue's threads
        if getattr(_this_thread, "replies", False):
            # A thread of the queue can't wait for itself.
            threading.Thread(target=self._destroy, args=(self._handle,)).start()
        else:
            self._destroy(self._handle)

    def __enter__(self) -> RequestQueue:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.drain()
        self.shut_down()

    def forward(
        self,
        attention: Attention,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        operands: Mapping[str, ArrayLike] | None = None,
        *,
        return_lse: bool = False,
        return_max_logit: bool = False,
        return_amax_o: bool = False,
        scale: float | None = None,
        offsets: Offsets | tuple[int, ...] = NO_OFFSETS,
        dropout: DropoutState | tuple[int, ...] = DropoutState(),
        out: NDArray[Any] | tuple[NDArray[Any] | None, ...] | None = None,
    ) -> Reply:
        """Submits a forward pass.

        Parameters
        ----------
        attention : Attention
            The compiled problem; all requests of a queue are for one device.
        q, k, v, operands, return_lse, return_max_logit, return_amax_o, scale, offsets, dropout, out
            Those of Attention.forward.

        Returns
        -------
        Reply
            A concurrent.futures.Future, which can be awaited too, of what Attention.forward returns. It raises QueueFullError, QueueShutDownError,
            or the call's error.

        Raises
        ------
        InvalidArgumentError
            For an array or an argument that isn't what the problem says. Nothing is submitted then.
        """
        options = {"return_lse": return_lse, "return_max_logit": return_max_logit, "return_amax_o": return_amax_o}
        options |= {"scale": scale, "offsets": offsets, "dropout": dropout, "out": out}
        prepared = _checked(attention)._prepare_forward(q, k, v, operands, **options)  # pyright: ignore[reportPrivateUsage]
        return self._submit("forward", attention, prepared)

    def backward(
        self,
        attention: Attention,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        o: ArrayLike,
        lse: ArrayLike,
        d_o: ArrayLike,
        operands: Mapping[str, ArrayLike] | None = None,
        *,
        d_operands: Iterable[str] | None = None,
        return_amax_gradients: bool = False,
        scale: float | None = None,
        offsets: Offsets | tuple[int, ...] = NO_OFFSETS,
        dropout: DropoutState | tuple[int, ...] = DropoutState(),
        out: Gradients | None = None,
    ) -> Reply:
        """Submits a backward pass. The problem must have "backward": True.

        Parameters
        ----------
        attention : Attention
            The compiled problem.
        q, k, v, o, lse, d_o, operands, d_operands, return_amax_gradients, scale, offsets, dropout, out
            Those of Attention.backward.

        Returns
        -------
        Reply
            As forward's, of what Attention.backward returns.

        Raises
        ------
        InvalidArgumentError
            For an array or an argument that isn't what the problem says. Nothing is submitted then.
        """
        options = {"d_operands": d_operands, "return_amax_gradients": return_amax_gradients}
        options |= {"scale": scale, "offsets": offsets, "dropout": dropout, "out": out}
        prepared = _checked(attention)._prepare_backward(q, k, v, o, lse, d_o, operands, **options)  # pyright: ignore[reportPrivateUsage]
        return self._submit("backward", attention, prepared)

    def drain(self) -> None:
        """Returns once each request that was submitted before has its reply. Raises InvalidArgumentError in a callback of a reply."""
        library.call("scoremod_request_queue_drain", self._own())

    def shut_down(self) -> None:
        """Lets running requests end. All others, and all that come later, raise QueueShutDownError from their replies. May be called again."""
        library.call("scoremod_request_queue_shut_down", self._own())

    def _own(self):
        if os.getpid() != self._process:
            raise InvalidArgumentError("expected a RequestQueue of this process, found one made before fork(), which has no threads here; make another")
        return self._handle

    def _submit(self, direction, attention, prepared):
        handle, reply, number = self._own(), Reply(), next(_numbers)
        _open_requests[number] = reply, prepared.results, (attention, prepared)
        try:
            library.call(f"scoremod_request_queue_submit_{direction}", handle, attention._handle, prepared.args, _answer, number)
        except Error:  # then there is no reply; an interrupt comes after a submission that has one
            _open_requests.pop(number, None)
            raise
        return reply


def _checked(attention):
    if not isinstance(attention, Attention):
        raise InvalidArgumentError(f"attention: expected a scoremod.Attention, found {type(attention).__name__}; OpenAttention.at() gives one")
    if attention.is_empty:
        raise InvalidArgumentError(
            "attention: expected a problem with sizes of at least 1, found one with a size of 0, of which nothing runs; call its forward()"
        )
    return attention


def _count(value, name, most):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
        raise InvalidArgumentError(f"{name}: expected a whole number of at least 1, found {value!r}")
    return int(value)


@atexit.register
def _shut_all_down():
    """Before the interpreter ends: no reply may come after it."""
    for queue in list(_queues):
        if queue._process == os.getpid():  # pyright: ignore[reportPrivateUsage]
            queue.shut_down()
