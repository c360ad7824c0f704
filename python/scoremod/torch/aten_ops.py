"""What each of aten's scalar operations is in a score program.

RULES: the operation's name without overload -> rule(operands, arguments, options) -> node, or None where these can't be expressed. arguments and
options are the operation's, with Values for tensors; `operands` makes nodes of them.
"""

import math
import numbers

import torch

from scoremod.program_forms import clamp, integer_power, is_finite, log2, truncated_quotient, truncated_remainder
from scoremod.torch.captures import OPERAND_TYPES
from scoremod.torch.values import Value


class Operands:
    """Nodes of an operation's arguments. result: the dtype of what it makes."""

    def __init__(self, tracer, result):
        self._tracer = tracer
        self.builder = tracer.builder
        self.type = OPERAND_TYPES.get(result)

    def node(self, argument, type=None):
        """The node of a Value or a number, converted to a type of programs. Raises NoNode where there is none."""
        if isinstance(argument, Value):
            number = self._tracer.node_of(argument)
            if number is None:
                raise NoNode
            return number if type is None else self.builder.op(type, number) if self.builder.type(number) != type else number
        if isinstance(argument, torch.SymFloat):
            return self._tracer.captured_number(argument)
        if isinstance(argument, torch.SymInt):
            argument = int(argument)  # torch.compile then makes a graph for this number
        if not isinstance(argument, (bool, numbers.Real)):
            raise NoNode
        return self.builder.constant(argument, type or _type_of_number(argument))

    def alike(self, *arguments):
        """Nodes in the type that PyTorch computes in."""
        type = self.common_type(*arguments)
        return [self.node(argument, type) for argument in arguments]

    def common_type(self, *arguments):
        """"f32" if an argument is a float, else "i32", "bool" if all are."""
        types = {OPERAND_TYPES.get(each.dtype) if isinstance(each, Value) else _type_of_number(each) for each in arguments}
        return next((type for type in ("f32", "i32", "bool") if type in types), None)


class NoNode(Exception):
    """An operation's arguments have no nodes."""


def _type_of_number(number):
    return "bool" if isinstance(number, bool) else "i32" if isinstance(number, (numbers.Integral, torch.SymInt)) else "f32"


def _float(op):
    """An op of one float; integers are converted, as PyTorch does."""
    return lambda operands, arguments, options: operands.builder.op(op, operands.node(arguments[0], "f32"))


def _numeric(op):
    def rule(operands, arguments, options):
        x = operands.node(arguments[0])
        return None if operands.builder.type(x) == "bool" else operands.builder.op(op, x)

    return rule


def _rounding(op):
    """floor and the like, which leave integers as they are."""

    def rule(operands, arguments, options):
        x = operands.node(arguments[0])
        return operands.builder.op(op, x) if operands.builder.type(x) == "f32" else x

    return rule


def _arithmetic(op, logical=None):
    """Two numbers in the type of the result; bool of bool where PyTorch has that. `alpha` multiplies the second."""

    def rule(operands, arguments, options):
        x, y = arguments[:2]
        type = operands.type
        alpha = options.get("alpha", arguments[2] if len(arguments) > 2 else 1)
        if type == "bool":
            return None if logical is None or alpha != 1 else operands.builder.op(logical, operands.node(x, "bool"), operands.node(y, "bool"))
        right = operands.node(y, type)
        if alpha != 1:
            right = operands.builder.op("mul", right, operands.node(alpha, type))
        return operands.builder.op(op, operands.node(x, type), right)

    return rule


def _reversed(rule):
    return lambda operands, arguments, options: rule(operands, (arguments[1], arguments[0], *arguments[2:]), options)


def _rsub(operands, arguments, options):
    x, y = arguments[:2]
    alpha = options.get("alpha", arguments[2] if len(arguments) > 2 else 1)
    product = operands.node(x, operands.type)
    if alpha != 1:
        product = operands.builder.op("mul", product, operands.node(alpha, operands.type))
    return operands.builder.op("sub", operands.node(y, operands.type), product)


