"""Operations of frameworks that take several ops of a program: each takes a scoremod.program.Builder and nodes, and returns a node."""

import math

import numpy as np


def truncated_quotient(builder, x, y):
    """x / y of i32 towards zero; x / 0 is -1."""
    zero, one = builder.constant(0, "i32"), builder.constant(1, "i32")
    inexact = builder.op("ne", builder.op("mod", x, y), zero)
    signs_differ = builder.op("ne", builder.op("lt", x, zero), builder.op("lt", y, zero))
    floor = builder.op("floor_div", x, y)
    quotient = builder.op("select", builder.op("and", inexact, signs_differ), builder.op("add", floor, one), floor)
    if builder.constant_value(y):
        return quotient
    return builder.op("select", builder.op("eq", y, zero), builder.constant(-1, "i32"), quotient)


def truncated_remainder(builder, x, y):
    """The remainder with the sign of x, as C has it."""
    if builder.type(x) == "i32":
        return builder.op("sub", x, builder.op("mul", y, truncated_quotient(builder, x, y)))
    size = builder.op("mod", builder.op("abs", x), builder.op("abs", y))
    return builder.op("select", builder.op("lt", x, builder.constant(0, "f32")), builder.op("neg", size), size)


def floor_quotient(builder, x, y):
    """The largest integer not above x / y of f32: by the exact remainder, for a rounded quotient may be the next integer. x / 0 is that of floats."""
    quotient, divisor = builder.op("floor", builder.op("div", x, y)), builder.constant_value(y)
    if divisor and math.frexp(abs(divisor))[0] == 0.5:  # x / y of a power of two is exact
        return quotient
    zero, one = builder.constant(0, "f32"), builder.constant(1, "f32")
    rest = truncated_remainder(builder, x, y)
    whole = builder.op("div", builder.op("sub", x, rest), y)
    signs_differ = builder.op("ne", builder.op("lt", rest, zero), builder.op("lt", y, zero))
    is_below = builder.op("and", builder.op("ne", rest, zero), signs_differ)
    whole = builder.op("select", is_below, builder.op("sub", whole, one), whole)
    floor = builder.op("floor", whole)
    is_above = builder.op("gt", builder.op("sub", whole, floor), builder.constant(0.5, "f32"))
    nearest = builder.op("select", is_above, builder.op("add", floor, one), floor)
    return nearest if divisor else builder.op("select", builder.op("eq", y, zero), quotient, nearest)


def integer_power(builder, x, exponent):
    """x to the power of an integer, by products; None for a negative one of an i32."""
    power, square, rest = None, x, abs(exponent)
    while rest:
        if rest & 1:
            power = square if power is None else builder.op("mul", power, square)
        rest >>= 1
        if rest:
            square = builder.op("mul", square, square)
    if power is None:
        return builder.constant(1, builder.type(x))
    if exponent > 0:
        return power
    return builder.op("reciprocal", power) if builder.type(x) == "f32" else None


def clamp(builder, low, x, high):
    """min(max(x, low), high). At the ends its derivative is 0, where that of min and max is half."""
    if builder.type(x) != "f32":
        return builder.op("min", builder.op("max", x, low), high)
    above = builder.op("select", builder.op("le", x, low), builder.op("min", low, high), x)
    return builder.op("select", builder.op("ge", x, high), high, above)


def select_case(builder, which, cases):
    """cases[which], where an index beyond the ends means the first or the last."""
    chosen = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        chosen = builder.op("select", builder.op("le", which, builder.constant(number, "i32")), cases[number], chosen)
    return chosen


def is_finite(builder, x):
    return builder.op("lt", builder.op("abs", x), builder.constant(np.inf, "f32"))


def cosh(builder, x):
    """exp(|x| / 2)^2 / 2 and its reciprocal's half: no overflow before the result's."""
    scale = builder.constant(0.5, "f32")
    root = builder.op("exp", builder.op("mul", builder.op("abs", x), scale))
    large = builder.op("mul", builder.op("mul", scale, root), root)
    return builder.op("add", large, builder.op("div", builder.op("div", scale, root), root))


def sinh(builder, x):
    """2 sinh(x / 2) cosh(x / 2), of which the first is exact near 0 by expm1."""
    scale = builder.constant(0.5, "f32")
    half = builder.op("mul", x, scale)
    negated = builder.op("neg", half)
    difference = builder.op("sub", builder.op("expm1", half), builder.op("expm1", negated))
    total = builder.op("add", builder.op("exp", half), builder.op("exp", negated))
    return builder.op("mul", builder.op("mul", scale, difference), total)


def log2(builder, x):
    return builder.op("div", builder.op("log", x), builder.constant(np.log(2), "f32"))


def _one_minus_square_root(builder, x):
    """sqrt(1 - x^2), exact where |x| is near 1."""
    one = builder.constant(1, "f32")
    return builder.op("sqrt", builder.op("mul", builder.op("sub", one, x), builder.op("add", one, x)))


def asin(builder, x):
    return builder.op("atan2", x, _one_minus_square_root(builder, x))


def acos(builder, x):
    return builder.op("atan2", _one_minus_square_root(builder, x), x)


def atanh(builder, x):
    """Odd without a choice, so that its derivative at 0 is 1."""
    difference = builder.op("sub", builder.op("log1p", x), builder.op("log1p", builder.op("neg", x)))
    return builder.op("mul", builder.constant(0.5, "f32"), difference)


def asinh(builder, x):
    """Up to 1 twice the atanh of x / (1 + sqrt(1 + x^2)); beyond, log(2 |x|) and a little, where no square overflows."""
    one = builder.constant(1, "f32")
    # Squares of what the other branch is for would overflow.
    near = builder.op("min", builder.op("max", x, builder.constant(-2, "f32")), builder.constant(2, "f32"))
    root = builder.op("sqrt", builder.op("add", one, builder.op("mul", near, near)))
    small = builder.op("mul", builder.constant(2, "f32"), atanh(builder, builder.op("div", near, builder.op("add", one, root))))
    size = builder.op("max", builder.op("abs", x), builder.constant(0.5, "f32"))
    inverse = builder.op("reciprocal", size)
    rest = builder.op("sqrt", builder.op("add", one, builder.op("mul", inverse, inverse)))
    large = builder.op("mul", builder.op("sign", x), builder.op("add", builder.op("log", size), builder.op("log1p", rest)))
    return builder.op("select", builder.op("le", builder.op("abs", x), one), small, large)


def acosh(builder, x):
    """log1p of x - 1 and a root below 2, where it is exact; beyond, log(2 x) less a little, where no square overflows. NaN below 1."""
    one, two = builder.constant(1, "f32"), builder.constant(2, "f32")
    is_large = builder.op("gt", x, two)
    above = builder.op("sub", builder.op("select", is_large, two, x), one)  # no min, whose derivative at 2 is half
    root = builder.op("mul", builder.op("sqrt", above), builder.op("sqrt", builder.op("add", above, two)))
    small = builder.op("log1p", builder.op("add", above, root))
    size = builder.op("max", x, two)
    large = builder.op("add", builder.op("log", size), builder.op("log1p", _one_minus_square_root(builder, builder.op("reciprocal", size))))
    return builder.op("select", is_large, large, small)
