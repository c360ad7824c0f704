"""Casts that JAX writes into a function inside jax.shard_map, where an array that all shards share meets one that differs by shard (check_vma).

On one shard a cast does nothing, and JAX runs none outside of jax.shard_map."""

import jax
import jax.core
from jax.extend import core

from scoremod.jax.jaxprs import closed

_CASTS = ("pvary", "reduced_vary_cast", "reduced_vary_cast_p")
# JAX transposes a cast to this.
_SUM_OVER_SHARDS = "psum_invariant"


def is_cast(equation):
    return equation.primitive.name in _CASTS


def without_casts(jaxpr):
    """The jaxpr as it computes on one shard, with types that name no mesh."""
    return _OneShard(is_cast).jaxpr(jaxpr)


def equation_without_casts(equation):
    """An equation as it computes on one shard, with what it calls."""
    return _OneShard(is_cast).equation(equation)


def without_casts_and_sums(jaxpr):
    """without_casts() of a gradient of something that has no sum over shards: the sums in it are transposes of casts."""
    return _OneShard(lambda equation: is_cast(equation) or equation.primitive.name == _SUM_OVER_SHARDS).jaxpr(jaxpr)


def without_last_sums(jaxpr):
    """without_casts() of a jaxpr whose results JAX sums over shards, without these sums: they are the shard's own."""
    inside = closed(jaxpr).jaxpr
    read = {id(variable) for equation in inside.eqns for variable in equation.invars}
    last = {id(variable) for variable in inside.outvars} - read
    is_last = lambda equation: equation.primitive.name == _SUM_OVER_SHARDS and id(equation.outvars[0]) in last  # noqa: E731
    return _OneShard(lambda equation: is_cast(equation) or is_last(equation)).jaxpr(jaxpr)


class _OneShard:
    """Copies jaxprs with types that name no mesh, without some of the equations."""

    def __init__(self, left_out):
        self._left_out = left_out
        self._variables = {}

    def jaxpr(self, jaxpr):
        inside = closed(jaxpr).jaxpr
        equations = []
        for equation in inside.eqns:
            if self._left_out(equation):
                self._variables.update(zip(equation.outvars, map(self._variable, equation.invars), strict=True))
            else:
                equations.append(self.equation(equation))
        ends = (list(map(self._variable, variables)) for variables in (inside.constvars, inside.invars, inside.outvars))
        names = inside.debug_info._replace(arg_names=None, result_paths=None)
        copied = core.Jaxpr(*ends, equations, inside.effects, names)  # pyright: ignore[reportCallIssue]
        return core.ClosedJaxpr(copied, jaxpr.consts) if hasattr(jaxpr, "consts") else copied

    def equation(self, equation):
        ends = {name: list(map(self._variable, getattr(equation, name))) for name in ("invars", "outvars")}
        return equation.replace(**ends, params={name: self._parameter(value) for name, value in equation.params.items()})

    def _parameter(self, value):
        if isinstance(value, (core.Jaxpr, core.ClosedJaxpr)):
            return self.jaxpr(value)
        is_plain = type(value) in (tuple, list)
        return type(value)(map(self._parameter, value)) if is_plain else value

    def _variable(self, variable):
        aval = variable.aval
        if isinstance(aval, jax.core.ShapedArray):
            aval = jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)
        if isinstance(variable, core.Literal):
            return core.Literal(variable.val, aval)
        return self._variables.setdefault(variable, type(variable)(aval))
