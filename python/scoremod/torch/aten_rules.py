"""Rules that make a node of one of aten's scalar operations: rule(operands, arguments, options) -> node, or None where these can't be expressed. Some
are made for several operations by a function of the op of a program."""

import math
import numbers

from scoremod.program_forms import clamp, floor_quotient, integer_power, is_finite, log2, truncated_quotient, truncated_remainder
from scoremod.torch.values import Value


def of_float(op):
    """An op of one float; integers are converted, as PyTorch does."""
    return lambda operands, arguments, options: operands.builder.op(op, operands.node(arguments[0], "f32"))


def form_of_float(form):
    """The rule of an operation of one float that takes several ops of a program."""
    return lambda operands, arguments, options: form(operands.builder, operands.node(arguments[0], "f32"))


def atan2(operands, arguments, options):
    return operands.builder.op("atan2", *(operands.node(each, "f32") for each in arguments[:2]))


def numeric(op):
    def rule(operands, arguments, options):
        x = operands.node(arguments[0])
        return None if operands.builder.type(x) == "bool" else operands.builder.op(op, x)

    return rule


def rounding(op):
    """floor and the like, which leave integers as they are."""

    def rule(operands, arguments, options):
        x = operands.node(arguments[0])
        return operands.builder.op(op, x) if operands.builder.type(x) == "f32" else x

    return rule


def arithmetic(op, logical=None):
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


def rsub(operands, arguments, options):
    x, y = arguments[:2]
    alpha = options.get("alpha", arguments[2] if len(arguments) > 2 else 1)
    product = operands.node(x, operands.type)
    if alpha != 1:
        product = operands.builder.op("mul", product, operands.node(alpha, operands.type))
    return operands.builder.op("sub", operands.node(y, operands.type), product)


def divide(operands, arguments, options):
    mode = options.get("rounding_mode", arguments[2] if len(arguments) > 2 else None)
    builder, (x, y) = operands.builder, arguments[:2]
    if mode == "floor":
        return floor_divide(operands, arguments, options)
    if mode == "trunc" and operands.common_type(x, y) == "i32":
        return truncated_quotient(builder, operands.node(x, "i32"), operands.node(y, "i32"))
    quotient = builder.op("div", operands.node(x, "f32"), operands.node(y, "f32"))
    return truncated(builder, quotient) if mode == "trunc" else quotient


def floor_divide(operands, arguments, options):
    builder, (x, y) = operands.builder, arguments[:2]
    if operands.common_type(x, y) == "f32":
        return floor_quotient(builder, operands.node(x, "f32"), operands.node(y, "f32"))
    return builder.op("floor_div", operands.node(x, "i32"), operands.node(y, "i32"))


def remainder(operands, arguments, options):
    return operands.builder.op("mod", *(operands.node(each, operands.type) for each in arguments[:2]))


def fmod(operands, arguments, options):
    return truncated_remainder(operands.builder, *(operands.node(each, operands.type) for each in arguments[:2]))


def truncated(builder, x):
    negative = builder.op("lt", x, builder.constant(0, "f32"))
    return builder.op("select", negative, builder.op("ceil", x), builder.op("floor", x))


def trunc(operands, arguments, options):
    x = operands.node(arguments[0])
    return truncated(operands.builder, x) if operands.builder.type(x) == "f32" else x


def power(operands, arguments, options):
    builder, (x, y) = operands.builder, arguments[:2]
    if isinstance(y, numbers.Real) and float(y).is_integer() and abs(float(y)) <= 8:
        return integer_power(builder, operands.node(x, operands.type), int(float(y)))
    if isinstance(y, numbers.Real) and float(y) in (0.5, -0.5):
        return builder.op("sqrt" if float(y) > 0 else "rsqrt", operands.node(x, "f32"))
    if operands.type != "f32":
        return None
    if isinstance(x, numbers.Real) and float(x) == 2.0:
        return builder.op("exp2", operands.node(y, "f32"))
    return builder.op("pow", operands.node(x, "f32"), operands.node(y, "f32"))


def compare(op):
    def rule(operands, arguments, options):
        type = operands.common_type(*arguments[:2])
        if type == "bool" and op not in ("eq", "ne"):
            type = "i32"
        return operands.builder.op(op, *(operands.node(each, type) for each in arguments[:2]))

    return rule


def bitwise(op):
    """and, or, xor: of bool; x & (2^k - 1) of integers is a remainder."""

    def rule(operands, arguments, options):
        builder, (x, y) = operands.builder, arguments[:2]
        if operands.type == "bool":
            return builder.op(op, operands.node(x, "bool"), operands.node(y, "bool"))
        if isinstance(x, numbers.Integral):
            x, y = y, x
        if op != "and" or not isinstance(y, numbers.Integral) or not _is_low_bits(int(y)):
            return None
        return builder.op("mod", operands.node(x, "i32"), builder.constant(int(y) + 1, "i32"))

    return rule


def _is_low_bits(number):
    """Whether a number's bits are ones from the lowest on, of which int32 holds one more."""
    return 0 < number < 2**31 - 1 and not number & (number + 1)


def shift(op):
    def rule(operands, arguments, options):
        count = arguments[1].literal if isinstance(arguments[1], Value) else arguments[1]
        if not isinstance(count, numbers.Integral) or not 0 <= int(count) < 31:
            return None
        return operands.builder.op(op, operands.node(arguments[0], "i32"), operands.builder.constant(2 ** int(count), "i32"))

    return rule


