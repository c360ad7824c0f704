"""Jaxprs with the arrays that they capture and without: JAX 0.10 has a class for each, JAX 0.11 one for both."""

import jax
import jax.core
import numpy as np
from jax.extend import core

# Functions among the parameters of equations that change nothing of what is computed: rules of derivatives.
_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "fwd", "bwd")


def closed(jaxpr):
    """A jaxpr as one that has `consts`."""
    return jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, ())


def without_arrays(jaxpr):
    """A closed jaxpr as one that gets its captured arrays with ClosedJaxpr(jaxpr, arrays)."""
    return jaxpr.with_consts(()) if hasattr(jaxpr, "with_consts") else jaxpr.jaxpr


def inner_jaxprs(equation):
    """The jaxprs among an equation's parameters: of what it calls, of its branches, of its loop."""
    for value in equation.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, (core.Jaxpr, core.ClosedJaxpr)):
                yield each


def meaning_of(jaxpr):
    """The text of a jaxpr and the arrays that it captures. Jaxprs with equal ones compute the same of the same arguments.

    None where the text leaves something out, such as a Python callback, and where an array is traced."""
    jaxpr = closed(jaxpr)
    if not _is_said_by_text(jaxpr):
        return None
    return str(jaxpr), tuple((str(array.dtype), array.shape, array.tobytes()) for array in map(np.asarray, jaxpr.consts))


def _is_said_by_text(jaxpr):
    jaxpr = closed(jaxpr)
    if jaxpr.effects or any(isinstance(array, jax.core.Tracer) for array in jaxpr.consts):
        return False
    for equation in jaxpr.jaxpr.eqns:
        if any(_may_compute(value) for name, value in equation.params.items() if name not in _RULES):
            return False
        if any(not _is_said_by_text(inner) for inner in inner_jaxprs(equation)):
            return False
    return True


def _may_compute(value):
    """Whether a parameter is a function, of which text says nothing. A mesh can be called, too; an empty one is none."""
    is_no_mesh = isinstance(value, jax.sharding.Mesh) and value.empty
    return callable(value) and not isinstance(value, type) and not is_no_mesh


def called_jaxpr(equation):
    """The jaxpr that an equation calls with its own inputs, or None."""
    return next((equation.params[field] for field in ("jaxpr", "call_jaxpr", "fun_jaxpr") if field in equation.params), None)
