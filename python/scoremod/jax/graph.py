"""The vocabulary of cuDNN graph callbacks, for score functions that were written as score_mod(graph, score, tensors).

The methods have the names and keywords of cudnn-frontend's graph (its Python class pygraph). Each computes on one element of the score, so
what a callback builds is traced as any score function is.
"""

import inspect
import math
import numbers

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scoremod.errors import InvalidArgumentError, WrongTypeError


_KINDS = {"FLOAT": np.float32, "FLOAT32": np.float32, "INT32": np.int32, "BOOLEAN": np.bool_, "BOOL": np.bool_}


def _kind(what, data_type):
    """The NumPy dtype of a data type of cuDNN, or of its name."""
    name = str(getattr(data_type, "name", data_type)).rpartition(".")[2].upper()
    if name not in _KINDS:
        raise InvalidArgumentError(f"{what}: expected FLOAT, INT32 or BOOLEAN, in which elements of a score are computed, found {data_type!r}; leave it out")
    return np.dtype(_KINDS[name])


class Tensor:
    """One element of a tensor of a graph. Names, shapes and ids may be set as in cuDNN; they mean nothing here, where one element is
    computed. A data type is obeyed: of integers and truth values as float, and otherwise it must be what the operations give."""

    def __init__(self, value):
        self.value = value

    def set_data_type(self, data_type):
        """The tensor itself, of this data type: FLOAT, INT32 or BOOLEAN, or their names."""
        kind, found = _kind("set_data_type", data_type), np.dtype(self.value.dtype)
        if kind == np.float32 and found in (np.int32, np.bool_):
            self.value = self.value.astype(np.float32)
        elif kind != found and not (kind == np.float32 and jnp.issubdtype(found, jnp.floating)):
            raise InvalidArgumentError(f"set_data_type: expected {found}, which the operation gives, or FLOAT, found {data_type!r}; compare or select instead")
        return self

    def _chain(self, *_, **__):
        """The tensor itself: this means nothing here."""
        return self

    set_name = set_output = set_uid = set_dim = set_stride = set_is_virtual = _chain


def _tensor(name, argument, given):
    """An argument of a method: a tensor, or a number, which becomes a constant of the program."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, (bool, np.bool_)):
        return Tensor(np.bool_(given))
    if isinstance(given, numbers.Integral) and abs(int(given)) < 2**31:
        return Tensor(np.int32(given))
    if isinstance(given, numbers.Real):
        return Tensor(np.float32(given))
    raise WrongTypeError(f"graph.{name}: expected a tensor of the graph or a number as '{argument}', found {given!r}")


def _two(function):
    return lambda x, y: function(*_alike(x, y))


def _alike(*values):
    """In one dtype: cuDNN computes in float32. A whole number beside a float is one."""
    dtypes = {value.dtype for value in values}
    return values if len(dtypes) == 1 else tuple(value.astype(jnp.float32) for value in values)


def _float(function):
    return lambda x, **options: function(x.astype(jnp.float32), **options)


def _relu(x, negative_slope=0.0, lower_clip=0.0, upper_clip=None):
    y = jnp.where(x > lower_clip, x, lower_clip + negative_slope * (x - lower_clip))
    return y if upper_clip is None else jnp.minimum(y, upper_clip)


def _elu(x):
    return jnp.where(x > 0, x, jnp.expm1(x))


def _swish(x, swish_beta=1.0):
    return x * jax.nn.sigmoid(swish_beta * x)


def _leaky_relu(x, negative_slope=0.01):
    return jnp.where(x > 0, x, negative_slope * x)


def _gelu(x):
    # jax.nn.gelu is made of erfc, which score programs don't have.
    return 0.5 * x * (1 + lax.erf(x * 0.5**0.5))


def _gelu_derivative(x):
    # JAX makes erf's derivative of bits, which score programs don't have.
    return 0.5 * (1 + lax.erf(x * 0.5**0.5)) + x * jnp.exp(-0.5 * x * x) * (2 * math.pi) ** -0.5


_UNARY = {
    "sqrt": _float(jnp.sqrt),
    "rsqrt": _float(lax.rsqrt),
    "reciprocal": _float(jnp.reciprocal),
    "exp": _float(jnp.exp),
    "log": _float(jnp.log),
    "neg": jnp.negative,
    "abs": jnp.abs,
    "ceil": _float(jnp.ceil),
    "floor": _float(jnp.floor),
    "sin": _float(jnp.sin),
    "cos": _float(jnp.cos),
    "tan": _float(jnp.tan),
    "erf": _float(lax.erf),
    "identity": lambda x: x,
    "logical_not": jnp.logical_not,
    "tanh": _float(jnp.tanh),
    "elu": _float(_elu),
    "gelu": _float(_gelu),
    "gelu_approx_tanh": _float(jax.nn.gelu),
    "sigmoid": _float(jax.nn.sigmoid),
    "swish": _float(_swish),
    "softplus": _float(jax.nn.softplus),
    "relu": _float(_relu),
    "leaky_relu": _float(_leaky_relu),
}
# Method -> (the names of its arguments, what it computes).
_BINARY = {
    **{name: (("a", "b"), _two(function)) for name, function in {
        "add": jnp.add, "mul": jnp.multiply, "sub": jnp.subtract, "add_square": lambda a, b: a + b * b,
    }.items()},
    "div": (("a", "b"), lambda a, b: a.astype(jnp.float32) / b.astype(jnp.float32)),
    "logical_and": (("a", "b"), jnp.logical_and),
    "logical_or": (("a", "b"), jnp.logical_or),
    "bias": (("input", "bias"), _two(jnp.add)),
    "scale": (("input", "scale"), _two(jnp.multiply)),
    **{name: (("input0", "input1"), _two(function)) for name, function in {
        "max": jnp.maximum, "min": jnp.minimum, "mod": jnp.fmod, "pow": jnp.power,
    }.items()},
    **{f"cmp_{name}": (("input", "comparison"), _two(function)) for name, function in {
        "eq": jnp.equal, "neq": jnp.not_equal, "gt": jnp.greater, "ge": jnp.greater_equal, "lt": jnp.less, "le": jnp.less_equal,
    }.items()},
}  # fmt: skip
_COMPARISONS = {"eq": "==", "neq": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_WITH_BACKWARD = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish")


class Graph:
    """The graph that a callback builds on. Arguments are tensors of it, or numbers. Every method also takes a name, which is ignored, and
    compute_data_type: FLOAT, or the type of the arguments or of the result."""

    def __init__(self, indices):
        self._indices = indices

    def gen_index(self, input, axis, compute_data_type=None, name=""):
        """The position along an axis of the score: 0 batch, 1 head, 2 query, 3 key."""
        if axis not in range(4):
            raise InvalidArgumentError(f"gen_index: expected an axis from 0 to 3, found {axis!r}")
        return Tensor(self._indices[axis])

    def binary_select(self, input0, input1, mask, compute_data_type=None, name=""):
        """input0 where mask holds, else input1."""
        given = {"input0": input0, "input1": input1, "mask": mask}
        values = {each: _tensor("binary_select", each, tensor).value for each, tensor in given.items()}
        chosen, other = _alike(values["input0"], values["input1"])
        result = Tensor(jnp.where(values["mask"], chosen, other))
        _check_compute_type("binary_select", compute_data_type, [Tensor(chosen), Tensor(other)], result)
        return result


def _check_compute_type(name, data_type, tensors, result):
    """Operations are computed in float32, of integers and truth values as those. The result's type says no more: a comparison gives truth values."""
    if data_type is None:
        return
    kind = _kind(f"graph.{name}: compute_data_type", data_type)
    if kind not in (np.float32, np.dtype(result.value.dtype)) and any(np.dtype(tensor.value.dtype) != kind for tensor in tensors):
        raise InvalidArgumentError(
            f"graph.{name}: compute_data_type: expected FLOAT, or the type of these arguments or of the result, {result.value.dtype}; found {data_type!r}"
        )


