"""Whose derivative rule a jax.custom_jvp or jax.custom_vjp call has.

The derived backward pass differentiates what a function computes. For JAX's own functions (jax.nn.relu, jnp.logaddexp) that is what their
rules say, too; a user's rule may say anything.
"""

_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_RULES = ("jvp_jaxpr_fun", "bwd")
# JAX's own wrapping around every rule.
_MACHINERY = ("jax._src.interpreters", "jax._src.custom_derivatives", "jax._src.linear_util", "jax._src.api_util", "jax._src.util")


def has_custom_rule(equation):
    return equation.primitive.name in _CALLS


def is_library_rule(equation):
    """Whether a custom call's rule is certainly JAX's own: every function that it is made of is, and there is one."""
    found = set()
    for name in _RULES:
        _collect_modules(equation.params.get(name), found, set())
    found = {module for module in found if not module.startswith(_MACHINERY)}
    return bool(found) and all(module == "jax" or module.startswith("jax.") for module in found)


def _collect_modules(function, found, seen):
    """The modules of a function and of what it closes over."""
    if function is None or id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, (tuple, list)):
        inner = function
    elif hasattr(function, "__code__"):
        found.add(function.__module__ or "")
        inner = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    else:
        inner = [getattr(function, name, None) for name in ("f", "func", "fun", "__wrapped__")]
    for each in inner:
        _collect_modules(each, found, seen)


def _is_set(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