def _divide(operands, arguments, options):
    mode = options.get("rounding_mode", arguments[2] if len(arguments) > 2 else None)
    builder, (x, y) = operands.builder, arguments[:2]
    if mode == "floor":
        return _floor_divide(operands, arguments, options)
    if mode == "trunc" and operands.common_type(x, y) == "i32":
        return truncated_quotient(builder, operands.node(x, "i32"), operands.node(y, "i32"))
    quotient = builder.op("div", operands.node(x, "f32"), operands.node(y, "f32"))
    return _truncated(builder, quotient) if mode == "trunc" else quotient


def _floor_divide(operands, arguments, options):
    builder, (x, y) = operands.builder, arguments[:2]
    if operands.common_type(x, y) == "f32":
        return builder.op("floor", builder.op("div", operands.node(x, "f32"), operands.node(y, "f32")))
    return builder.op("floor_div", operands.node(x, "i32"), operands.node(y, "i32"))


def _remainder(operands, arguments, options):
    return operands.builder.op("mod", *(operands.node(each, operands.type) for each in arguments[:2]))


def _fmod(operands, arguments, options):
    return truncated_remainder(operands.builder, *(operands.node(each, operands.type) for each in arguments[:2]))


def _truncated(builder, x):
    negative = builder.op("lt", x, builder.constant(0, "f32"))
    return builder.op("select", negative, builder.op("ceil", x), builder.op("floor", x))


def _trunc(operands, arguments, options):
    x = operands.node(arguments[0])
    return _truncated(operands.builder, x) if operands.builder.type(x) == "f32" else x


def _power(operands, arguments, options):
    builder, (x, y) = operands.builder, arguments[:2]
    if isinstance(y, numbers.Real) and float(y).is_integer() and abs(y) <= 8:
        return integer_power(builder, operands.node(x, operands.type), int(y))
    if isinstance(y, numbers.Real) and float(y) in (0.5, -0.5):
        return builder.op("sqrt" if y > 0 else "rsqrt", operands.node(x, "f32"))
    if operands.type != "f32":
        return None
    if isinstance(x, numbers.Real) and float(x) == 2.0:
        return builder.op("exp2", operands.node(y, "f32"))
    return builder.op("pow", operands.node(x, "f32"), operands.node(y, "f32"))


def _compare(op):
    def rule(operands, arguments, options):
        type = operands.common_type(*arguments[:2])
        if type == "bool" and op not in ("eq", "ne"):
            type = "i32"
        return operands.builder.op(op, *(operands.node(each, type) for each in arguments[:2]))

    return rule


def _bitwise(op):
    """and, or, xor: of bool; x & (2^k - 1) of integers is a remainder."""

    def rule(operands, arguments, options):
        builder, (x, y) = operands.builder, arguments[:2]
        if operands.type == "bool":
            return builder.op(op, operands.node(x, "bool"), operands.node(y, "bool"))
        if isinstance(x, numbers.Integral):
            x, y = y, x
        if op != "and" or not isinstance(y, numbers.Integral) or y <= 0 or y & (y + 1) or y >= 2**31 - 1:
            return None
        return builder.op("mod", operands.node(x, "i32"), builder.constant(int(y) + 1, "i32"))

    return rule


def _shift(op):
    def rule(operands, arguments, options):
        count = arguments[1].literal if isinstance(arguments[1], Value) else arguments[1]
        if not isinstance(count, numbers.Integral) or not 0 <= count < 31:
            return None
        return operands.builder.op(op, operands.node(arguments[0], "i32"), operands.builder.constant(2**count, "i32"))

    return rule


def _logical(op):
    return lambda operands, arguments, options: operands.builder.op(op, *(operands.node(each, "bool") for each in arguments))


def _not(operands, arguments, options):
    return operands.builder.op("not", operands.node(arguments[0], "bool")) if operands.type == "bool" else None


