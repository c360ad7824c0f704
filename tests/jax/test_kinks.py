"""Derivatives at 0 and at kinks: those of jax.grad of the same function, for every primitive that score programs have.

With one key a row's log-sum-exp is its modified score, and the gradient of the log-sum-exp that of the function.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

from scoremod.jax import flex_attention
from scoremod.jax.jaxprs import inner_jaxprs
from scoremod.jax.primitives import RULES

# 0 and the ends of everything below, numbers close to them, and some where all is smooth.
POINTS = np.asarray([x * sign for x in (0.0, 1e-30, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 7.3) for sign in (1, -1)], np.float32)

ONE_ARGUMENT = {
    "add": lambda x: x + 1.5,
    "sub": lambda x: 1.5 - x,
    "mul": lambda x: 3.0 * x,
    "div": lambda x: x / 3.0 + 1.0 / (x - 0.75),
    "rem": lambda x: lax.rem(x, jnp.float32(2)),
    "fmod": lambda x: jnp.fmod(x, 2.0),
    "fmod of": lambda x: jnp.fmod(7.0, x + 0.125),
    "%": lambda x: x % 2.0,
    "% of": lambda x: 7.0 % (x + 0.125),
    "divmod": lambda x: jnp.divmod(x, 1.5)[1],
    "pow": lambda x: jnp.abs(x) ** 1.5,
    "pow of": lambda x: 2.0**x,
    "integer_pow": lambda x: x**3 + x**1 + x**0,
    "negative power": lambda x: (x - 0.125) ** -3,
    "square": jnp.square,
    "min": lambda x: jnp.minimum(x, 1.0),
    "max": lambda x: jnp.maximum(x, 0.0),
    "clip": lambda x: jnp.clip(x, -1.0, 2.0),
    "clamp": lambda x: lax.clamp(jnp.float32(-1), x, jnp.float32(2)),
    "neg": jnp.negative,
    "abs": jnp.abs,
    "absolute": lambda x: lax.abs(x - 1.0),
    "copysign": lambda x: jnp.copysign(x, 2.0) + 3 * jnp.copysign(x, -1.0),
    "sign": jnp.sign,
    "floor": lambda x: jnp.floor(x) + x,
    "ceil": lambda x: jnp.ceil(x) + x,
    "round": lambda x: jnp.round(x) + x,
    "trunc": lambda x: jnp.trunc(x) + x,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": lambda x: jnp.log(x + 8.0),
    "log1p": lambda x: jnp.log1p(x * x),
    "log2": lambda x: jnp.log2(x + 8.0),
    "sqrt": lambda x: jnp.sqrt(x + 8.0),
    "rsqrt": lambda x: lax.rsqrt(x + 8.0),
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "sinh, large": lambda x: 1e-38 * jnp.sinh(88 + x / 8),
    "cosh, large": lambda x: 1e-38 * jnp.cosh(88 + x / 8),
    "asin": lambda x: jnp.arcsin(x / 7.4),
    "acos": lambda x: jnp.arccos(x / 7.4),
    "asin near 1": lambda x: jnp.arcsin(1 - jnp.abs(x) / 64) + jnp.arccos(1 - jnp.abs(x) / 64),
    "asinh": jnp.arcsinh,
    "asinh, large": lambda x: jnp.arcsinh(1e15 * x),
    "acosh": lambda x: jnp.arccosh(1.0625 + x * x),
    "acosh, where it is made of two": lambda x: jnp.arccosh(1.5 + jnp.abs(x)),
    "acosh, large": lambda x: jnp.arccosh(1e15 * (8 + x)),
    "atanh": lambda x: jnp.arctanh(x / 7.4),
    "logistic": jax.nn.sigmoid,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "atan": jnp.arctan,
    "stop_gradient": lambda x: x + lax.stop_gradient(jnp.round(x) - x) * x,
    "is_finite": lambda x: jnp.where(jnp.isfinite(1 / x), x, 2 * x),
    "select_n": lambda x: jnp.where(x > 0, x, 0.25 * x) + lax.select_n((x > 1).astype(jnp.int32), x, 2 * x, 3 * x),
    "eq": lambda x: jnp.where(x == 1.0, 2 * x, x),
    "ne": lambda x: jnp.where(x != 1.0, 2 * x, x),
    "lt": lambda x: jnp.where(x < 1.0, 2 * x, x),
    "le": lambda x: jnp.where(x <= 1.0, 2 * x, x),
    "ge": lambda x: jnp.where(x >= 1.0, 2 * x, x),
    "logic": lambda x: jnp.where(((x > 0) & (x < 2)) | (~(x > -2)) ^ (x == 4), 2 * x, x),
    "convert_element_type": lambda x: x * x.astype(jnp.int32) + (x > 0) * x,
    "cond": lambda x: lax.cond(x > 0, lambda x: 2 * x, lambda x: x * x, x),
    "one_minus_square": lambda x: jax.grad(jnp.tanh)(x),
    "one element": lambda x: jnp.sum(jnp.reshape(lax.optimization_barrier(jnp.copy(x)), (1, 1)).T * jnp.float32([[2.0]]))[None][0] + jnp.max(x[None][0:]),
    "heaviside": lambda x: jnp.heaviside(x, 0.5) + x,
    "nan_to_num": jnp.nan_to_num,
    "float_power": lambda x: jnp.float_power(x + 8.0, 1.5),
    "hypot": lambda x: jnp.hypot(x, 1.0),
    "logaddexp": lambda x: jnp.logaddexp(x, 1.0),
    "logaddexp of itself": lambda x: jnp.logaddexp(x, 0.5 * x),
    "logaddexp2": lambda x: jnp.logaddexp2(x, 1.0),
    "reciprocal": lambda x: jnp.reciprocal(x - 0.75),
    "sinc": lambda x: jnp.sinc(x),
    "xlogy": lambda x: special.xlogy(x, 3.0),
    "xlogy of": lambda x: special.xlogy(3.0, x + 8.0),
    "xlog1py": lambda x: special.xlog1py(x, 3.0),
    "entr": lambda x: special.entr(x + 8.0),
    "rel_entr": lambda x: special.rel_entr(x + 8.0, 2.0),
    "logit": lambda x: special.logit(0.1 + 0.05 * jnp.abs(x)),
    "expit": special.expit,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_swish": jax.nn.hard_swish,
    "hard_tanh": jax.nn.hard_tanh,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "celu": jax.nn.celu,
    "selu": jax.nn.selu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "soft_sign": jax.nn.soft_sign,
    "squareplus": jax.nn.squareplus,
    "mish": jax.nn.mish,
    "log_sigmoid": jax.nn.log_sigmoid,
    "sparse_plus": jax.nn.sparse_plus,
    "sparse_sigmoid": jax.nn.sparse_sigmoid,
    "log1mexp": lambda x: jax.nn.log1mexp(jnp.abs(x) + 0.125),
}
# Functions of the score and a captured number.
TWO_ARGUMENTS = {
    "atan2": lambda x, y: jnp.arctan2(x, y + 8.0),
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": lambda x, y: x / (y + 0.1875),
    "rem": lambda x, y: lax.rem(x, y + 0.1875),
    "%": lambda x, y: x % (y + 0.1875),
    "pow": lambda x, y: jnp.power(jnp.abs(x), jnp.abs(y)),
    "minimum": jnp.minimum,
    "maximum": jnp.maximum,
    "clamp": lambda x, y: lax.clamp(jnp.float32(-2), x, jnp.abs(y) + 0.125),
    "copysign": jnp.copysign,
    "logaddexp": jnp.logaddexp,
    "logaddexp2": jnp.logaddexp2,
    "xlogy": lambda x, y: special.xlogy(x, jnp.abs(y) + 0.5),
    "xlog1py": lambda x, y: special.xlog1py(x, jnp.abs(y)),
    "hypot": lambda x, y: jnp.hypot(x + 8.0, y),
}


def derivatives(function, *arguments):
    """(values, derivatives with respect to each argument) of a function of the score and captured numbers, by attention."""
    x, *others = arguments
    q = jnp.zeros((1, len(x), 1, 8), jnp.float32).at[0, :, 0, 0].set(x)
    k = jnp.zeros((1, 1, 1, 8), jnp.float32).at[..., 0].set(1.0)

    def lse(q, *others):
        score_mod = lambda score, b, h, q_idx, kv_idx: function(score, *(y[q_idx] for y in others))  # noqa: E731
        value = flex_attention(q, k, jnp.zeros_like(k), score_mod, scale=1.0, return_lse=True, backend="cpu")[1]
        return value.sum(), value[0, 0]

    gradients, value = jax.grad(lse, argnums=tuple(range(len(arguments))), has_aux=True)(q, *others)
    return value, [gradients[0][0, :, 0, 0], *gradients[1:]]


def assert_same_as_jax(function, *arguments):
    arguments = [jnp.asarray(x, jnp.float32) for x in arguments]
    numbers = tuple(range(len(arguments)))
    want_value = jax.vmap(function)(*arguments)
    want = jax.vmap(jax.grad(function, argnums=numbers))(*arguments)
    value, got = derivatives(function, *arguments)
    compared = np.isfinite(want_value) & (np.abs(want_value) < 1e6)
    assert compared.sum() > len(compared) // 2
    np.testing.assert_allclose(value[compared], want_value[compared], rtol=1e-5, atol=1e-6)
    for i, (x, y) in enumerate(zip(got, want)):
        here = compared & np.isfinite(y)
        # 64 units in the last place of the largest of value and derivative, which share their intermediate results.
        allowed = 64 * np.finfo(np.float32).eps * np.maximum(1, np.maximum(np.abs(y), np.abs(want_value)))
        wrong = here & ~(np.abs(x - y) <= allowed)
        found = [(tuple(float(a[j]) for a in arguments), float(x[j]), float(y[j])) for j in np.flatnonzero(wrong)[:5]]
        assert not wrong.any(), f"argument {i}: (at, found, jax.grad's): {found}"


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_of_the_score(name):
    assert_same_as_jax(ONE_ARGUMENT[name], POINTS)


def test_sinc_near_0_and_where_its_series_ends():
    """Near 0 the terms of the derivative cancel, those of jax.grad, too."""
    x = np.asarray([1e-8, -1e-6, 1e-5, -1e-4, 1e-3, 0.01, -0.1, 0.3183, 0.3184], np.float32)
    value, (derivative,) = derivatives(jnp.sinc, jnp.asarray(x))
    angle = np.pi * x.astype(np.float64)
    series = -np.pi * angle * (1 / 3 - angle**2 / 30 + angle**4 / 840 - angle**6 / 45360 + angle**8 / 3991680)
    np.testing.assert_allclose(value, np.sinc(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(derivative, series, rtol=2e-6)


@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_of_the_score_and_a_captured_number(name):
    x, y = (each.ravel() for each in np.meshgrid(POINTS[:-4:2], POINTS[1:-4:3]))
    assert_same_as_jax(TWO_ARGUMENTS[name], x, y)


# These primitives are of integers and bools, or pass an element on as tried ones do, or exist in some versions of JAX alone. Other versions try
# log2 and one_minus_square by their parts.
UNTRIED = {
    *("shift_left", "reduce_and", "reduce_or", "log2", "one_minus_square", "add_any"),
    *("copy_p", "dynamic_slice", "expand_dims", "name", "pvary", "reduce_min", "reduce_prod", "rev", "slice"),
}


def test_every_primitive_is_tried_here():
    tried = set()

    def collect(jaxpr):
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            tried.add(equation.primitive.name)
            for inner in inner_jaxprs(equation):
                collect(inner)

    number = jax.ShapeDtypeStruct((), jnp.float32)
    for functions, arguments in ((ONE_ARGUMENT, [number]), (TWO_ARGUMENTS, [number, number])):
        for function in functions.values():
            collect(jax.make_jaxpr(function)(*arguments))
    untried = set(RULES) - tried - UNTRIED
    assert not untried, untried
