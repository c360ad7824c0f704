"""Functions of JAX that a score program expresses better than their own jaxpr does: with one op, or with the derivative that JAX defines for
the function."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from scoremod.jax.custom_rules import has_custom_rule, is_library_rule
from scoremod.jax.jaxprs import called_jaxpr
from scoremod.jax.primitives import PROGRAM_TYPES
from scoremod.jax.shard_casts import without_casts
from scoremod.program_forms import clamp


def jax_settings():
    """All that jax.config has, on which hangs what a function is traced to."""
    return tuple(jax.config.values.items())


def library_rule(equation, types, settings):
    """The rule(builder, params, *args) -> node of a call to one of these functions, with arguments of these types; None for any other call.
    settings: jax_settings()."""
    if called_jaxpr(equation) is None or (has_custom_rule(equation) and not is_library_rule(equation)):
        return None
    calls = _calls(types, settings)
    return calls.get(_identity(equation)) if calls else None


def _op(name):
    return lambda builder, params, *args: builder.op(name, *args)


def _float_mod(builder, params, x, y):
    return builder.op("mod", builder.op("f32", x), builder.op("f32", y))


def _relu6(builder, params, x):
    return clamp(builder, builder.constant(0, "f32"), x, builder.constant(6, "f32"))


def _log_of_sum(softplus):
    """log(exp(x) + exp(y)) to some base, without overflow; softplus is that of (x, 0)."""

    def rule(builder, params, x, y):
        if builder.constant_value(y) == 0:
            return softplus(builder, x)
        difference = builder.op("sub", x, y)
        # From the larger one on. The derivatives of both forms are sigmoids, where those of max and abs are none at x = y.
        from_x = builder.op("add", x, softplus(builder, builder.op("neg", difference)))
        from_y = builder.op("add", y, softplus(builder, difference))
        larger = builder.op("select", builder.op("gt", difference, builder.constant(0, "f32")), from_x, from_y)
        # Infinities of one sign are their sum.
        return builder.op("select", builder.op("ne", difference, difference), builder.op("add", x, y), larger)

    return rule


def _softplus(builder, x):
    return builder.op("softplus", x)


def _softplus2(builder, x):
    ln2 = builder.constant(np.log(2), "f32")
    return builder.op("div", builder.op("softplus", builder.op("mul", x, ln2)), ln2)


def _x_times_log(name):
    """x log(y), and 0 at x = 0 where the logarithm has no finite value. Elsewhere at x = 0 it is the product: its derivative is log(y)."""

    def rule(builder, params, x, y):
        x, y = builder.op("f32", x), builder.op("f32", y)
        log = builder.op(name, y)
        product = builder.op("mul", x, log)
        if builder.constant_value(y) is not None and 0 < builder.constant_value(y) < np.inf:
            return product
        finite = builder.op("lt", builder.op("abs", log), builder.constant(np.inf, "f32"))
        known = builder.op("eq", y, y)  # a NaN of y stays one
        lost = builder.op("and", builder.op("eq", x, builder.constant(0, "f32")), builder.op("and", builder.op("not", finite), known))
        return builder.op("select", lost, builder.constant(0, "f32"), product)

    return rule


def _hypot(builder, params, x, y):
    x, y = builder.op("abs", x), builder.op("abs", y)
    infinity, zero, one = (builder.constant(number, "f32") for number in (np.inf, 0, 1))
    large, small = builder.op("max", x, y), builder.op("min", x, y)
    none = builder.op("eq", large, zero)
    ratio = builder.op("div", small, builder.op("select", none, one, large))
    length = builder.op("mul", large, builder.op("sqrt", builder.op("add", one, builder.op("mul", ratio, ratio))))
    length = builder.op("select", none, large, length)
    return builder.op("select", builder.op("or", builder.op("eq", x, infinity), builder.op("eq", y, infinity)), infinity, length)


def _sinc(builder, params, x):
    """sin(pi x) / (pi x); for small angles its series, whose derivative doesn't cancel."""
    one = builder.constant(1, "f32")
    angle = builder.op("mul", builder.constant(np.pi, "f32"), x)
    is_small = builder.op("lt", builder.op("abs", angle), one)
    square, series = builder.op("mul", angle, angle), one
    for n in (5, 4, 3, 2, 1):  # sum of (-angle^2)^n / (2 n + 1)!
        term = builder.op("mul", builder.op("div", square, builder.constant(-2 * n * (2 * n + 1), "f32")), series)
        series = builder.op("add", one, term)
    large = builder.op("select", is_small, one, angle)
    return builder.op("select", is_small, series, builder.op("div", builder.op("sin", large), large))


_FLOATS = [("f32", "f32")]
_SOME_FLOAT = [("f32", "f32"), ("f32", "i32"), ("i32", "f32")]
# Each row has a function, its arguments' types and its rule. A function is recognised by its jaxpr and its derivative rule, not by its name.
_LIBRARY = (
    (jnp.floor_divide, [("i32", "i32")], _op("floor_div")),
    (jnp.remainder, [("i32", "i32")], _op("mod")),
    (jnp.remainder, _SOME_FLOAT, _float_mod),
    (jax.nn.silu, [("f32",)], _op("silu")),
    (jax.nn.relu, [("f32",)], _op("relu")),
    (jax.nn.relu6, [("f32",)], _relu6),
    (jnp.logaddexp, _FLOATS, _log_of_sum(_softplus)),
    (jnp.logaddexp2, _FLOATS, _log_of_sum(_softplus2)),
    (jnp.hypot, _FLOATS, _hypot),
    (jnp.sinc, [("f32",)], _sinc),
    (special.xlogy, _SOME_FLOAT, _x_times_log("log")),
    (special.xlog1py, _SOME_FLOAT, _x_times_log("log1p")),
)
_DTYPES = {type: dtype for dtype, type in PROGRAM_TYPES.items()}


def _identity(equation):
    """The key by which calls of JAX's functions are equal: the primitive and the traced body."""
    jaxpr = called_jaxpr(equation)
    return equation.primitive.name, None if jaxpr is None else str(without_casts(jaxpr))


@functools.lru_cache(maxsize=256)
def _calls(types, _settings):
    """identity -> rule of the outermost call in what the library's functions of these argument types trace to. A number in the function's text
    has a weak type, which makes another body."""
    calls = {}
    for function, accepted, rule in _LIBRARY:
        if types not in accepted:
            continue
        for weak in itertools.product([False, True], repeat=len(types)):
            avals = [jax.ShapeDtypeStruct((), _DTYPES[type], weak_type=each) for type, each in zip(types, weak)]
            try:
                with jax.enable_x64(False):  # as score functions are traced
                    jaxpr = jax.make_jaxpr(function)(*avals)
            except (TypeError, ValueError):  # a strict promotion of dtypes, under which nobody can call it so
                continue
            calls.setdefault(_identity(jaxpr.jaxpr.eqns[0]), rule)
    return calls
