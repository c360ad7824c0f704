"""Parts of score functions that a framework computes before the attention, for each query and key: a warning where they take much memory."""

import math
import os
import warnings

from scoremod.errors import InvalidArgumentError

_DEFAULT_MIB = 256.0


def warning_limit():
    """Bytes, from SCOREMOD_WARN_MIB. Raises InvalidArgumentError."""
    text = os.environ.get("SCOREMOD_WARN_MIB", "") or str(_DEFAULT_MIB)
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not limit >= 0:
        raise InvalidArgumentError(f"SCOREMOD_WARN_MIB: expected a number of MiB, at least 0, found {text!r}")
    return limit * 2**20


def warn_of_large_operands(computed, framework, stacklevel):
    """computed: (axes, shape, bytes) of each operand that `framework` computes for indices. Warns of those with both a query's and a key's."""
    limit = warning_limit()
    for axes, shape, size in computed:
        if size > limit and {"q_idx", "kv_idx"} <= set(axes):
            warnings.warn(
                f"a part of score_mod or mask_mod that doesn't depend on the score has no operation of a score program, and becomes an array of shape "
                f"{tuple(shape)}, {size / 2**20:.0f} MiB, over ({', '.join(axes)}), which {framework} computes before the attention. Write it with "
                "scalar operations; a dot product of a vector of the query and one of the key, as of positional embeddings, belongs into query and "
                f"key, beside their elements along the head dim. SCOREMOD_WARN_MIB sets the size from which this is said",
                stacklevel=stacklevel + 1,
            )
