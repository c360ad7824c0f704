"""Attention inside jax.shard_map: along which axes of the mesh an array differs from shard to shard, as JAX tracks it (check_vma)."""

import jax
import jax.core
from jax import lax
from jax.sharding import PartitionSpec


def varying_axes(array):
    """The axes of the mesh along which an array (or its type) varies."""
    manual = getattr(array if hasattr(array, "manual_axis_type") else jax.typeof(array), "manual_axis_type", None)
    return frozenset(getattr(manual, "varying", ()))


def vary_along(array, axes):
    """The array, marked as varying along these axes of the mesh, too."""
    missing = tuple(axes - varying_axes(array)) if axes else ()
    return lax.pcast(array, missing, to="varying") if missing else array


def vary_alike(arrays):
    """The arrays, each marked as varying along every axis that any of them varies along. The gradient of one that didn't is then summed
    over those axes."""
    axes = frozenset().union(*map(varying_axes, arrays))
    return [vary_along(x, axes) for x in arrays]


def vary_as(array, like):
    """An array that varies along fewer axes of the mesh than another, marked as varying along all of that one's."""
    return vary_alike([array, like])[0]


def type_like(source, shape, dtype):
    """A type of this shape and dtype that varies along the same axes as another type."""
    if not varying_axes(source):
        return jax.core.ShapedArray(shape, dtype)
    sharding = source.sharding.update(spec=PartitionSpec(*(None for _ in shape)))
    return source.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)
