"""The environment variables that decide which attention is compiled for a problem."""

import os

# src/runtime/attention_cache.cpp has the same list.
VARIABLES = (
    "SCOREMOD_BACKENDS",
    "SCOREMOD_AUTOTUNE",
    "SCOREMOD_MAX_WORKSPACE",
    "SCOREMOD_VERIFICATION",
    "SCOREMOD_NEW_SIZES",
    "SCOREMOD_THREADS",
    "OMP_NUM_THREADS",
)

# The dict that os.environ keeps: a look into it takes a tenth of os.environ's time, which each call would pay.
_kept = getattr(os.environ, "_data", None)
_names = tuple(os.environ.encodekey(name) for name in VARIABLES) if isinstance(_kept, dict) else ()
_UNSET = (None,) * len(VARIABLES)


def settings():
    """The variables' values, in their order; equal ones mean that nothing was changed."""
    if _names:
        if _kept.keys().isdisjoint(_names):  # pyright: ignore[reportOptionalMemberAccess]  # a third of the time of asking for each
            return _UNSET
        return tuple(map(_kept.get, _names))  # pyright: ignore[reportOptionalMemberAccess]
    return tuple(map(os.environ.get, VARIABLES))
