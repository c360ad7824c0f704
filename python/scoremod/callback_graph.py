"""The vocabulary of cuDNN graph callbacks, score_mod(graph, score, tensors): what each method of a graph computes of one element of a score.

The methods have the names and keywords of cudnn-frontend's graph (its Python class pygraph). A framework gives them its functions of elements:
the functions of a Graph and of its Tensors, with the names that the formulas here call, and

    kind(value)             the name of its dtype, such as "float32"
    constant(number, kind)  a number of the callback's text
    to_float(value)         the value in float32
"""

import inspect
import math
import numbers
from typing import Any, ClassVar

import numpy as np

from scoremod.errors import InvalidArgumentError, WrongTypeError

_KINDS = {"FLOAT": "float32", "FLOAT32": "float32", "INT32": "int32", "BOOLEAN": "bool", "BOOL": "bool"}
_FLOATS = ("float32", "float64", "float16", "bfloat16")


def _kind(what, data_type):
    """The kind of a data type of cuDNN, or of its name."""
    name = str(getattr(data_type, "name", data_type)).rpartition(".")[2].upper()
    if name not in _KINDS:
        raise InvalidArgumentError(f"{what}: expected FLOAT, INT32 or BOOLEAN, in which elements of a score are computed, found {data_type!r}; leave it out")
    return _KINDS[name]


class Tensor:
    """One element of a tensor of a graph. Names, shapes and ids may be set as in cuDNN; they mean nothing here, where one element is
    computed. A data type is obeyed: of integers and truth values as float, and otherwise it must be what the operations give."""

    functions: Any

    def __init__(self, value):
        self.value = value

    def set_data_type(self, data_type):
        """The tensor itself, of this data type: FLOAT, INT32 or BOOLEAN, or their names."""
        kind, found = _kind("set_data_type", data_type), self.functions.kind(self.value)
        if kind == "float32" and found in ("int32", "bool"):
            self.value = self.functions.to_float(self.value)
        elif kind != found and not (kind == "float32" and found in _FLOATS):
            raise InvalidArgumentError(f"set_data_type: expected {found}, which the operation gives, or FLOAT, found {data_type!r}; compare or select instead")
        return self

    def _chain(self, *_, **__):
        """The tensor itself: this means nothing here."""
        return self

    set_name = set_output = set_uid = set_dim = set_stride = set_is_virtual = _chain


class Graph:
    """The graph that a callback builds on. Arguments are tensors of it, or numbers. Every method also takes a name, which is ignored, and
    compute_data_type: FLOAT, or the type of the arguments or of the result."""

    tensor: ClassVar[type[Tensor]]
    functions: Any

    def __init__(self, indices):
        self._indices = indices

    def gen_index(self, input, axis, compute_data_type=None, name=""):
        """The position along an axis of the score: 0 batch, 1 head, 2 query, 3 key."""
        if axis not in range(4):
            raise InvalidArgumentError(f"gen_index: expected an axis from 0 to 3, found {axis!r}")
        return self.tensor(self._indices[axis])

    def binary_select(self, input0, input1, mask, compute_data_type=None, name=""):
        """input0 where mask holds, else input1."""
        one, other, keep = (self._tensor("binary_select", each, given) for each, given in (("input0", input0), ("input1", input1), ("mask", mask)))
        functions = self.functions
        chosen, other = _alike(functions, one.value, other.value)
        result = self.tensor(functions.where(keep.value, chosen, other))
        self._check_compute_type("binary_select", compute_data_type, [chosen, other], result.value)
        return result

    def _tensor(self, name, argument, given):
        """An argument of a method: a tensor, or a number, which becomes a constant of the program."""
        if isinstance(given, Tensor):
            return given
        constant = self.functions.constant
        if isinstance(given, (bool, np.bool_)):
            return self.tensor(constant(bool(given), "bool"))
        if isinstance(given, numbers.Integral) and abs(int(given)) < 2**31:
            return self.tensor(constant(int(given), "int32"))
        if isinstance(given, numbers.Real):
            return self.tensor(constant(float(given), "float32"))
        raise WrongTypeError(f"graph.{name}: expected a tensor of the graph or a number as '{argument}', found {given!r}")

    def _check_compute_type(self, name, data_type, values, result):
        """Operations are computed in float32, of integers and truth values as those. The result's type says no more: a comparison gives truth values."""
        if data_type is None:
            return
        kind, found = _kind(f"graph.{name}: compute_data_type", data_type), self.functions.kind(result)
        if kind not in ("float32", found) and any(self.functions.kind(value) != kind for value in values):
            raise InvalidArgumentError(
                f"graph.{name}: compute_data_type: expected FLOAT, or the type of these arguments or of the result, {found}; found {data_type!r}"
            )

    def _compute(self, name, args, kwargs):
        """The result of a method that was called with these."""
        functions, method = self.functions, _METHODS[name]
        given = method.bound(args, kwargs)
        values = [self._tensor(method.name, each, given[each]).value for each in method.arguments]
        options = {each: given[each] for each in method.options if given.get(each) is not None}
        try:
            result = method.formula(functions, *values, **options)
        except TypeError:
            found = ", ".join(f"{each} of {functions.kind(value)}" for each, value in zip(method.arguments, values))
            expected = "truth values" if method.name.startswith("logical") else "numbers of one type"
            raise WrongTypeError(
                f"graph.{method.name}: expected {expected}, found {found}; binary_select makes numbers of truth values, a comparison the other way"
            ) from None
        self._check_compute_type(method.name, given.get("compute_data_type"), values, result)
        return self.tensor(result)


