"""The vocabulary of cuDNN graph callbacks on JAX's arrays, so that what a callback builds is traced as any score function is."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scoremod import callback_graph

_FUNCTIONS = SimpleNamespace(
    kind=lambda value: np.dtype(jnp.result_type(value)).name,
    constant=lambda number, kind: np.dtype(kind).type(number),
    to_float=lambda value: value.astype(jnp.float32),
    add=jnp.add,
    sub=jnp.subtract,
    mul=jnp.multiply,
    div=jnp.divide,
    neg=jnp.negative,
    abs=jnp.abs,
    sqrt=jnp.sqrt,
    rsqrt=lax.rsqrt,
    reciprocal=jnp.reciprocal,
    exp=jnp.exp,
    expm1=jnp.expm1,
    log=jnp.log,
    ceil=jnp.ceil,
    floor=jnp.floor,
    sin=jnp.sin,
    cos=jnp.cos,
    tan=jnp.tan,
    # jax.nn.gelu would be made of erfc, which score programs don't have.
    erf=lax.erf,
    tanh=jnp.tanh,
    sigmoid=jax.nn.sigmoid,
    softplus=jax.nn.softplus,
    maximum=jnp.maximum,
    minimum=jnp.minimum,
    fmod=jnp.fmod,
    pow=jnp.power,
    eq=jnp.equal,
    neq=jnp.not_equal,
    gt=jnp.greater,
    ge=jnp.greater_equal,
    lt=jnp.less,
    le=jnp.less_equal,
    logical_and=jnp.logical_and,
    logical_or=jnp.logical_or,
    logical_not=jnp.logical_not,
    where=jnp.where,
)


class Tensor(callback_graph.Tensor):
    __doc__ = callback_graph.Tensor.__doc__
    functions = _FUNCTIONS


class Graph(callback_graph.Graph):
    __doc__ = callback_graph.Graph.__doc__
    tensor, functions = Tensor, _FUNCTIONS
