"""Captured arrays of 16 bits, whose gradients are summed with more digits than they have.

The transpose of an index adds in the array's own dtype. In bfloat16 a sum stays where it is once a term is less than 1/256 of it.
"""

import jax.numpy as jnp
from jax.extend import core

from scoremod.jax.jaxprs import called_jaxpr, closed
from scoremod.jax.values import Equation

# Primitives that choose or move numbers of their first operand, and compute none.
_MOVES = frozenset(["dynamic_slice", "gather", "slice", "squeeze", "expand_dims", "reshape", "transpose", "broadcast_in_dim", "rev", "copy", "copy_p", "pvary"])
_CALLS = frozenset(["jit", "pjit", "closed_call", "core_call"])


def widened(array, dtype):
    """An array of floats in a dtype, or in its own if that has as many bits."""
    is_narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < jnp.dtype(dtype).itemsize
    return array.astype(dtype) if is_narrow else array


def function_of(jaxpr, arrays):
    """A function of a jaxpr's arguments, to which it captures `arrays`. One that is wider than in the jaxpr stays so until its numbers are
    chosen, and only they are rounded. So its gradient is summed in the wider dtype."""
    whole = core.ClosedJaxpr(jaxpr, arrays)
    if all(array.dtype == variable.aval.dtype for array, variable in zip(arrays, whole.jaxpr.constvars)):
        return core.jaxpr_as_fun(whole)

    def run(*arguments):
        zero = _zero_of_each_score(arguments)
        return [_as_declared(x, variable, zero) for x, variable in zip(_evaluate(whole, arguments, zero), whole.jaxpr.outvars)]

    return run


def _zero_of_each_score(arguments):
    """0, made of all indices. What it is added to has a number for each score under jax.vmap, so that scores' terms are summed as wide as it is."""
    indices = [x for x in arguments if jnp.issubdtype(x.dtype, jnp.integer)]
    return sum(indices[1:], indices[0]) * 0


def _evaluate(jaxpr, arguments, zero):
    """The results of a closed jaxpr, whose constants and arguments may be wider than it has them; so may results that only move numbers."""
    inner = jaxpr.jaxpr
    known = dict(zip((*inner.constvars, *inner.invars), (*jaxpr.consts, *arguments)))
    value = lambda x: x.val if isinstance(x, core.Literal) else known[x]  # noqa: E731
    for equation in inner.eqns:
        given = [value(x) for x in equation.invars]
        exact = [_as_declared(x, variable, zero) for x, variable in zip(given, equation.invars)]
        is_wide = [x is not y for x, y in zip(given, exact)]
        if is_wide[:1] == [True] and equation.primitive.name in _MOVES:
            results = {0: equation.primitive.bind(given[0], *exact[1:], **equation.params)}
        elif any(is_wide) and equation.primitive.name in _CALLS:
            results = dict(enumerate(_evaluate(closed(called_jaxpr(equation)), given, zero)))
        else:
            results = Equation(equation, (), inner.debug_info).run(exact)
        known.update((equation.outvars[i], result) for i, result in results.items())
    return [value(x) for x in inner.outvars]


def _as_declared(value, variable, zero):
    """A value, rounded where it is wider than its variable says."""
    if isinstance(variable, core.Literal) or not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    dtype = variable.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    return value if value.dtype == dtype else (value + zero.astype(value.dtype)).astype(dtype)
