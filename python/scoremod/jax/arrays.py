"""Arrays and numbers that callers give beside the functions, as JAX arrays of 32 bits or less; refused by name where that would cut them."""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError, WrongTypeError
from scoremod.tensors import refuse_mask

_INT32 = np.iinfo(np.int32)
# Dtypes of integers that int32 may be too small for. Narrow and 64-bit dtypes become int32 and float32, as without JAX's 64-bit types.
_WIDE_INTEGERS = (np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.uint32))


def tensors(query, key, value):
    """The three as JAX arrays."""
    expected = "an array of float32, float16, bfloat16 or float8, in four dimensions (three with q_offsets)"
    return [array_of(name, each, expected) for name, each in (("query", query), ("key", key), ("value", value))]


def array_of(name, value, expected):
    """The JAX array of a value. Raises WrongTypeError for what is none of numbers; `expected` says what it should have been."""
    found = type(value).__name__
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended):
        found = str(value.dtype)
    elif isinstance(value, (str, bytes)) or value is None:
        pass
    else:
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise WrongTypeError(f"{name}: expected {expected}; found {found}")


def known_array(name, value):
    """The NumPy array of a value whose numbers are known, or the JAX array itself, in a dtype of at most 32 bits.

    name: for the message. Raises InvalidArgumentError for what is no array of real numbers or bools, and for integers beyond int32.
    """
    refuse_mask(value, name)
    array = value if isinstance(value, (jax.Array, np.ndarray)) else _from_python(name, value)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise InvalidArgumentError(f"{name}: expected real numbers or bools, found {_described(value, array.dtype)}")
    number = too_wide(array)
    if number is not None:
        raise InvalidArgumentError(beyond_int32(name, number))
    if jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize > 4:
        return array.astype(np.float32)
    return array.astype(np.int32) if array.dtype in _WIDE_INTEGERS else array


def host_numbers(value):
    """The numbers of what the host has, as a NumPy array; None for an array that is traced, or that lies on a device, which would be waited for."""
    if isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, jax.Array) and not (value.is_fully_addressable and all(device.platform == "cpu" for device in value.devices())):
        return None
    return np.asarray(value)


def jax_array(name, value):
    """known_array() as a JAX array."""
    return jnp.asarray(known_array(name, value))


def within_int32(array):
    """Integers as int32; those that it doesn't hold become its nearest, which is as wrong a number as they are."""
    ours, theirs = jnp.iinfo(jnp.int32), jnp.iinfo(array.dtype)
    if array.dtype in _WIDE_INTEGERS:
        # An unsigned dtype has no number for the lower limit: JAX would take a large one.
        array = jnp.clip(array, max(ours.min, theirs.min), min(ours.max, theirs.max))
    return array.astype(jnp.int32)


def beyond_int32(name, number):
    return f"{name}: expected integers from {_INT32.min} to {_INT32.max}, which int32 holds, found {number}; score programs have no others"


def too_wide(value):
    """An integer beyond int32 in a number, a NumPy array or a JAX array whose contents are known; None if there is none."""
    if isinstance(value, int):
        return None if _INT32.min <= value <= _INT32.max else value
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return None
    if value.size == 0 or value.dtype not in _WIDE_INTEGERS:
        return None
    array = np.asarray(value)
    return next((int(each) for each in (array.min(), array.max()) if not _INT32.min <= each <= _INT32.max), None)


def _from_python(name, value):
    """The array of a number or of nested lists, which may hold JAX's tracers."""
    leaves = jax.tree.leaves(value)
    for each in leaves:
        if too_wide(each) is not None:
            raise InvalidArgumentError(beyond_int32(name, each))
    try:
        return jnp.asarray(value) if any(isinstance(each, jax.Array) for each in leaves) else np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{name}: expected an array, a number or a list of numbers, found {value!r} ({error})") from None


def _described(value, dtype):
    return f"dtype {dtype}" if isinstance(value, (jax.Array, np.ndarray)) and dtype != np.dtype(object) else f"{value!r}"


def whole(array):
    """The array with no dimension sharded over explicit axes: JAX doesn't index one that is."""
    type = jax.typeof(array)
    if not any(type.sharding.spec):
        return array
    return jax.sharding.reshard(array, jax.sharding.NamedSharding(type.sharding.mesh, jax.sharding.PartitionSpec()))
