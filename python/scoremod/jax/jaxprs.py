"""Jaxprs with the arrays that they capture and without: JAX 0.10 has a class for each, JAX 0.11 one for both."""

from jax.extend import core


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


def called_jaxpr(equation):
    """The jaxpr that an equation calls with its own inputs, or None."""
    return next((equation.params[field] for field in ("jaxpr", "call_jaxpr", "fun_jaxpr") if field in equation.params), None)
