"""Keys and values of the tokens so far, for modules that decode one token after the other, in Flax's collection "cache".

A token beyond the cache's length raises InvalidArgumentError. Under jax.jit, where the number of tokens so far isn't known, the cache keeps what it
has, and the output of this call and of all later ones is NaN.
"""

import jax
import jax.core
import jax.numpy as jnp
from jax import lax

from scoremod.errors import InvalidArgumentError


def appended(module, key, value, mask_type, sequence_descriptor):
    """(key, value, first): the cache after a call's keys and values were appended, and the position of the first of them.

    first is None in init(), whose inputs say how long the cache is. key, value: [batch, tokens, heads, dim], of one or more tokens."""
    if sequence_descriptor is not None or "padding" in mask_type:
        raise InvalidArgumentError(
            f"decode: expected no sequence_descriptor and no padding, found attn_mask_type {mask_type!r}: the cache says how many keys there are"
        )
    exists = module.has_variable("cache", "cached_key")
    cached = [module.variable("cache", name, jnp.zeros, array.shape, array.dtype) for name, array in (("cached_key", key), ("cached_value", value))]
    index = module.variable("cache", "cache_index", lambda: jnp.zeros((), jnp.int32))
    if not exists:
        return key, value, None
    _check_fits(cached[0].value, key)
    first, tokens, length = index.value, key.shape[1], cached[0].value.shape[1]
    if not isinstance(first, jax.core.Tracer) and first + tokens > length:
        raise InvalidArgumentError(
            f"decode: expected at most {length} tokens in all, as the cache was made for by init(), found {int(first)} in it and {tokens} more; "
            "init() the module with longer inputs"
        )
    for variable, array in zip(cached, (key, value)):
        # JAX moves a slice that passes the end back, so such a call writes what the cache has there already.
        old = lax.dynamic_slice_in_dim(variable.value, first, tokens, axis=1)
        new = jnp.where(first + tokens <= length, array.astype(old.dtype), old)
        variable.value = lax.dynamic_update_slice_in_dim(variable.value, new, first, axis=1)
    index.value = first + tokens
    return cached[0].value, cached[1].value, first


def within_length(o, key, first):
    """The output of queries from position `first` on, and NaN where some are beyond the cache that `key` is."""
    return jnp.where(first + o.shape[1] <= key.shape[1], o, jnp.nan)


def _check_fits(cached, key):
    batch, length, *rest = cached.shape
    if (batch, *rest) == (key.shape[0], *key.shape[2:]) and key.shape[1] <= length:
        return
    raise InvalidArgumentError(f"decode: expected keys of shape {(batch, f'at most {length}', *rest)}, as the cache was made for by init(), found {key.shape}")


def at_positions(function, first, query):
    """A score_mod or mask_mod (None too) as one of a call's local queries, which begin at position `first`. query: the number of the argument
    that is the query's index."""
    if function is None:
        return None

    def of_local(*arguments):
        arguments = list(arguments)
        arguments[query] = arguments[query] + first
        return function(*arguments)

    return of_local