class Tensors(dict):
    """A callback's tensors by name. what: the callback's name."""

    def __init__(self, what, tensors):
        super().__init__(tensors)
        self._what = what

    def __missing__(self, name):
        known = ", ".join(map(repr, self)) or "none"
        raise InvalidArgumentError(f"{self._what}: expected a tensor among {self._what}_tensors ({known}), found {name!r}; add it there")


def call_back(callback, name, score, elements, graph):
    """The value of the Tensor that a callback makes of a score on a Graph. elements: name -> value."""
    tensors = Tensors(name, {each: graph.tensor(value) for each, value in elements.items()})
    result = callback(graph, graph.tensor(score), tensors)
    if not isinstance(result, Tensor):
        raise WrongTypeError(f"{name}: expected it to return a tensor of the graph, found {result!r}")
    return result.value


# The formulas. f: the functions of a framework.


def _alike(f, *values):
    """In one dtype: cuDNN computes in float32. A whole number beside a float is one."""
    return values if len({f.kind(value) for value in values}) == 1 else tuple(map(f.to_float, values))


def _two(name):
    return lambda f, x, y: getattr(f, name)(*_alike(f, x, y))


def _as_it_is(name):
    return lambda f, *values: getattr(f, name)(*values)


def _float(formula):
    """A formula, or the name of a function, of a value in float32."""
    formula = _as_it_is(formula) if isinstance(formula, str) else formula
    return lambda f, x, **options: formula(f, f.to_float(x), **options)


def _add_square(f, x, y):
    x, y = _alike(f, x, y)
    return f.add(x, f.mul(y, y))


def _relu(f, x, negative_slope=0.0, lower_clip=0.0, upper_clip=None):
    y = f.where(f.gt(x, lower_clip), x, f.add(f.mul(f.sub(x, lower_clip), negative_slope), lower_clip))
    return y if upper_clip is None else f.minimum(y, upper_clip)


def _relu_derivative(f, x, negative_slope=0.0, lower_clip=0.0, upper_clip=None):
    slope = f.where(f.gt(x, lower_clip), 1.0, negative_slope)
    y = _relu(f, x, negative_slope, lower_clip)
    return slope if upper_clip is None else f.where(f.lt(y, upper_clip), slope, 0.0)


def _leaky_relu(f, x, negative_slope=0.01):
    return f.where(f.gt(x, 0.0), x, f.mul(x, negative_slope))


def _elu(f, x):
    return f.where(f.gt(x, 0.0), x, f.expm1(x))


def _swish(f, x, swish_beta=1.0):
    return f.mul(x, f.sigmoid(f.mul(x, swish_beta)))


def _swish_derivative(f, x, swish_beta=1.0):
    s = f.sigmoid(f.mul(x, swish_beta))
    return f.add(s, f.mul(f.mul(f.mul(x, swish_beta), s), f.sub(1.0, s)))


def _gelu_weight(f, x):
    return f.mul(f.add(f.erf(f.mul(x, 0.5**0.5)), 1.0), 0.5)


def _gelu_derivative(f, x):
    return f.add(_gelu_weight(f, x), f.mul(f.mul(x, (2 * math.pi) ** -0.5), f.exp(f.mul(f.mul(x, x), -0.5))))


def _gelu_tanh(f, x):
    cubic = f.add(f.mul(f.mul(x, x), 0.044715), 1.0)
    return f.tanh(f.mul(f.mul(x, cubic), (2 / math.pi) ** 0.5))


def _gelu_approx_tanh(f, x):
    return f.mul(f.mul(x, 0.5), f.add(_gelu_tanh(f, x), 1.0))


def _gelu_approx_tanh_derivative(f, x):
    t = _gelu_tanh(f, x)
    slope = f.mul(f.add(f.mul(f.mul(x, x), 3 * 0.044715), 1.0), (2 / math.pi) ** 0.5)
    return f.add(f.mul(f.add(t, 1.0), 0.5), f.mul(f.mul(f.mul(x, 0.5), _rest(f, t)), slope))


def _rest(f, t):
    return f.sub(1.0, f.mul(t, t))


def _sigmoid_derivative(f, x):
    s = f.sigmoid(x)
    return f.mul(s, f.sub(1.0, s))


