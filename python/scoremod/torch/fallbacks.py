"""Calls that go another way than the caller may think: each is warned of and counted."""

from scoremod.counted_warnings import UNCOMPARED, CountedWarnings, text_of_uncompared

_WAYS = CountedWarnings(UNCOMPARED)


def fallback_counts() -> dict[str, int]:
    """How often this process took another way than the caller may think.

    Returns
    -------
    dict of str: int
        "uncompared_bprop": calls whose score_mod_bprop could not be compared with the derived derivative, each where torch.compile traces it.
    """
    return _WAYS.counts()


def warn_of_uncompared(stacklevel):
    _WAYS.warn(UNCOMPARED, text_of_uncompared("torch.compile reads no numbers of a tensor that it alone reads"), stacklevel + 1)
