"""The vocabulary of cuDNN graph callbacks, for score functions that were written as score_mod(graph, score, tensors).

The methods have the names and keywords of cudnn-frontend's graph (its Python class pygraph). Each computes on one element of the score, so
what a callback builds is traced as any score function is.
"""

import inspect
import math

import jax
import jax.numpy as jnp
from jax import lax

from scoremod.errors import InvalidArgumentError


class Tensor:
    """One element of a tensor of a graph. Data types, names, shapes and ids may be set as in cuDNN; they mean nothing here, where the
    operations decide them."""

    def __init__(self, value):
        self.value = value

    def _chain(self, *_, **__):
        return self

    set_name = set_data_type = set_output = set_uid = set_dim = set_stride = set_is_virtual = _chain


def _two(function):
    return lambda x, y: function(*_alike(x, y))


def _alike(*values):
    """In one dtype: cuDNN computes in float32."""
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
_WITH_BACKWARD = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish")


class Graph:
    """What a callback builds on. Every method also takes compute_data_type and name, which mean nothing here."""

    def __init__(self, indices):
        self._indices = indices

    def gen_index(self, input, axis, compute_data_type=None, name=""):
        """The position along an axis of the score: 0 batch, 1 head, 2 query, 3 key."""
        if axis not in range(4):
            raise InvalidArgumentError(f"gen_index: expected an axis from 0 to 3, found {axis!r}")
        return Tensor(self._indices[axis])

    def binary_select(self, input0, input1, mask, compute_data_type=None, name=""):
        """input0 where mask holds, else input1."""
        chosen, other = _alike(input0.value, input1.value)
        return Tensor(jnp.where(mask.value, chosen, other))


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
            raise InvalidArgumentError(f"graph.{name}{signature}: {error}") from None
        for each in arguments:
            if not isinstance(given[each], Tensor):
                raise InvalidArgumentError(f"graph.{name}: expected a tensor of the graph as '{each}', found {given[each]!r}")
        chosen = {each: given[each] for each in options if given.get(each) is not None}
        values = [given[each].value for each in arguments]
        try:
            return Tensor(function(*values, **chosen))
        except TypeError as error:
            found = ", ".join(f"{each} of {jnp.asarray(value).dtype}" for each, value in zip(arguments, values))
            raise InvalidArgumentError(f"graph.{name}: found {found}, which it can't be computed of: {error}") from None

    method.__name__, method.__signature__ = name, signature
    setattr(Graph, name, method)


# Of activations whose JAX's isn't made of a score program's operations.
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
