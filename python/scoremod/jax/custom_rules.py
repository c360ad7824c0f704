"""Whose derivative rule a jax.custom_jvp or jax.custom_vjp call has, and whether it is that of what the function computes.

The derived backward pass differentiates what a function computes. For most of JAX's own functions that is what their rules say, too; a user's
rule may say anything.
"""

import functools
import itertools

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.jax.jaxprs import called_jaxpr, closed, inner_jaxprs, meaning_of
from scoremod.jax.manual_axes import type_like
from scoremod.jax.shard_casts import without_casts, without_casts_and_sums
from scoremod.jax.values import Equation

_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_RULES = ("jvp_jaxpr_fun", "bwd")
# JAX's own wrapping around every rule.
_MACHINERY = ("jax._src.interpreters", "jax._src.custom_derivatives", "jax._src.linear_util", "jax._src.api_util", "jax._src.util")


def has_custom_rule(equation):
    return equation.primitive.name in _CALLS


def is_library_rule(equation):
    """Whether a custom call's rule is certainly JAX's own: every function that it is made of is, and there is one."""
    found = set()
    for name in _RULES:
        _collect_modules(equation.params.get(name), found, set())
    found = {module for module in found if not module.startswith(_MACHINERY)}
    return bool(found) and all(module == "jax" or module.startswith("jax.") for module in found)


def body_has_rules_derivative(equation):
    """Whether what one of JAX's functions is made of has the derivative that its rule says: at 0, at every number in it, and between those. True
    also where that can't be tried, for arguments that are no scalars. Rules are not held to points where they are infinite or NaN."""
    if any(variable.aval.shape != () for variable in (*equation.invars, *equation.outvars)):
        return True
    call = _Call(equation)
    return (_agree if call.is_known else _agree.__wrapped__)(call)


class _Call:
    """An equation, equal to another that computes the same of its arguments and has the same derivatives."""

    def __init__(self, equation):
        self.equation = equation
        self.variables = list(dict.fromkeys(x for x in equation.invars if not isinstance(x, core.Literal)))
        variable = lambda x: f"{self.variables.index(x)} {x.aval.dtype} {x.aval.weak_type}"  # noqa: E731
        arguments = [str(x.val) if isinstance(x, core.Literal) else variable(x) for x in equation.invars]
        meanings = meaning_of(without_casts(called_jaxpr(equation))), meaning_of(self.rules_derivatives())
        self.is_known = None not in meanings
        self._key = equation.primitive.name, meanings, tuple(arguments)

    def __eq__(self, other):
        return self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def rules_derivatives(self):
        """The jaxpr of _derivatives_of() by the rule."""
        step = Equation(self.equation, (), closed(called_jaxpr(self.equation)).jaxpr.debug_info)  # pyright: ignore[reportOptionalMemberAccess]
        return _derivatives_of(lambda *chosen: step.run(self.arguments(chosen)).values(), self.variables)

    def bodys_derivatives(self):
        """The jaxpr of _derivatives_of() by what the function is made of."""
        inner = closed(called_jaxpr(self.equation))
        return _derivatives_of(lambda *chosen: core.jaxpr_as_fun(inner)(*self.arguments(chosen)), self.variables)

    def arguments(self, chosen):
        """The equation's arguments, where its variables have these values."""
        return [x.val if isinstance(x, core.Literal) else chosen[self.variables.index(x)] for x in self.equation.invars]


@functools.lru_cache(maxsize=256)
def _agree(call):
    points, dtypes = _points(called_jaxpr(call.equation)), [variable.aval.dtype for variable in call.variables]
    value, rule = _at_all(points, dtypes, call.rules_derivatives())
    _, body = _at_all(points, dtypes, call.bodys_derivatives())
    for said, made in zip(rule, body):
        held = np.isfinite(value) & np.isfinite(said)
        if not (np.abs(said - made) <= _TOLERANCE * np.maximum(1, np.abs(said)))[held].all():
            return False
    return True


def _derivatives_of(function, variables):
    """The jaxpr, on one shard, of the sum of a function's results and its derivatives with respect to each float variable."""
    dtypes = [variable.aval.dtype for variable in variables]
    floats = tuple(i for i, dtype in enumerate(dtypes) if jnp.issubdtype(dtype, jnp.floating))
    total = lambda *chosen: sum(x.astype(jnp.float32) for x in function(*chosen))  # noqa: E731
    # The rule was written for the variables' own types, which may vary over a mesh.
    types = [type_like(variable.aval, (), dtype) for variable, dtype in zip(variables, dtypes)]
    return without_casts_and_sums(jax.make_jaxpr(jax.value_and_grad(total, argnums=floats))(*types))


def _at_all(points, dtypes, jaxpr):
    """(values, derivatives) that such a jaxpr has at all combinations of points."""
    grid = np.asarray(list(itertools.product(points, repeat=len(dtypes))), np.float32).T
    with jax.core.eval_context():
        arguments = [jnp.asarray(x.astype(dtype)) for x, dtype in zip(grid, dtypes)]
        value, *derivatives = jax.vmap(core.jaxpr_as_fun(jaxpr))(*arguments)
    return np.asarray(value), [np.asarray(x, np.float32) for x in derivatives]


_TOLERANCE = 1e-3


def _points(jaxpr):
    """Numbers where a function may have a kink, and others."""
    found = {0.0, 0.25, 1.0, 1.7, 3.3, 8.0, *_numbers_of(jaxpr)}
    return sorted({x * sign for x in found for sign in (1, -1)})


def _numbers_of(jaxpr):
    for equation in closed(jaxpr).jaxpr.eqns:
        for variable in equation.invars:
            if isinstance(variable, core.Literal) and np.ndim(variable.val) == 0 and np.abs(variable.val) < 1e6:
                yield float(variable.val)
        for inner in inner_jaxprs(equation):
            yield from _numbers_of(inner)


def _collect_modules(function, found, seen):
    """The modules of a function and of what it closes over."""
    if function is None or id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, (tuple, list)):
        inner = function
    elif hasattr(function, "__code__"):
        found.add(function.__module__ or "")
        inner = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    else:
        inner = [getattr(function, name, None) for name in ("f", "func", "fun", "__wrapped__")]
    for each in inner:
        _collect_modules(each, found, seen)


def _is_set(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
