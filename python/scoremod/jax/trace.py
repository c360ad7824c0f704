"""From a Python function of one score to a score program."""

import contextlib
import functools
import warnings

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.jax import values
from scoremod.jax.captures import check_integers
from scoremod.jax.custom_rules import body_has_rules_derivative, has_custom_rule, is_library_rule
from scoremod.jax.jaxprs import called_jaxpr, closed, inner_jaxprs
from scoremod.jax.library_functions import jax_settings, library_rule
from scoremod.jax.manual_axes import type_like, vary_alike, varying_axes
from scoremod.jax.operands import OPERAND_TYPES, VIEW_RULES, Operands, index_vector
from scoremod.jax.own_derivatives import with_own_derivative
from scoremod.jax.primitives import EXACT_ON_NARROW, PROGRAM_TYPES, RULES
from scoremod.jax.shard_casts import equation_without_casts, is_cast
from scoremod.pages import command_for
from scoremod.program import AXES, MAX_TABLE_RANK, Builder
from scoremod.program_forms import select_case
from scoremod.user_functions import check_callable, name_of

_INDEX = jax.ShapeDtypeStruct((), jnp.int32)
_SCORE = jax.ShapeDtypeStruct((), jnp.float32)


_SEQUENCES = ("q_idx", "kv_idx")

# The arguments and the result of the two functions.
_SIGNATURES = {
    "score_mod": ([_SCORE, *[_INDEX] * 4], np.dtype(np.float32), "the modified score as float32"),
    "mask_mod": ([_INDEX] * 4, np.dtype(np.bool_), "whether the key is kept as bool"),
}

# The errors that JAX raises where Python or NumPy asks a tracer for its value.
_NEEDS_VALUES = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError)


def jaxpr_of(name, function, like=None, dtype=np.float32):
    """The closed jaxpr of a user's "score_mod" or "mask_mod"; its constants are the arrays that the function captures.

    like: an array; scores and indices then vary over the same axes of a mesh.
    dtype: of scores. For float32 the function is traced without JAX's 64-bit types, on or not: a captured float64 becomes what it does without.
    """
    avals, returned, meaning = _SIGNATURES[name]
    check_callable(name, function)
    wide = np.dtype(dtype) == np.float64
    if wide:
        avals = [jax.ShapeDtypeStruct((), np.float64) if aval.dtype == np.float32 else aval for aval in avals]
    if like is not None and varying_axes(like):
        avals = [type_like(jax.typeof(like), (), aval.dtype) for aval in avals]
    # JAX remembers what a function object was traced to, which a changed global or default makes wrong. A new object is traced anew, and
    # as a wrapper it leaves JAX's messages the function's own name, line and parameters.
    anew = functools.wraps(function, updated=())(lambda *arguments: function(*arguments))
    try:
        with contextlib.nullcontext() if wide else _without_64_bits():
            jaxpr = jax.make_jaxpr(anew)(*avals)
    except _NEEDS_VALUES as error:
        error.add_note(
            f"{name} is called once with tracers, not with numbers: choose with jnp.where, compute with jax.numpy, and index jnp.asarray(a) "
            "instead of a NumPy array or a list a"
        )
        raise
    except OverflowError as error:  # JAX's own of an integer of Python
        raise InvalidArgumentError(f"{name}: expected integers that int32 holds, as score programs have no others; found: {error}") from None
    if not wide:
        check_integers(name, function, avals, jaxpr)
    _check_parts_kept(name, jaxpr)
    results = jaxpr.out_avals
    if len(results) != 1 or results[0].shape != ():
        found = ", ".join(str(aval) for aval in results) or "nothing"
        raise InvalidArgumentError(f"{name}: expected it to return one scalar, found {found}; it is called once for each score")
    if results[0].dtype != returned and not (wide and returned == np.float32 and results[0].dtype == np.float64):
        is_mask = name == "score_mod" and results[0].dtype == np.bool_
        remedy = "a mask is passed as mask_mod, whose arguments are (b, h, q_idx, kv_idx)" if is_mask else "convert it"
        raise InvalidArgumentError(f"{name}: expected it to return {meaning}, found {results[0].dtype}; {remedy}")
    return jaxpr