def _add_method(name, arguments, function, options=()):
    """Gives Graph a method; arguments and options by position or by name."""
    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in arguments]
    known = [*options, "compute_data_type", "name"]
    parameters += [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for each in known]
    signature = inspect.Signature(parameters)

    def method(self, *args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise WrongTypeError(f"graph.{name}{signature}: {error}") from None
        tensors = [_tensor(name, each, given[each]) for each in arguments]
        chosen = {each: given[each] for each in options if given.get(each) is not None}
        values = [tensor.value for tensor in tensors]
        try:
            result = Tensor(function(*values, **chosen))
        except TypeError:
            found = ", ".join(f"{each} of {jnp.asarray(value).dtype}" for each, value in zip(arguments, values))
            expected = "truth values" if name.startswith("logical") else "numbers of one type"
            raise WrongTypeError(
                f"graph.{name}: expected {expected}, found {found}; binary_select makes numbers of truth values, a comparison the other way"
            ) from None
        _check_compute_type(name, given.get("compute_data_type"), tensors, result)
        return result

    method.__name__, method.__qualname__, method.__signature__ = name, f"Graph.{name}", signature
    method.__doc__ = _text_of(name, arguments)
    setattr(Graph, name, method)


def _text_of(name, arguments):
    if name.startswith("cmp_"):
        return f"Whether input {_COMPARISONS[name.removeprefix('cmp_')]} comparison, as a truth value."
    if name.endswith("_backward"):
        return f"loss times the derivative of {name.removesuffix('_backward')} at input: the gradient of its input from that of its output."
    return f"cuDNN's pointwise {name} of {' and '.join(arguments)}, element by element."


# Derivatives of activations whose JAX derivative has operations that a score program lacks.
_DERIVATIVES = {"gelu": _gelu_derivative}


def _backward_of(function, derivative_of=None):
    """d loss / d input of an activation, given d loss / d output. derivative_of: its derivative; JAX's without it."""

    def backward(loss, input, **options):
        differentiate = derivative_of or jax.grad(lambda x: function(x, **options))
        return loss * differentiate(input.astype(jnp.float32))

    return backward


def _options_of(name):
    activation = {"relu": _relu, "leaky_relu": _leaky_relu, "swish": _swish}.get(name)
    return () if activation is None else tuple(inspect.signature(activation).parameters)[1:]


for _name, _function in _UNARY.items():
    _add_method(_name, ("input",), _function, _options_of(_name))
for _name, (_arguments, _function) in _BINARY.items():
    _add_method(_name, _arguments, _function)
for _name in _WITH_BACKWARD:
    _add_method(f"{_name}_backward", ("loss", "input"), _backward_of(_UNARY[_name], _DERIVATIVES.get(_name)), _options_of(_name))
