"""Calls that go another way than the caller may think: each is warned of and counted."""

from scoremod.counted_warnings import UNCOMPARED, CountedWarnings, text_of_uncompared
from scoremod.jax.selection import WAY_OUT

XLA = "xla"
_WAYS = CountedWarnings(XLA, UNCOMPARED)


def fallback_counts() -> dict[str, int]:
    """How often this process took another way, by name. "xla": calls that fallback="xla" ran as XLA operations. "uncompared_bprop": calls whose
    score_mod_bprop could not be compared with the derived derivative. An eager call counts each time, and a jitted function where it is traced."""
    return _WAYS.counts()


def warn_of_xla(reasons, stacklevel):
    """Counts a call that XLA runs, and warns of it. reasons: why no backend does."""
    reasons = str(reasons).removesuffix(f". {WAY_OUT}")
    text = f'fallback="xla": XLA operations run this attention, since {reasons}; backend="xla" says that it is meant so'
    _WAYS.warn(XLA, text, stacklevel + 1)


def warn_of_uncompared(stacklevel):
    _WAYS.warn(UNCOMPARED, text_of_uncompared("JAX traces a number that it alone reads"), stacklevel + 1)