@contextlib.contextmanager
def _without_64_bits():
    """JAX's 64-bit types switched off, and what it says of leaving them out."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        yield
        return
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        yield


def _check_parts_kept(name, jaxpr):
    """JAX lets a complex number become a real one by leaving out its imaginary part."""
    for equation in closed(jaxpr).jaxpr.eqns:
        if equation.primitive.name == "convert_element_type":
            given, wanted = equation.invars[0].aval.dtype, equation.params["new_dtype"]
            if jnp.issubdtype(given, jnp.complexfloating) and not jnp.issubdtype(wanted, jnp.complexfloating):
                raise InvalidArgumentError(
                    f"{name}: expected real numbers, found {given} at {_line(equation)}, whose imaginary part {wanted} would lose; take its "
                    ".real where that is meant"
                )
        for inner in inner_jaxprs(equation):
            _check_parts_kept(name, inner)


def trace(score_mod, mask_mod, sizes, scale=None, positions=None, upper_limits=(), like=()):
    """(program, sources): the program of both functions, and for each of its operands what makes its array.

    sizes: axis -> size of the score along it, as the functions see it.
    upper_limits: the axes whose size is more than any index needs: an array may be shorter along them.
    scale: an array that the score is multiplied with before score_mod; None to leave that out.
    positions: for some axes a function(tracer, node) from the local index to the one that the functions see.
    like: query, key and value; scores and indices vary over a mesh as they do.
    """
    tracer = Tracer(sizes, upper_limits, like)
    for axis, position in (positions or {}).items():
        tracer.see(axis, position)
    score = values.Value(_SCORE, frozenset(["score"]))
    score.node = tracer.builder.node("score", "f32")
    if scale is not None:
        score.node = tracer.builder.op("mul", score.node, tracer.node_of(values.constant(scale)))
    value, keep = score.node, None
    if score_mod is not None:
        value = tracer.root("score_mod", score_mod, [score, *tracer.indices])
    if mask_mod is not None:
        keep = tracer.root("mask_mod", mask_mod, tracer.indices)
    program, order = tracer.builder.finish(value, keep)
    return program, [tracer.operands.sources[number] for number in order]


class Tracer:
    """Walks the jaxpr of a function and finds a program node for each scalar that it can, a view for each indexed array."""

    def __init__(self, sizes, upper_limits=(), like=()):
        self.sizes = sizes
        self._like = vary_alike(like)[0] if like else None
        self._upper_limits = upper_limits
        self.builder = Builder()
        self.indices = [values.index(axis) for axis in AXES]
        for axis, value in zip(AXES, self.indices):
            value.node = self.builder.node(axis, "i32")
            self.builder.index_axes[value.node] = axis
        self.operands = Operands(self.builder, sizes, dict(zip(AXES, self.indices)))
        self._constants = {}
        self._functions = []
        self._name = self._debug_info = self._where = None
        self._only_values = self._sequences_are_sharded = False

    def see(self, axis, position):
        """Makes position(tracer, node) of the local index along an axis what the functions see."""
        index = self.indices[AXES.index(axis)]
        del self.builder.index_axes[index.node]
        index.node = position(self, index.node)
        self._sequences_are_sharded |= axis in _SEQUENCES
        self.builder.index_axes[index.node] = axis

    @functools.cached_property
    def _jax_settings(self):
        return jax_settings()

    def root(self, name, function, arguments):
        """The node of what a user's function returns."""
        jaxpr = jaxpr_of(name, function, self._like)
        self._functions.append(function)
        self._name, self._debug_info = name, jaxpr.jaxpr.debug_info
        return self.node_of(self.run_inside(jaxpr, arguments, None)[0])

    def node_of(self, value):
        """The node of a single element, of type f32, i32 or bool; None if it can have none. It may be a new operand."""
        if value.node is None and value.is_single and value.dtype in OPERAND_TYPES:
            if value.is_literal:
                value.node = self.builder.constant(np.asarray(value.compute()).reshape(()), OPERAND_TYPES[value.dtype])
            elif value.view is not None:
                value.node = self.operands.read(value.view)
            if value.node is None and "score" not in value.deps:
                value.node = self.operands.scalar(value)
        return value.node

    def values_inside(self, jaxpr, arguments, where):
        """run_inside() for a jaxpr that nobody differentiates, so that its rules of derivatives are ignored."""
        before, self._only_values = self._only_values, True
        try:
            return self.run_inside(jaxpr, arguments, where)
        finally:
            self._only_values = before

    def run_inside(self, jaxpr, arguments, where):
        """The Values of what a jaxpr returns. where: the line of the user's function that led here, once inside a call."""
        jaxpr = closed(jaxpr)
        known = dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))
        known.update(zip(jaxpr.jaxpr.constvars, [self._constant(array) for array in jaxpr.consts]))

        def read(variable):
            return values.literal(variable.val, variable.aval) if isinstance(variable, core.Literal) else known[variable]

        for equation in jaxpr.jaxpr.eqns:
            results = self._equation(equation, [read(variable) for variable in equation.invars], where or _line(equation))
            known.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.jaxpr.outvars]

    def _constant(self, array):
        if id(array) not in self._constants:
            # The array is kept with its Value, so no other can get its id meanwhile.
            self._constants[id(array)] = (array, values.constant(array))
        return self._constants[id(array)][1]

    def _equation(self, equation, inputs, where):
        if equation.effects:
            self._refuse(equation, where, "has an effect, and a score function must be pure")
        if is_cast(equation):
            return inputs
        results = values.outputs(equation, inputs, self._debug_info)
        is_known = equation.primitive.name != values.OPEN_SIZE and all(value.is_literal for value in inputs)
        if is_known and all(value.shape == () and value.dtype is not None for value in results):
            return self._fold(values.outputs(equation_without_casts(equation), inputs, self._debug_info))
        if all(value.is_uniform for value in inputs):
            return results
        called = self._call(equation, inputs, results, where)
        if called is not None:
            return called
        self._scalar(equation, inputs, results)
        if len(results) == 1 and (results[0].node is None or results[0].shape):
            self._indexed(equation, inputs, results[0], where)
        for value in results:
            if "score" in value.deps and value.node is None and value.view is None and value.vector is None:
                self._refuse(equation, where, _why_not(inputs, value))
        return results

    def _fold(self, results):
        with jax.core.eval_context():
            return [values.literal(np.asarray(value.compute()), value) for value in results]

    def _call(self, equation, inputs, results, where):
        """The results of an equation that calls another function, which is inlined; None for any other."""
        types = tuple(PROGRAM_TYPES.get(value.dtype) if value.shape == () else None for value in inputs)
        rule = None if None in types else library_rule(equation, types, self._jax_settings)
        if rule is not None:
            nodes = [self.node_of(value) for value in inputs]
            results[0].node = None if None in nodes else rule(self.builder, equation.params, *nodes)
            if results[0].node is not None:
                return results
        name = equation.primitive.name
        if name == "cond":
            return self._branches(equation, inputs, results, where)
        jaxpr = called_jaxpr(equation)
        if jaxpr is None or name in ("scan", "while"):
            return None
        custom = has_custom_rule(equation) and not self._only_values
        if custom and not (is_library_rule(equation) and body_has_rules_derivative(equation)):
            if any("score" in value.deps for value in inputs):
                why_not = with_own_derivative(self, equation, inputs, results, where, self._debug_info)
                if why_not is not None:
                    self._refuse(equation, where, why_not)
            return results
        return self.run_inside(jaxpr, inputs, where)

    def _branches(self, equation, inputs, results, where):
        """Both branches of a lax.cond (all of a lax.switch), and a choice between their scalars."""
        which = self.node_of(inputs[0])
        if any(value.shape != () for value in results):
            return None
        branches = [self.run_inside(branch, inputs[1:], where) for branch in equation.params["branches"]]
        for value, cases in zip(results, zip(*branches)):
            nodes = [self.node_of(case) for case in cases]
            exact = value.dtype in PROGRAM_TYPES
            if which is not None and exact and None not in nodes:
                value.node = select_case(self.builder, which, nodes)
            elif "score" in value.deps:
                self._refuse(equation, where, "depends on the score and has branches that score programs can't choose between")
        return results

    def _scalar(self, equation, inputs, results):
        """Gives the result of an operation on single elements its node."""
        rule = RULES.get(equation.primitive.name)
        if rule is None or len(results) != 1 or not all(value.is_single for value in [*inputs, results[0]]):
            return
        if results[0].dtype not in PROGRAM_TYPES:
            return
        narrow = any(value.dtype not in PROGRAM_TYPES and not value.is_literal for value in inputs)
        if (narrow and equation.primitive.name not in EXACT_ON_NARROW) or self._stays_outside(inputs, results[0]):
            return
        nodes = [self.node_of(value) for value in inputs]
        if None not in nodes:
            results[0].node = rule(self.builder, equation.params, *nodes)

    def _stays_outside(self, inputs, result):
        """Whether XLA goes on computing: with a value that it computes anyway, over the same indices, an operand is as large."""
        computed = [value for value in inputs if value.deps and value.node is None and value.view is None]
        return "score" not in result.deps and any(value.deps == result.deps for value in computed)

    def check_extent(self, base, dim, extent, node):
        """Raises InvalidArgumentError for an array that is too short for the axis that a node is: jnp would read its last element for every
        index beyond. One that is longer along batches or heads is another problem's, or a whole one's inside jax.shard_map; along a sequence
        it may hold more positions than there are today. dim: the dimension of `base`, the captured array, or None for one of size 1 that it
        doesn't have."""
        axis = self.builder.index_axes.get(node)
        if axis is None or axis in self._upper_limits or extent == self.sizes[axis] or (axis in _SEQUENCES and extent >= self.sizes[axis]):
            return
        name = name_of(base.array, self._functions)
        array = f"'{name}'" if name else "an array"
        place = "an added dimension" if dim is None else f"dimension {dim}"
        if axis in _SEQUENCES and self._sequences_are_sharded:
            remedy = "On a mesh the functions see positions in the whole sequence: give every shard the whole array, by P() among in_specs"
        elif extent < self.sizes[axis]:
            remedy = f"Where all beyond are to read the last, write jnp.minimum({axis}, {extent - 1})"
        else:
            remedy = f"Where the first {self.sizes[axis]} are meant, index a slice of it"
        raise InvalidArgumentError(
            f"{self._name}: {array} of shape {base.shape}, indexed at {self._where} by {axis}: expected a size of {self.sizes[axis]} along {place}, "
            f"one for each {axis}, found {extent}. {remedy}"
        )

    def _indexed(self, equation, inputs, result, where):
        """Gives the result of indexing an array its view, and a vector of indices its nodes."""
        name, self._where = equation.primitive.name, where
        result.vector = index_vector(self, name, equation.params, inputs)
        if name in VIEW_RULES:
            result.view = VIEW_RULES[name](self, equation.params, *inputs)

    def _refuse(self, equation, where, why):
        raise UnsupportedError(
            f"{self._name}: '{equation.primitive.name}' at {where} {why}. Write it with the scalar operations of {command_for('guide/functions')}, or "
            'run the function on XLA with backend="xla"'
        )


def _why_not(inputs, result):
    """Why the result of an operation on the score has no node."""
    if not result.is_single:
        return f"makes an array of shape {result.shape} of the score, and a score function is of one score, whose operations are on scalars"
    if result.dtype not in PROGRAM_TYPES:
        return f"makes {result.dtype} of the score, and score programs have float32, int32 and bool alone"
    tables = [value.view for value in inputs if value.view is not None and value.node is None]
    if tables:
        rank = sum(index is not None for index in tables[0].indices)
        return f"reads an array at {rank} indices that depend on the score, and a table has at most {MAX_TABLE_RANK}"
    many = next((value.shape for value in inputs if not value.is_single), None)
    if many is not None:
        return f"makes one number of the score and an array of shape {many}, and a score program's operations are on scalars"
    return "depends on the score and is no operation of a score program"


def _line(equation):
    """The file and line of an equation in the user's code."""
    try:
        from jax._src import source_info_util  # no public function says this

        return source_info_util.summarize(equation.source_info)
    except (ImportError, AttributeError):
        return "an unknown line"
