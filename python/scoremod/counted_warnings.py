"""Ways that calls go otherwise than the caller may think: each is warned of and counted."""

import warnings
from collections import Counter

from scoremod.fork_safety import Lock

UNCOMPARED = "uncompared_bprop"


class CountedWarnings:
    """Counts by name. names: those that counts() has."""

    def __init__(self, *names: str):
        self._names, self._counts, self._lock = names, Counter[str](), Lock()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {name: self._counts[name] for name in self._names}

    def warn(self, name: str, text: str, stacklevel: int) -> None:
        """Counts one, and warns of it. stacklevel: that of warnings.warn in the caller."""
        with self._lock:
            self._counts[name] += 1
        warnings.warn(text, stacklevel=stacklevel + 1)


def text_of_uncompared(why: str) -> str:
    """The warning of a backward callback that can't be compared. why: a part of a sentence."""
    return (
        f"score_mod_bprop: it was not compared with the derivative of score_mod, since {why}; the derived one runs. "
        "Leave it out, or give trust_bprop=True to have it run"
    )
