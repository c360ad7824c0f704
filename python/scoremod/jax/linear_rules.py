"""Whether a traced function's results are multiples of its first argument, as a program's derivatives are of the one from above."""

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.jax.jaxprs import called_jaxpr, closed
from scoremod.multiples import ALONE, CHOICE, CONSTANT, MULTIPLE, PRODUCT, QUOTIENT, SUM, ZERO, kind_of

_ALONE = {
    *("neg", "copy", "copy_p", "real", "reduce_precision", "reduce_sum", "optimization_barrier", "pvary", "pcast"),
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "rev", "slice"),
}
_RULES = {
    **dict.fromkeys(_ALONE, ALONE),
    **dict.fromkeys(("add", "add_any", "sub", "concatenate"), SUM),
    "select_n": CHOICE,
    "mul": PRODUCT,
    "div": QUOTIENT,
}


def is_multiple_of_first(jaxpr):
    """Whether each result is one for certain; False also for what is not known here, such as a loop."""
    jaxpr = closed(jaxpr)
    results = _inside(jaxpr, [MULTIPLE] + [CONSTANT] * (len(jaxpr.in_avals) - 1))
    return results is not None and CONSTANT not in results


def _inside(jaxpr, arguments):
    """The kind of each result (ZERO, CONSTANT or MULTIPLE); None where one of them is unknown."""
    known = dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))
    known.update((variable, CONSTANT) for variable in jaxpr.jaxpr.constvars)

    def of(variable):
        if isinstance(variable, core.Literal):
            return ZERO if np.all(np.asarray(variable.val) == 0) else CONSTANT
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
    if name == "cond" and MULTIPLE in given:
        branches = [_inside(closed(branch), given[1:]) for branch in equation.params["branches"]]
        return None if given[0] == MULTIPLE or None in branches else _joined(branches)
    kind = kind_of(_rule(equation, MULTIPLE in given), given)
    return None if kind is None else [kind] * count


def _joined(branches):
    """The kinds of a conditional's results, of which any branch may be taken; None where branches disagree."""
    results = []
    for cases in zip(*branches):
        if MULTIPLE in cases and CONSTANT in cases:
            return None
        results.append(max(cases))
    return results


def _rule(equation, of_multiples):
    """The rule of an equation in scoremod.multiples; None without one."""
    name, parameters = equation.primitive.name, equation.params
    if name == "convert_element_type":
        return ALONE if not of_multiples or jnp.issubdtype(parameters["new_dtype"], jnp.floating) else None
    return ALONE if name == "integer_pow" and of_multiples and parameters["y"] == 1 else _RULES.get(name)
