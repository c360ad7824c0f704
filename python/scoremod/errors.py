"""The four kinds of failure, which are never mixed, and what a request queue answers by itself."""


class Error(Exception):
    """The base of scoremod's errors. The message says what was expected, what was found and what to do."""


class InvalidArgumentError(Error, ValueError):
    """The caller's mistake."""


class WrongTypeError(InvalidArgumentError, TypeError):
    """The caller's mistake, of a type: also a TypeError, as Python's own functions raise."""


class UnsupportedError(Error):
    """A valid request that no backend can run; the message holds each backend's reasons."""


class EnvironmentError(Error):  # noqa: A001 (the name that this kind has in every language)
    """The machine: memory, files, drivers, the library itself. The system's own text is kept."""


class ContextLostError(EnvironmentError):
    """A kernel broke the CUDA context. No later call on the device works in this process: end it and start it again. Calls on the host work."""


class BugError(Error):
    """An invariant of scoremod itself broke. Please report it."""


class QueueFullError(Error):
    """The request queue held as many requests as it may, and refuses: submit it again later."""


class QueueShutDownError(Error):
    """The request queue was shut down before the request began."""


# By the status of the C interface.
BY_STATUS = {
    1: InvalidArgumentError,
    2: UnsupportedError,
    3: EnvironmentError,
    4: BugError,
    5: QueueFullError,
    6: QueueShutDownError,
    7: ContextLostError,
}
