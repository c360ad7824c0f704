"""scoremod: attention with a programmable score. `python -m scoremod docs numpy` prints a walk through it."""

from scoremod import cache
from scoremod.array_call import DropoutState
from scoremod.attention import Attention, Gradients, explain, support
from scoremod.call_spec import Offsets
from scoremod.errors import BugError, ContextLostError, EnvironmentError, Error, InvalidArgumentError, QueueFullError, QueueShutDownError, UnsupportedError
from scoremod.drawing import draw
from scoremod.library import load as _load
from scoremod.one_call import attention
from scoremod.open_attention import OpenAttention
from scoremod.request_queue import RequestQueue
from scoremod.workspace import Workspace

__all__ = [
    "Attention",
    "BugError",
    "ContextLostError",
    "EnvironmentError",
    "Error",
    "DropoutState",
    "Gradients",
    "InvalidArgumentError",
    "Offsets",
    "OpenAttention",
    "QueueFullError",
    "QueueShutDownError",
    "RequestQueue",
    "UnsupportedError",
    "Workspace",
    "attention",
    "cache",
    "draw",
    "explain",
    "support",
    "version",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *(name for name in globals() if name in ("jax", "torch") or name.startswith("__"))])


def version() -> str:
    """The version of the library that is loaded, such as "0.1.0"."""
    return _load().scoremod_version().decode()