def _where(operands, arguments, options):
    if len(arguments) != 3:
        return None
    condition, x, y = arguments
    return operands.builder.op("select", operands.node(condition, "bool"), operands.node(x, operands.type), operands.node(y, operands.type))


def _masked_fill(operands, arguments, options):
    x, mask, value = arguments
    return _where(operands, (mask, value, x), options)


def _clamp(operands, arguments, options):
    low = options.get("min", arguments[1] if len(arguments) > 1 else None)
    high = options.get("max", arguments[2] if len(arguments) > 2 else None)
    builder, type = operands.builder, operands.type
    x = operands.node(arguments[0], type)
    # PyTorch gives the derivative at the ends to what is clamped.
    if low is not None:
        low = operands.node(low, type)
        x = builder.op("select", builder.op("lt", x, low), low, x)
    if high is not None:
        high = operands.node(high, type)
        x = builder.op("select", builder.op("gt", x, high), high, x)
    return x


def _extremum(op):
    """Of two; max and min of one number are the number."""

    def rule(operands, arguments, options):
        if len(arguments) == 1:
            return operands.node(arguments[0])
        return operands.builder.op(op, *(operands.node(each, operands.type) for each in arguments[:2]))

    return rule


def _is_finite(operands, arguments, options):
    return is_finite(operands.builder, operands.node(arguments[0], "f32"))


def _is_nan(operands, arguments, options):
    x = operands.node(arguments[0], "f32")
    return operands.builder.op("ne", x, x)


def _is_infinite(operands, arguments, options):
    builder = operands.builder
    return builder.op("eq", builder.op("abs", operands.node(arguments[0], "f32")), builder.constant(math.inf, "f32"))


def _log2(operands, arguments, options):
    return log2(operands.builder, operands.node(arguments[0], "f32"))


def _log10(operands, arguments, options):
    builder = operands.builder
    return builder.op("div", builder.op("log", operands.node(arguments[0], "f32")), builder.constant(math.log(10), "f32"))


def _square(operands, arguments, options):
    x = operands.node(arguments[0], operands.type)
    return operands.builder.op("mul", x, x)


def _gelu(operands, arguments, options):
    approximate = options.get("approximate", arguments[1] if len(arguments) > 1 else "none")
    return operands.builder.op("gelu_tanh" if approximate == "tanh" else "gelu", operands.node(arguments[0], "f32"))


def _softplus(operands, arguments, options):
    beta, threshold = (*arguments[1:], 1, 20)[:2] if len(arguments) > 1 else (1, 20)
    if beta != 1 or threshold < 20:
        return None
    return operands.builder.op("softplus", operands.node(arguments[0], "f32"))


def _leaky_relu(operands, arguments, options):
    builder, slope = operands.builder, arguments[1] if len(arguments) > 1 else 0.01
    x = operands.node(arguments[0], "f32")
    positive = builder.op("gt", x, builder.constant(0, "f32"))
    return builder.op("select", positive, x, builder.op("mul", x, builder.constant(slope, "f32")))


def _hardtanh(operands, arguments, options):
    """Its derivative at the ends is 0, other than clamp's."""
    low, high = (*arguments[1:], 1.0)[:2] if len(arguments) > 2 else (-1.0, 1.0)
    builder = operands.builder
    return clamp(builder, builder.constant(low, "f32"), operands.node(arguments[0], "f32"), builder.constant(high, "f32"))


def _log_of_sum(operands, arguments, options):
    """logaddexp, without overflow."""
    builder = operands.builder
    x, y = (operands.node(each, "f32") for each in arguments[:2])
    difference = builder.op("sub", x, y)
    from_x = builder.op("add", x, builder.op("softplus", builder.op("neg", difference)))
    from_y = builder.op("add", y, builder.op("softplus", difference))
    larger = builder.op("select", builder.op("gt", difference, builder.constant(0, "f32")), from_x, from_y)
    return builder.op("select", builder.op("ne", difference, difference), builder.op("add", x, y), larger)