# Activation -> (its formula, its derivative's).
_ACTIVATIONS = {
    "relu": (_relu, _relu_derivative),
    "leaky_relu": (_leaky_relu, lambda f, x, negative_slope=0.01: f.where(f.gt(x, 0.0), 1.0, negative_slope)),
    "tanh": (_as_it_is("tanh"), lambda f, x: _rest(f, f.tanh(x))),
    "sigmoid": (_as_it_is("sigmoid"), _sigmoid_derivative),
    "elu": (_elu, lambda f, x: f.where(f.gt(x, 0.0), 1.0, f.exp(x))),
    "gelu": (lambda f, x: f.mul(x, _gelu_weight(f, x)), _gelu_derivative),
    "gelu_approx_tanh": (_gelu_approx_tanh, _gelu_approx_tanh_derivative),
    "softplus": (_as_it_is("softplus"), _as_it_is("sigmoid")),
    "swish": (_swish, _swish_derivative),
}
_COMPARISONS = {"eq": "==", "neq": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
# Method -> (the names of its arguments, what it computes).
_FORMULAS = {
    **{name: (("input",), _float(name)) for name in ("sqrt", "rsqrt", "reciprocal", "exp", "log", "ceil", "floor", "sin", "cos", "tan", "erf")},
    **{name: (("input",), _as_it_is(name)) for name in ("neg", "abs", "logical_not")},
    "identity": (("input",), lambda f, x: x),
    **{name: (("input",), _float(formula)) for name, (formula, _) in _ACTIVATIONS.items()},
    **{name: (("a", "b"), _two(name)) for name in ("add", "mul", "sub")},
    "add_square": (("a", "b"), _add_square),
    "div": (("a", "b"), lambda f, a, b: f.div(f.to_float(a), f.to_float(b))),
    **{name: (("a", "b"), _as_it_is(name)) for name in ("logical_and", "logical_or")},
    "bias": (("input", "bias"), _two("add")),
    "scale": (("input", "scale"), _two("mul")),
    **{name: (("input0", "input1"), _two(function)) for name, function in (("max", "maximum"), ("min", "minimum"), ("mod", "fmod"), ("pow", "pow"))},
    **{f"cmp_{name}": (("input", "comparison"), _two(name)) for name in _COMPARISONS},
}  # fmt: skip


class _Method:
    """A method of a graph. arguments, options: the names of its tensors, and of numbers that it may take beside them."""

    def __init__(self, name, arguments, formula, options=()):
        self.name, self.arguments, self.formula, self.options = name, arguments, formula, options
        self.parameters = (*arguments, *options, "compute_data_type", "name")
        required = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in arguments]
        others = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for each in self.parameters[len(arguments) :]]
        self.signature = inspect.Signature([*required, *others])
        self.text = f"{name}{self.signature}"

    def bound(self, args, kwargs):
        """name -> argument. Plain enough for torch.compile, which reads it."""
        given = dict(zip(self.parameters, args))
        for name, value in kwargs.items():
            if name in given or name not in self.parameters:
                raise WrongTypeError(f"graph.{self.text}: {'multiple values for' if name in given else 'got an unexpected keyword'} argument {name!r}")
            given[name] = value
        missing = [name for name in self.arguments if name not in given]
        if missing or len(args) > len(self.parameters):
            raise WrongTypeError(f"graph.{self.text}: {f'missing a required argument: {missing[0]!r}' if missing else 'too many positional arguments'}")
        return given

    def __call__(self):
        """The function that a class gets for it."""
        name = self.name  # torch.compile reads a closure of texts alone

        def method(graph, *args, **kwargs):
            return graph._compute(name, args, kwargs)

        method.__name__, method.__qualname__ = self.name, f"Graph.{self.name}"
        method.__signature__ = self.signature  # pyright: ignore[reportFunctionMemberAccess]
        method.__doc__ = self._doc()
        return method

    def _doc(self):
        if self.name.startswith("cmp_"):
            return f"Whether input {_COMPARISONS[self.name.removeprefix('cmp_')]} comparison, as a truth value."
        if self.name.endswith("_backward"):
            return f"loss times the derivative of {self.name.removesuffix('_backward')} at input: the gradient of its input from that of its output."
        return f"cuDNN's pointwise {self.name} of {' and '.join(self.arguments)}, element by element."


def _backward_of(derivative):
    """d loss / d input of an activation, given d loss / d output."""
    return lambda f, loss, input, **options: f.mul(loss, derivative(f, f.to_float(input), **options))


def _methods():
    options = {name: tuple(inspect.signature(formula).parameters)[2:] if inspect.isfunction(formula) else () for name, (formula, _) in _ACTIVATIONS.items()}
    options = {name: each for name, each in options.items() if name in ("relu", "leaky_relu", "swish")}
    for name, (arguments, formula) in _FORMULAS.items():
        yield _Method(name, arguments, formula, options.get(name, ()))
    for name, (_, derivative) in _ACTIVATIONS.items():
        yield _Method(f"{name}_backward", ("loss", "input"), _backward_of(derivative), options.get(name, ()))


_METHODS = {method.name: method for method in _methods()}
for _name, _method in _METHODS.items():
    setattr(Graph, _name, _method())
