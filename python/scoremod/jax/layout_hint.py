"""A warning where tensors are likely to lie otherwise than they are read."""

import warnings

from scoremod.jax.open_sizes import is_open


def warn_of_heads_before_positions(query, key, stacklevel):
    """Warns where tensors without a given layout have fewer positions than heads. They look like [batch, heads, seq, dim], and
    [batch, seq, heads, dim], the default, would attend over heads."""
    if query.ndim == key.ndim == 4 and not is_open(query, key) and 1 < query.shape[1] < query.shape[2] and 1 < key.shape[1] < key.shape[2]:
        warnings.warn(
            f"query of shape {tuple(query.shape)} is read as [batch, seq, heads, dim]: {query.shape[1]} positions of {query.shape[2]} heads. For tensors "
            '[batch, heads, seq, dim] give layout="BHSD"; layout="BSHD" says that they are meant so',
            stacklevel=stacklevel + 1,
        )
