"""Calls that go another way than the caller may think: each is warned of and counted."""

import threading
import warnings
from collections import Counter

from scoremod.jax.selection import WAY_OUT

_COUNTS: Counter[str] = Counter()
_LOCK = threading.Lock()
XLA, UNCOMPARED = "xla", "uncompared_bprop"


def fallback_counts() -> dict[str, int]:
    """How often this process took another way, by name. "xla": calls that fallback="xla" ran as XLA operations. "uncompared_bprop": calls whose
    score_mod_bprop could not be compared with the derived derivative. An eager call counts each time, and a jitted function where it is traced."""
    with _LOCK:
        return {name: _COUNTS[name] for name in (XLA, UNCOMPARED)}


def warn_of_xla(reasons, stacklevel):
    """Counts a call that XLA runs, and warns of it. reasons: why no backend does."""
    reasons = str(reasons).removesuffix(f". {WAY_OUT}")
    _take(XLA, f'fallback="xla": XLA operations run this attention, since {reasons}; backend="xla" says that it is meant so', stacklevel + 1)


def warn_of_uncompared(stacklevel):
    text = (
        "score_mod_bprop: it was not compared with the derivative of score_mod, since JAX traces a number that it alone reads; the derived one runs. "
        "Leave it out, or give trust_bprop=True to have it run"
    )
    _take(UNCOMPARED, text, stacklevel + 1)


def _take(name, text, stacklevel):
    with _LOCK:
        _COUNTS[name] += 1
    warnings.warn(text, stacklevel=stacklevel + 1)
