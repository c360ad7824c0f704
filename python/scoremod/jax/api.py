"""flex_attention: fused attention with a score function in plain JAX."""

import numbers

import jax
import jax.numpy as jnp

from scoremod.errors import InvalidArgumentError
from scoremod.jax.call import Call, backend_on, check_supported, dtype_of, problem_text, sizes_of
from scoremod.jax.differentiate import attention, attention_and_lse
from scoremod.jax.trace import trace


def flex_attention(
    query,
    key,
    value,
    score_mod=None,
    mask_mod=None,
    *,
    scale=None,
    layout="BSHD",
    return_lse=False,
    deterministic=False,
    backend=None,
    fallback=None,
):
    """O = softmax(score_mod(scale * Q K^T)) V over the keys that mask_mod keeps, as one fused call.

    query, key, value: float32, float16 or bfloat16 arrays in the order of `layout` ("BSHD", "SBHD" or "BHSD"). key and value may have
        fewer heads, a divisor of query's; value may have another head dim.
    score_mod(score, b, h, q_idx, kv_idx): the modified score. A plain JAX function of scalars: float32 score, int32 indices.
    mask_mod(b, h, q_idx, kv_idx): whether the query may look at the key. A query without any key gets output 0.
    scale: a number, or a scalar array; 1 / sqrt(head dim) without it.
    return_lse: also returns float32 [batch, heads, seq_q], the natural log of each row's sum of exp of the modified scores.
    deterministic: whether the gradients must be the same bits each time.
    backend: "cpu" or "reference" on the CPU, "cudnn" on CUDA, "xla" anywhere; without it, the platform's own.
    fallback: "xla" to run an attention that the backend can't run as XLA operations, instead of raising.

    The functions may close over arrays: slopes[h], bias[h, q_idx - kv_idx + n], ids[b, q_idx]. Gradients flow to query, key, value and
    to every captured float array. docs/jax.md says what the functions can be made of.

    Raises InvalidArgumentError (a ValueError) for what doesn't fit, and UnsupportedError for what can't be expressed or run.
    """
    query, key, value = (jnp.asarray(array) for array in (query, key, value))
    sizes = sizes_of(layout, query, key, value)
    dtype_of(query, key, value)
    number, array = _scale(scale)
    program, sources = trace(score_mod, mask_mod, sizes.axes(), array)
    call = Call(program, layout, number, backend, bool(deterministic))
    operands = tuple(source.array() for source in sources)
    problem = problem_text(call, query, key, value, operands, backward=False, stats=True)
    check_supported(problem, backend_on(jax.default_backend(), backend))
    compute = attention_and_lse if return_lse else attention
    return compute(call, query, key, value, operands)


def _scale(scale):
    """(number, array): the factor of Q K^T as part of the problem, or as an operand."""
    if scale is None:
        return None, None
    if isinstance(scale, numbers.Real):
        return float(scale), None
    if jnp.shape(scale) != () or not jnp.issubdtype(jnp.result_type(scale), jnp.floating):
        raise InvalidArgumentError(f"scale: expected a number or a scalar float array, found {scale!r}")
    return 1.0, jnp.asarray(scale, jnp.float32)
