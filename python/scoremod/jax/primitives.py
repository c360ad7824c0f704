"""The nodes of a score program that each of JAX's scalar primitives becomes.

RULES: primitive name -> rule(builder, params, *args) -> node, or None where these arguments can't be expressed. Every argument is a node
of type f32, i32 or bool, and the primitive's operands have just those dtypes.
"""

import numpy as np
from jax import lax

from scoremod.jax.own_derivatives import stopped
from scoremod.program_forms import (
    acos,
    acosh,
    asin,
    asinh,
    atanh,
    clamp,
    cosh,
    integer_power,
    is_finite,
    log2,
    select_case,
    sinh,
    truncated_quotient,
    truncated_remainder,
)

PROGRAM_TYPES = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32", np.dtype(np.bool_): "bool"}


def _op(name, *types):
    """The op of this name, where the first argument has one of these types."""

    def rule(builder, params, *args):
        return builder.op(name, *args) if builder.type(args[0]) in types else None

    return rule


def _numeric(name):
    return _op(name, "f32", "i32")


def _float(name):
    return _op(name, "f32")


def _numeric_or_logical(name, logical):
    """A rule: the op of this name for numbers, and for bool the logical op that JAX means by it."""

    def rule(builder, params, x, y):
        return builder.op(logical if builder.type(x) == "bool" else name, x, y)

    return rule


def _any(name):
    return _op(name, "f32", "i32", "bool")


def _unparameterized(form):
    """The rule of a primitive whose parameters mean nothing."""
    return lambda builder, params, *args: form(builder, *args)


def _of_float(form):
    """The rule of a primitive of one float that a form computes."""
    return lambda builder, params, x: form(builder, x) if builder.type(x) == "f32" else None


def _same(builder, params, x, *_):
    return x


def _bitwise(name):
    """and, or, xor: of bool. x & (2^k - 1) of integers is a remainder."""

    def rule(builder, params, x, y):
        if builder.type(x) == "bool":
            return builder.op(name, x, y)
        if builder.constant_value(x) is not None:
            x, y = y, x
        mask = builder.constant_value(y)
        if name == "and" and mask is not None and mask > 0 and (mask & (mask + 1)) == 0 and mask < 2**31 - 1:
            return builder.op("mod", x, builder.constant(mask + 1, "i32"))
        return None

    return rule


def _shift(name):
    """Shifts by a constant below 31, which multiply or divide."""

    def rule(builder, params, x, y):
        count = builder.constant_value(y)
        return builder.op(name, x, builder.constant(2**count, "i32")) if count is not None and 0 <= count < 31 else None

    return rule


def _div(builder, params, x, y):
    return builder.op("div", x, y) if builder.type(x) == "f32" else truncated_quotient(builder, x, y)


def _pow(builder, params, x, y):
    if builder.type(x) != "f32" or builder.type(y) == "bool":
        return None
    return builder.op("pow", x, builder.op("f32", y))


def _one_minus_square(builder, params, x):
    """JAX 0.11's primitive in the derivative of tanh; computed as there, exact where |x| is near 1."""
    one = builder.constant(1, builder.type(x))
    return builder.op("mul", builder.op("add", one, x), builder.op("sub", one, x))


def _round(builder, params, x):
    even = builder.op("round", x)
    if params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return even
    # Halves away from zero.
    size = builder.op("abs", x)
    half = builder.op("eq", builder.op("sub", size, builder.op("floor", size)), builder.constant(0.5, "f32"))
    return builder.op("select", half, builder.op("mul", builder.op("sign", x), builder.op("ceil", size)), even)


def _select_n(builder, params, which, *cases):
    if builder.type(which) == "bool":
        choice = builder.constant_value(which)
        if choice is not None:
            return cases[int(choice)]
        return builder.op("select", which, cases[1], cases[0])
    return select_case(builder, which, cases)


def _compare(name):
    def rule(builder, params, x, y):
        if builder.type(x) == "bool" and name not in ("eq", "ne"):
            x, y = builder.op("i32", x), builder.op("i32", y)
        # jnp's indexing asks whether an index is negative.
        if name == "lt" and builder.type(x) == "i32" and builder.constant_value(y) == 0 and builder.is_never_negative(x):
            return builder.constant(False, "bool")
        return builder.op(name, x, y)

    return rule


def _convert(builder, params, x):
    type = PROGRAM_TYPES.get(np.dtype(params["new_dtype"]))
    if type is None or type == builder.type(x):
        return x if type else None
    return builder.op(type, x)


RULES = {
    "add": _numeric_or_logical("add", "or"),
    "add_any": _numeric("add"),
    "sub": _numeric("sub"),
    "mul": _numeric_or_logical("mul", "and"),
    "div": _div,
    "rem": _unparameterized(truncated_remainder),
    "pow": _pow,
    "integer_pow": lambda builder, params, x: integer_power(builder, x, params["y"]),
    "square": lambda builder, params, x: builder.op("mul", x, x),
    "one_minus_square": _one_minus_square,
    "min": _numeric_or_logical("min", "and"),
    "max": _numeric_or_logical("max", "or"),
    "clamp": _unparameterized(clamp),
    "neg": _numeric("neg"),
    "abs": _numeric("abs"),
    "sign": _numeric("sign"),
    "floor": _float("floor"),
    "ceil": _float("ceil"),
    "round": _round,
    "exp": _float("exp"),
    "exp2": _float("exp2"),
    "expm1": _float("expm1"),
    "log": _float("log"),
    "log1p": _float("log1p"),
    "log2": _of_float(log2),  # a primitive from JAX 0.11 on; before, jnp.log2 was this
    "sqrt": _float("sqrt"),
    "rsqrt": _float("rsqrt"),
    "sin": _float("sin"),
    "cos": _float("cos"),
    "tan": _float("tan"),
    "tanh": _float("tanh"),
    "sinh": _of_float(sinh),
    "cosh": _of_float(cosh),
    "asin": _of_float(asin),
    "acos": _of_float(acos),
    "asinh": _of_float(asinh),
    "acosh": _of_float(acosh),
    "atanh": _of_float(atanh),
    "logistic": _float("sigmoid"),
    "erf": _float("erf"),
    "erfc": _float("erfc"),
    "atan": _float("atan"),
    "atan2": _float("atan2"),
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "lt": _compare("lt"),
    "le": _compare("le"),
    "gt": _compare("gt"),
    "ge": _compare("ge"),
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": _bitwise("xor"),
    "not": _op("not", "bool"),
    "shift_left": _shift("mul"),
    "shift_right_arithmetic": _shift("floor_div"),
    "is_finite": _unparameterized(is_finite),
    "stop_gradient": lambda builder, params, x: stopped(builder, x),
    "select_n": _select_n,
    "convert_element_type": _convert,
    # These move, name or join elements; a single one stays what it is.
    **dict.fromkeys(
        (
            *("copy", "copy_p", "name", "optimization_barrier", "squeeze", "reshape", "broadcast_in_dim", "expand_dims"),
            *("slice", "dynamic_slice", "transpose", "rev", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or"),
        ),
        _same,
    ),
}

# Primitives that only compare or choose: exact on the values of a narrower dtype, too.
EXACT_ON_NARROW = {"eq", "ne", "lt", "le", "gt", "ge", "convert_element_type", "squeeze", "reshape", "broadcast_in_dim", "copy"}
