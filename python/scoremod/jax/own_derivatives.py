"""Functions with a derivative rule of their own (jax.custom_jvp, jax.custom_vjp) in score programs: their value, and as its surrogate for
derivatives what has the rule's.

With g_i the rule's derivative with respect to argument x_i, taken for a constant, the sum of g_i x_i has that derivative and no other.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.jax.jaxprs import called_jaxpr
from scoremod.jax.values import Equation


def with_own_derivative(tracer, equation, inputs, results, where, debug_info):
    """Gives the result of such a call its node; False where it has arrays among its arguments or results, or several results."""
    alone = [*inputs, *results]
    if len(results) != 1 or any(value.shape != () for value in alone) or results[0].dtype != np.float32:
        return False
    varied = tuple(i for i, value in enumerate(inputs) if value.dtype is not None and jnp.issubdtype(value.dtype, jnp.floating))
    if any(inputs[i].dtype != np.float32 for i in varied):
        return False
    value = tracer.node_of(tracer.values_inside(called_jaxpr(equation), inputs, where)[0])
    slopes = tracer.values_inside(_derivatives(equation, varied, debug_info), inputs, where)
    if value is None:
        return False
    builder, total = tracer.builder, None
    for i, slope in zip(varied, slopes):
        slope, argument = tracer.node_of(slope), tracer.node_of(inputs[i])
        if None in (slope, argument):
            return False
        if builder.constant_value(slope) == 0:
            continue
        one = builder.constant_value(slope) == 1
        term = argument if one else builder.op("mul", stopped(builder, slope), argument)
        total = term if total is None else builder.op("add", total, term)
    results[0].node = builder.op("surrogate", value, builder.constant(0, "f32") if total is None else total)
    return True


def stopped(builder, node):
    """The node as a constant to derivatives."""
    if builder.type(node) != "f32" or builder.constant_value(node) is not None:
        return node
    return builder.op("surrogate", node, builder.constant(0, "f32"))


def _derivatives(equation, varied, debug_info):
    """The jaxpr of the rule's derivatives with respect to those arguments."""
    step = Equation(equation, (), debug_info)
    place = next(i for i, variable in enumerate(equation.outvars) if not isinstance(variable, core.DropVar))
    gradient = jax.grad(lambda *arguments: step.run(arguments)[place], argnums=varied)
    return jax.make_jaxpr(gradient)(*(jax.ShapeDtypeStruct((), variable.aval.dtype) for variable in equation.invars))
