"""Functions with a derivative rule of their own (jax.custom_jvp, jax.custom_vjp) in score programs: their value, and as its surrogate for
derivatives what has the rule's.

With g_i the rule's derivative with respect to argument x_i, taken for a constant, the sum of g_i x_i has that derivative and no other.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.jax.jaxprs import called_jaxpr
from scoremod.jax.linear_rules import is_multiple_of_first
from scoremod.jax.manual_axes import type_like
from scoremod.jax.shard_casts import without_casts, without_last_sums
from scoremod.jax.values import Equation, literal
from scoremod.multiples import NOT_A_MULTIPLE

_FLOAT = jax.ShapeDtypeStruct((), jnp.float32)

_NO_SCALARS = "has a derivative rule of its own, and arguments or results that are no float32 scalars"
_NOT_LINEAR = f"has a derivative rule of its own {NOT_A_MULTIPLE}"


def with_own_derivative(tracer, equation, inputs, results, where, debug_info):
    """Gives the result of such a call its node. The reason why not where it has arrays among its arguments or results, several results, or a rule
    that is not linear; None where it has the node."""
    alone = [*inputs, *results]
    if len(results) != 1 or any(value.shape != () for value in alone) or results[0].dtype != np.float32:
        return _NO_SCALARS
    varied = tuple(i for i, value in enumerate(inputs) if value.dtype is not None and jnp.issubdtype(value.dtype, jnp.floating))
    if any(inputs[i].dtype != np.float32 for i in varied):
        return _NO_SCALARS
    value = tracer.node_of(tracer.values_inside(called_jaxpr(equation), inputs, where)[0])
    gradient = _gradient(equation, varied, debug_info)
    if not is_multiple_of_first(gradient):
        return _NOT_LINEAR
    slopes = tracer.values_inside(gradient, [literal(np.float32(1), _FLOAT), *inputs], where)
    if value is None:
        return _NO_SCALARS
    builder, total = tracer.builder, None
    for i, slope in zip(varied, slopes):
        slope, argument = tracer.node_of(slope), tracer.node_of(inputs[i])
        if None in (slope, argument):
            return _NO_SCALARS
        if builder.constant_value(slope) == 0:
            continue
        one = builder.constant_value(slope) == 1
        term = argument if one else builder.op("mul", stopped(builder, slope), argument)
        total = term if total is None else builder.op("add", total, term)
    results[0].node = builder.op("surrogate", value, builder.constant(0, "f32") if total is None else total)
    return None


def stopped(builder, node):
    """The node as a constant to derivatives."""
    if builder.type(node) != "f32" or builder.constant_value(node) is not None:
        return node
    return builder.op("surrogate", node, builder.constant(0, "f32"))


def _gradient(equation, varied, debug_info):
    """The jaxpr of what the rule gives those arguments. Its own first argument is the gradient that the rule is given, the equation's come after."""
    step = Equation(equation, (), debug_info)
    place = next(i for i, variable in enumerate(equation.outvars) if not isinstance(variable, core.DropVar))
    value = lambda *arguments: step.run(arguments)[place]  # noqa: E731
    types = [type_like(variable.aval, (), variable.aval.dtype) for variable in equation.invars]
    if equation.primitive.name == "custom_jvp_call":
        # Forward mode transposes no cast.
        return without_casts(jax.make_jaxpr(functools.partial(_by_forward_mode, value, varied))(_FLOAT, *types))
    upstream = type_like(equation.outvars[place].aval, (), jnp.float32)
    return without_last_sums(jax.make_jaxpr(functools.partial(_by_reverse_mode, value, varied))(upstream, *types))


def _by_reverse_mode(function, varied, upstream, *arguments):
    """The gradients of some of a function's scalar arguments."""

    def of_varied(*chosen):
        given = dict(zip(varied, chosen))
        return function(*(given.get(i, each) for i, each in enumerate(arguments)))

    return jax.vjp(of_varied, *(arguments[i] for i in varied))[1](upstream)


def _by_forward_mode(function, varied, upstream, *arguments):
    """The gradients by the rule's derivative along each of the arguments, `upstream` times its direction."""

    def direction(at):
        is_float = [jnp.issubdtype(x.dtype, jnp.floating) for x in arguments]
        return tuple(
            upstream * jnp.full_like(x, i == at) if floating else np.zeros(x.shape, jax.dtypes.float0)
            for i, (x, floating) in enumerate(zip(arguments, is_float, strict=True))
        )

    return [jax.jvp(function, arguments, direction(at))[1] for at in varied]
