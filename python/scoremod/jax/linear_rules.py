"""Whether a traced function's results are multiples of its first argument, as a program's derivatives are of the one from above."""

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.jax.jaxprs import called_jaxpr, closed

_ZERO, _CONSTANT, _MULTIPLE = range(3)

# Multiples where their only argument is one.
_ALONE = {
    *("neg", "copy", "copy_p", "real", "reduce_precision", "reduce_sum", "optimization_barrier", "pvary", "pcast"),
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "rev", "slice"),
}


def is_multiple_of_first(jaxpr):
    """Whether each result is one for certain; False also for what is not known here, such as a loop."""
    jaxpr = closed(jaxpr)
    results = _inside(jaxpr, [_MULTIPLE] + [_CONSTANT] * (len(jaxpr.in_avals) - 1))
    return results is not None and _CONSTANT not in results


def _inside(jaxpr, arguments):
    """The kind of each result (_ZERO, _CONSTANT or _MULTIPLE); None where one of them is unknown."""
    known = dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))
    known.update((variable, _CONSTANT) for variable in jaxpr.jaxpr.constvars)

    def of(variable):
        if isinstance(variable, core.Literal):
            return _ZERO if np.all(np.asarray(variable.val) == 0) else _CONSTANT
        return known[variable]

    for equation in jaxpr.jaxpr.eqns:
        results = _equation(equation, [of(variable) for variable in equation.invars])
        if results is None:
            return None
        known.update(zip(equation.outvars, results, strict=True))
    return [of(variable) for variable in jaxpr.jaxpr.outvars]


def _equation(equation, given):
    name, count = equation.primitive.name, len(equation.outvars)
    if called_jaxpr(equation) is not None and name not in ("scan", "while"):
        return _inside(closed(called_jaxpr(equation)), given)
    if _MULTIPLE not in given:
        keeps_zeros = name in _ALONE or name == "convert_element_type"
        return [_ZERO if keeps_zeros and set(given) == {_ZERO} else _CONSTANT] * count
    if name == "cond":
        branches = [_inside(closed(branch), given[1:]) for branch in equation.params["branches"]]
        return None if given[0] == _MULTIPLE or None in branches else _joined(branches)
    return [_MULTIPLE] * count if _is_multiple(equation, name, given) else None


def _joined(branches):
    """The kinds of a conditional's results, of which any branch may be taken; None where branches disagree."""
    results = []
    for cases in zip(*branches):
        if _MULTIPLE in cases and _CONSTANT in cases:
            return None
        results.append(max(cases))
    return results


def _is_multiple(equation, name, given):
    if name in _ALONE:
        return True
    if name == "convert_element_type":
        return jnp.issubdtype(equation.params["new_dtype"], jnp.floating)
    if name in ("add", "add_any", "sub", "concatenate"):
        return _CONSTANT not in given
    if name == "select_n":
        return given[0] != _MULTIPLE and _CONSTANT not in given[1:]
    if name == "mul":
        return given.count(_MULTIPLE) == 1
    if name == "div":
        return given[1] != _MULTIPLE
    return name == "integer_pow" and equation.params["y"] == 1