def _addcmul(operands, arguments, options):
    builder, type = operands.builder, operands.type
    x, y, z = (operands.node(each, type) for each in arguments[:3])
    product = builder.op("mul", builder.op("mul", operands.node(options.get("value", 1), type), y), z)
    return builder.op("add", x, product)


def _lerp(operands, arguments, options):
    builder = operands.builder
    x, y, weight = (operands.node(each, "f32") for each in arguments[:3])
    return builder.op("add", x, builder.op("mul", weight, builder.op("sub", y, x)))


def _same(operands, arguments, options):
    return operands.node(arguments[0])


def _convert(operands, arguments, options):
    if operands.type is None:
        return None
    return operands.node(arguments[0], operands.type)


RULES = {
    "add": _arithmetic("add", "or"),
    "sub": _arithmetic("sub"),
    "rsub": _rsub,
    "mul": _arithmetic("mul", "and"),
    "div": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _power,
    "square": _square,
    "addcmul": _addcmul,
    "lerp": _lerp,
    "maximum": _extremum("max"),
    "minimum": _extremum("min"),
    "max": _extremum("max"),
    "min": _extremum("min"),
    "clamp": _clamp,
    "clamp_min": lambda operands, arguments, options: _clamp(operands, (arguments[0], arguments[1], None), {}),
    "clamp_max": lambda operands, arguments, options: _clamp(operands, (arguments[0], None, arguments[1]), {}),
    "neg": _numeric("neg"),
    "abs": _numeric("abs"),
    "sign": _numeric("sign"),
    "sgn": _numeric("sign"),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "round": lambda operands, arguments, options: None if options.get("decimals") else _rounding("round")(operands, arguments, options),
    "trunc": _trunc,
    **{name: _float(name) for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal")},
    **{name: _float(name) for name in ("sin", "cos", "tan", "tanh", "sigmoid", "erf", "relu", "silu")},
    "log2": _log2,
    "log10": _log10,
    "gelu": _gelu,
    "softplus": _softplus,
    "leaky_relu": _leaky_relu,
    "hardtanh": _hardtanh,
    "logaddexp": _log_of_sum,
    **{name: _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "bitwise_not": _not,
    "bitwise_left_shift": _shift("mul"),
    "bitwise_right_shift": _shift("floor_div"),
    "__lshift__": _shift("mul"),
    "__rshift__": _shift("floor_div"),
    "__and__": _bitwise("and"),
    "__or__": _bitwise("or"),
    "__xor__": _bitwise("xor"),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": _logical("not"),
    "where": _where,
    "masked_fill": _masked_fill,
    "isfinite": _is_finite,
    "isnan": _is_nan,
    "isinf": _is_infinite,
    "_to_copy": _convert,
    # These move, name or join elements; a single one stays what it is.
    **dict.fromkeys(("clone", "alias", "lift_fresh", "lift_fresh_copy", "unsqueeze", "squeeze", "view", "_unsafe_view", "reshape", "expand"), _same),
    **dict.fromkeys(("permute", "transpose", "t", "sum", "mean", "prod", "amax", "amin", "contiguous", "_reshape_alias", "view_as"), _convert),
}

# Functions that make a tensor of one number, and where the number stands among their arguments (None: 0 or 1).
FILLS = {
    "scalar_tensor": lambda arguments: arguments[0],
    "full": lambda arguments: arguments[1],
    "full_like": lambda arguments: arguments[1],
    "new_full": lambda arguments: arguments[2],
    "fill": lambda arguments: arguments[1],
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda arguments: 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda arguments: 1),
}

# Operations whose result shows the same memory as their first argument, where PyTorch may give a view.
SHARING = {
    *("alias", "detach", "unsqueeze", "squeeze", "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t"),
    *("_reshape_alias", "view_as", "select", "slice"),
}
# Operations that multiply integers, which 64 bits hold longer than 32.
PRODUCTS = {"mul", "pow", "square", "addcmul", "prod", "bitwise_left_shift", "__lshift__"}

# What random numbers are made by: each call would have its own.
RANDOM = torch.Tag.nondeterministic_seeded
