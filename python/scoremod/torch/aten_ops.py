"""The nodes of a score program that each of aten's scalar operations becomes, and scoremod::surrogate.

RULES: the operation's name without overload -> rule(operands, arguments, options) -> node, or None where these can't be expressed. arguments and
options are the operation's, with Values for tensors; `operands` makes nodes of them (aten_operands.Operands).
"""

import torch

from scoremod import program_forms as forms
from scoremod.torch import aten_rules as rules

RULES = {
    "add": rules.arithmetic("add", "or"),
    "sub": rules.arithmetic("sub"),
    "rsub": rules.rsub,
    "mul": rules.arithmetic("mul", "and"),
    "div": rules.divide,
    "floor_divide": rules.floor_divide,
    "remainder": rules.remainder,
    "fmod": rules.fmod,
    "pow": rules.power,
    "square": rules.square,
    "addcmul": rules.addcmul,
    "lerp": rules.lerp,
    "maximum": rules.extremum("max"),
    "minimum": rules.extremum("min"),
    "max": rules.extremum("max"),
    "min": rules.extremum("min"),
    "clamp": rules.clamp_rule,
    "clamp_min": lambda operands, arguments, options: rules.clamp_rule(operands, (arguments[0], arguments[1], None), {}),
    "clamp_max": lambda operands, arguments, options: rules.clamp_rule(operands, (arguments[0], None, arguments[1]), {}),
    "neg": rules.numeric("neg"),
    "abs": rules.numeric("abs"),
    "sign": rules.numeric("sign"),
    "sgn": rules.numeric("sign"),
    "floor": rules.rounding("floor"),
    "ceil": rules.rounding("ceil"),
    "round": lambda operands, arguments, options: None if options.get("decimals") else rules.rounding("round")(operands, arguments, options),
    "trunc": rules.trunc,
    **{name: rules.of_float(name) for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal")},
    **{name: rules.of_float(name) for name in ("sin", "cos", "tan", "tanh", "atan", "sigmoid", "erf", "erfc", "relu", "silu")},
    **{form.__name__: rules.form_of_float(form) for form in (forms.asin, forms.acos, forms.sinh, forms.cosh, forms.asinh, forms.acosh, forms.atanh)},
    "atan2": rules.atan2,
    "log2": rules.log2_rule,
    "log10": rules.log10,
    "gelu": rules.gelu,
    "softplus": rules.softplus,
    "leaky_relu": rules.leaky_relu,
    "hardtanh": rules.hardtanh,
    "logaddexp": rules.log_of_sum,
    **{name: rules.compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "bitwise_and": rules.bitwise("and"),
    "bitwise_or": rules.bitwise("or"),
    "bitwise_xor": rules.bitwise("xor"),
    "bitwise_not": rules.negation,
    "bitwise_left_shift": rules.shift("mul"),
    "bitwise_right_shift": rules.shift("floor_div"),
    "__lshift__": rules.shift("mul"),
    "__rshift__": rules.shift("floor_div"),
    "__and__": rules.bitwise("and"),
    "__or__": rules.bitwise("or"),
    "__xor__": rules.bitwise("xor"),
    "logical_and": rules.logical("and"),
    "logical_or": rules.logical("or"),
    "logical_xor": rules.logical("xor"),
    "logical_not": rules.logical("not"),
    "where": rules.where,
    "masked_fill": rules.masked_fill,
    "isfinite": rules.is_finite_rule,
    "isnan": rules.is_nan,
    "isinf": rules.is_infinite,
    "scoremod::surrogate": rules.surrogate,
    "_to_copy": rules.convert,
    # These move, name or join elements; a single one stays what it is.
    **dict.fromkeys(("clone", "alias", "lift_fresh", "lift_fresh_copy", "unsqueeze", "squeeze", "view", "_unsafe_view", "reshape", "expand"), rules.same),
    **dict.fromkeys(("permute", "transpose", "t", "sum", "mean", "prod", "amax", "amin", "contiguous", "_reshape_alias", "view_as"), rules.convert),
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

# The tag of operations that make random numbers: each call would have its own.
RANDOM = torch.Tag.nondeterministic_seeded
