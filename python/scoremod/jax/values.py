"""The variables of a traced function: how XLA computes each, the indices that it depends on, and its node in the score program."""

import itertools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.jax.manual_axes import vary_along, varying_axes
from scoremod.program import AXES

_serials = itertools.count()
# The primitive whose result is a size that jax.export leaves open.
OPEN_SIZE = "dim_as_value"


class Value:
    """One variable of a traced function.

    deps: those of "score", "b", "h", "q_idx" and "kv_idx" that it depends on. Without any it is the same for every element of the
        score, and XLA computes it before the attention; without "score", XLA can compute it for every index it depends on.
    dtype: None for what only JAX has, such as a random key.
    node: the program's node, for a single element that has one; made on demand by the tracer.
    view: an ArrayView, for what is left of an array after some of its dimensions were indexed.
    vector: nodes, for a vector of indices.
    """

    def __init__(self, aval, deps=frozenset(), *, constant=None, literal=False, axis=None, equation=None, output=0):
        self.shape = tuple(aval.shape)
        self.dtype = aval.dtype if isinstance(aval.dtype, np.dtype) else None
        self.deps = deps
        self.is_literal = literal
        self.node: int | None = None
        self.view: Any = None
        self.vector: Any = None
        self._constant, self._axis, self._equation, self._output = constant, axis, equation, output

    @property
    def is_uniform(self):
        return not self.deps

    @property
    def is_single(self):
        """Whether it has one element: a scalar, or an array of it such as score[None]."""
        return all(size == 1 for size in self.shape)

    @property
    def array(self):
        """The array that a function captures, if the value is one."""
        return self._constant

    def known_array(self):
        """The captured array; None for one that JAX traces."""
        return None if isinstance(self._constant, jax.core.Tracer) else self._constant

    def axes(self):
        return tuple(axis for axis in AXES if axis in self.deps)

    def compute(self):
        """The array of a uniform value."""
        return _evaluate(self, {})

    def over(self, sizes):
        """The array of a single score-free element, with a dimension of sizes[axis] for each of its axes."""
        axes = self.axes()

        def scalar(*indices):
            return jnp.reshape(_evaluate(self, dict(zip(axes, indices))), ())

        for position in reversed(range(len(axes))):
            scalar = jax.vmap(scalar, in_axes=[0 if i == position else None for i in range(len(axes))])
        return scalar(*(jnp.arange(sizes[axis], dtype=jnp.int32) for axis in axes))


class Equation:
    """One operation of JAX, which XLA may run outside of the attention."""

    def __init__(self, equation, inputs, debug_info):
        self._debug_info = debug_info
        self.serial = next(_serials)
        self.inputs = inputs
        self._equation = equation

    def run(self, arrays):
        """output number -> array."""
        equation = self._equation
        if equation.primitive.name == OPEN_SIZE:  # of int64 where JAX has that now, though it was traced without
            return {0: jnp.asarray(equation.params["dim"], equation.outvars[0].aval.dtype)}
        variables, given = [], []
        for variable, array in zip(equation.invars, arrays):
            if not isinstance(variable, core.Literal) and variable not in variables:
                variables.append(variable)
                given.append(vary_along(array, varying_axes(variable.aval)))
        used = [i for i, variable in enumerate(equation.outvars) if not isinstance(variable, core.DropVar)]
        outvars = [equation.outvars[i] for i in used]
        # The names are of the whole function's arguments, and JAX_ENABLE_CHECKS=1 counts them.
        names = self._debug_info._replace(arg_names=None, result_paths=None)
        jaxpr = core.Jaxpr([], variables, outvars, [equation], equation.effects, names)
        return dict(zip(used, core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given)))


def constant(array):
    return Value(jax.typeof(array), constant=array)


def literal(value, aval):
    """A number that the function's text has, or that follows from such numbers."""
    return Value(aval, constant=value, literal=True)


def index(axis):
    return Value(jax.ShapeDtypeStruct((), jnp.int32), frozenset([axis]), axis=axis)


def outputs(equation, inputs, debug_info):
    """A Value for each output of an equation."""
    step = Equation(equation, inputs, debug_info)
    deps = frozenset().union(*(value.deps for value in inputs))
    return [Value(variable.aval, deps, equation=step, output=i) for i, variable in enumerate(equation.outvars)]


def _evaluate(value, indices):
    """The array of a value without "score", at these indices (axis -> scalar)."""
    needed, pending = {}, [value]
    while pending:
        step = pending.pop()._equation
        if step is not None and step.serial not in needed:
            needed[step.serial] = step
            pending.extend(step.inputs)
    results = {}

    def array_of(value):
        if value._equation is not None:
            return results[value._equation.serial][value._output]
        return value._constant if value._axis is None else indices[value._axis]

    for serial in sorted(needed):
        results[serial] = needed[serial].run([array_of(given) for given in needed[serial].inputs])
    return array_of(value)