def logical(op):
    return lambda operands, arguments, options: operands.builder.op(op, *(operands.node(each, "bool") for each in arguments))


def negation(operands, arguments, options):
    return operands.builder.op("not", operands.node(arguments[0], "bool")) if operands.type == "bool" else None


def surrogate(operands, arguments, options):
    return operands.builder.op("surrogate", *(operands.node(each, "f32") for each in arguments))


def where(operands, arguments, options):
    if len(arguments) != 3:
        return None
    condition, x, y = arguments
    return operands.builder.op("select", operands.node(condition, "bool"), operands.node(x, operands.type), operands.node(y, operands.type))


def masked_fill(operands, arguments, options):
    x, mask, value = arguments
    return where(operands, (mask, value, x), options)


def clamp_rule(operands, arguments, options):
    low = options.get("min", arguments[1] if len(arguments) > 1 else None)
    high = options.get("max", arguments[2] if len(arguments) > 2 else None)
    type = operands.type
    x = operands.node(arguments[0], type)
    for bound, outside, extremum in ((low, "le", "max"), (high, "ge", "min")):
        if bound is not None:
            x = _bounded(operands.builder, x, operands.node(bound, type), outside, None if isinstance(bound, numbers.Number) and type == "f32" else extremum)
    return x


def _bounded(builder, x, bound, outside, extremum):
    """PyTorch's derivative where x is the bound: 0 of a number, half of a tensor, as that of max and min."""
    return builder.op("select", builder.op(outside, x, bound), bound, x) if extremum is None else builder.op(extremum, x, bound)


def extremum(op):
    """The rule of max or min: of two numbers the op, and of one the number itself."""

    def rule(operands, arguments, options):
        if len(arguments) == 1:
            return operands.node(arguments[0])
        return operands.builder.op(op, *(operands.node(each, operands.type) for each in arguments[:2]))

    return rule


def is_finite_rule(operands, arguments, options):
    return is_finite(operands.builder, operands.node(arguments[0], "f32"))


def is_nan(operands, arguments, options):
    x = operands.node(arguments[0], "f32")
    return operands.builder.op("ne", x, x)


def is_infinite(operands, arguments, options):
    builder = operands.builder
    return builder.op("eq", builder.op("abs", operands.node(arguments[0], "f32")), builder.constant(math.inf, "f32"))


def log2_rule(operands, arguments, options):
    return log2(operands.builder, operands.node(arguments[0], "f32"))


def log10(operands, arguments, options):
    builder = operands.builder
    return builder.op("div", builder.op("log", operands.node(arguments[0], "f32")), builder.constant(math.log(10), "f32"))


def square(operands, arguments, options):
    x = operands.node(arguments[0], operands.type)
    return operands.builder.op("mul", x, x)


def gelu(operands, arguments, options):
    approximate = options.get("approximate", arguments[1] if len(arguments) > 1 else "none")
    return operands.builder.op("gelu_tanh" if approximate == "tanh" else "gelu", operands.node(arguments[0], "f32"))


def softplus(operands, arguments, options):
    beta, threshold = (*arguments[1:], 1, 20)[:2] if len(arguments) > 1 else (1, 20)
    if beta != 1 or threshold < 20:
        return None
    return operands.builder.op("softplus", operands.node(arguments[0], "f32"))


def leaky_relu(operands, arguments, options):
    builder, slope = operands.builder, arguments[1] if len(arguments) > 1 else 0.01
    x = operands.node(arguments[0], "f32")
    positive = builder.op("gt", x, builder.constant(0, "f32"))
    return builder.op("select", positive, x, builder.op("mul", x, builder.constant(slope, "f32")))


def hardtanh(operands, arguments, options):
    """Its derivative at the ends is 0, other than clamp's."""
    low, high = (*arguments[1:], *(-1.0, 1.0)[len(arguments) - 1 :])  # what is left out is the default
    builder = operands.builder
    return clamp(builder, builder.constant(low, "f32"), operands.node(arguments[0], "f32"), builder.constant(high, "f32"))


def log_of_sum(operands, arguments, options):
    """logaddexp, without overflow."""
    builder = operands.builder
    x, y = (operands.node(each, "f32") for each in arguments[:2])
    difference = builder.op("sub", x, y)
    from_x = builder.op("add", x, builder.op("softplus", builder.op("neg", difference)))
    from_y = builder.op("add", y, builder.op("softplus", difference))
    larger = builder.op("select", builder.op("gt", difference, builder.constant(0, "f32")), from_x, from_y)
    return builder.op("select", builder.op("ne", difference, difference), builder.op("add", x, y), larger)


def addcmul(operands, arguments, options):
    builder, type = operands.builder, operands.type
    x, y, z = (operands.node(each, type) for each in arguments[:3])
    product = builder.op("mul", builder.op("mul", operands.node(options.get("value", 1), type), y), z)
    return builder.op("add", x, product)


def lerp(operands, arguments, options):
    builder = operands.builder
    x, y, weight = (operands.node(each, "f32") for each in arguments[:3])
    return builder.op("add", x, builder.op("mul", weight, builder.op("sub", y, x)))


def same(operands, arguments, options):
    return operands.node(arguments[0])


def convert(operands, arguments, options):
    if operands.type is None:
        return None
    return operands.node(arguments[0], operands.type)
