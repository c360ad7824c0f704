"""The attention call with its derivative, which scoremod's compiler derives from the program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from scoremod import lse_gradient
from scoremod.jax.attention_primitives import backward, forward
from scoremod.jax.float8 import gradient_of_numbers, gradients_of_arrays, refuse_cache_gradients, refuse_lse_gradient, split_gradient_factors
from scoremod.jax.kept_results import named_results
from scoremod.jax.reverse_mode import reverse_mode_only
from scoremod.jax.sequences import gathered, gathered_lengths, token_offsets
from scoremod.places import Ragged


def attend(call, q, k, v, operands, *, with_lse):
    """The output, or (output, lse) if with_lse, differentiable; then the largest scores if call.max_logit, and the largest magnitude if
    call.amax_o, which derivatives take for constants.

    operands: an array for each operand of call.program, then the other runtime arguments (call.bound); for FP8 arrays also the factors of their
        gradients."""
    if call.dtype_kv is not None:
        return _attend_cache(call, q, k, v, operands, with_lse=with_lse)
    if call.is_paged:
        return _attend_paged(call, q, k, v, operands, with_lse=with_lse)
    compute = attention_lse_and_max if call.max_logit or call.amax_o else attention_and_lse if with_lse else attention
    if jax.sharding.get_abstract_mesh().manual_axes:
        # Inside jax.shard_map without jax.jit, JAX takes no rule that asks which gradients are wanted.
        compute = _JITTED[compute]
    q, k, v, *operands = reverse_mode_only("flex_attention", q, k, v, *operands)
    results = compute(call, q, k, v, tuple(operands))
    if not (call.max_logit or call.amax_o):
        return results
    o, lse, *largest = results  # pyright: ignore[reportGeneralTypeIssues]
    return (o, *[lse] * bool(with_lse), *map(jax.lax.stop_gradient, largest))


def _attend_cache(call, q, k, v, operands, *, with_lse):
    compute = _JITTED_CACHE if jax.sharding.get_abstract_mesh().manual_axes else cache_attention
    q, k, v, *operands = reverse_mode_only("flex_attention", q, k, v, *operands)
    results = compute(call, bool(with_lse), q, k, v, tuple(operands))
    return results if with_lse or call.max_logit else results[0]  # pyright: ignore[reportIndexIssue]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def cache_attention(call, with_lse, q, k, v, operands):
    """The results in a tuple, of an FP8 KV cache, which has no derivative."""
    return tuple(forward(call, q, k, v, operands, with_lse=with_lse))


def _forward_rule_of_cache(call, with_lse, q, k, v, operands):
    refuse_cache_gradients(q, k, v, operands)


def _attend_paged(call, q, k, v, operands, *, with_lse):
    q, k, v, *operands = reverse_mode_only("flex_attention", q, k, v, *operands)
    results = paged_attention(call, bool(with_lse), q, k, v, tuple(operands))
    if not call.max_logit:
        return results if with_lse else results[0]  # pyright: ignore[reportIndexIssue]
    *results, largest = results  # pyright: ignore[reportGeneralTypeIssues]
    return (*results, jax.lax.stop_gradient(largest))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def paged_attention(call, with_lse, q, k, v, operands):
    """The results in a tuple, of keys where they lie; differentiated, of gathered ones, for pages have no backward."""
    return tuple(forward(call, q, k, v, operands, with_lse=with_lse))


def _gathered_attention(call, with_lse, q, k, v, operands):
    at = len(call.program.operands) + call.is_ragged
    tables, lengths, others = operands[at : at + 2], operands[at + 2], operands[at + 3 :]
    lengths = gathered_lengths((k, v), tables, lengths, call.kv_layout)
    k, v = (gathered(pool, table, lengths, call.kv_layout) for pool, table in zip((k, v), tables))
    place, places = None, ()
    if call.is_ragged:
        most = k.shape[1]
        place, places = Ragged(call.place.sequences, call.place.longest_q, most), (token_offsets(len(lengths), most),)
        k, v = (each.reshape(-1, *each.shape[2:]) for each in (k, v))
    results = attend(call._replace(place=place), q, k, v, (*operands[:at], *places, lengths, *others), with_lse=with_lse)
    return results if isinstance(results, tuple) else (results,)


def _forward_rule_of_pages(call, with_lse, q, k, v, operands):
    return jax.vjp(functools.partial(_gathered_attention, call, with_lse), q, k, v, operands)


def _backward_rule_of_pages(call, with_lse, pull_back, upstream):
    return pull_back(upstream)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(call, q, k, v, operands):
    """The output; operands are attend()'s."""
    call, operands, _ = split_gradient_factors(call, operands)
    return forward(call, q, k, v, operands, with_lse=False)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention_and_lse(call, q, k, v, operands):
    """(output, lse), both differentiable."""
    call, operands, _ = split_gradient_factors(call, operands)
    return tuple(forward(call, q, k, v, operands, with_lse=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention_lse_and_max(call, q, k, v, operands):
    """(output, lse, and the largest scores and magnitude, as far as the call has them), of which the first two are differentiable."""
    call, operands, _ = split_gradient_factors(call, operands)
    return tuple(forward(call, q, k, v, operands, with_lse=True))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Wanted:
    """Numbers of the operands whose gradients somebody asks for."""

    numbers: tuple


def wanted_operands(operands):
    """The numbers of the differentiated operands. operands say whether they are."""
    return tuple(i for i, x in enumerate(operands) if x.perturbed and jnp.issubdtype(x.value.dtype, jnp.floating))


def _run_forward(call, q, k, v, operands):
    given = tuple(x.value for x in operands)
    call, operands, _ = split_gradient_factors(call, operands)
    wanted = wanted_operands(operands)
    q, k, v, operands = q.value, k.value, v.value, tuple(x.value for x in operands)
    results = forward(call, q, k, v, operands, with_lse=True, wanted=wanted)
    o, lse = named_results(call.second_name, *results[:2])
    return (o, lse, *results[2:]), (q, k, v, given, o, lse, Wanted(wanted))


def _forward_rule(call, q, k, v, operands):
    results, kept = _run_forward(call, q, k, v, operands)
    return results[0], kept


def _forward_rule_with_lse(call, q, k, v, operands):
    return _run_forward(call, q, k, v, operands)


def _backward_rule(call, kept, d_o):
    return _gradients(call, kept, instantiated(d_o), None)


def _backward_rule_with_lse(call, kept, upstream):
    d_o, d_lse, *_ = upstream
    return _gradients(call, kept, instantiated(d_o), None if isinstance(d_lse, SymbolicZero) else d_lse)


def instantiated(cotangent):
    """The array of a cotangent that may be known to be zero."""
    return jnp.zeros(cotangent.shape, cotangent.dtype) if isinstance(cotangent, SymbolicZero) else cotangent  # pyright: ignore[reportArgumentType]


def _gradients(call, kept, d_o, d_lse):
    q, k, v, given, o, lse, wanted = kept
    call, operands, factors = split_gradient_factors(call, given)
    dim_v = v.shape[-1]
    if d_lse is not None:
        refuse_lse_gradient(call)
        v, o, d_o = with_lse_columns(call, v, o, d_o, d_lse)
        if "descale_v" in call.block_letters():
            number = len(call.program.operands) + call.bound().index("descale_v")
            operands = [*operands[:number], lse_gradient.with_scale_columns(jnp, operands[number], dim_v), *operands[number + 1 :]]
        call = call._replace(given_deltas=True)
    dq, dk, dv, *gradients = backward(call, q, k, v, o, lse, gradient_of_numbers(call, d_o), operands, wanted=wanted.numbers)
    dv = dv[..., :dim_v]
    if call.factors:
        (dq, dk, dv), gradients = gradients_of_arrays(call, (q, k, v), (dq, dk, dv), gradients, factors)
    by_number = dict(zip(wanted.numbers, gradients))
    return dq, dk, dv, tuple(by_number.get(i) for i in range(len(given)))


def with_lse_columns(call, v, o, d_o, d_lse):
    """scoremod.lse_gradient's columns for d_lse of the shape of an LSE."""
    format = jnp.finfo(d_o.dtype)

    def rounded(x):
        # XLA may leave a cast there and back out.
        numbers = lax.reduce_precision(x, format.nexp, format.nmant)
        return numbers.astype(d_o.dtype), numbers

    by_row_sum = bool(call.dropout or call.sink or call.factors)
    return lse_gradient.with_lse_columns(jnp, v, o, d_o, call.as_rows(d_lse), rounded, by_row_sum=by_row_sum)


cache_attention.defvjp(_forward_rule_of_cache, lambda *_: None, symbolic_zeros=True)  # pyright: ignore[reportArgumentType]
paged_attention.defvjp(_forward_rule_of_pages, _backward_rule_of_pages)
attention.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)
attention_and_lse.defvjp(_forward_rule_with_lse, _backward_rule_with_lse, symbolic_zeros=True)
attention_lse_and_max.defvjp(_forward_rule_with_lse, _backward_rule_with_lse, symbolic_zeros=True)
_JITTED = {compute: jax.jit(compute, static_argnums=0) for compute in (attention, attention_and_lse, attention_lse_and_max)}
_JITTED_CACHE = jax.jit(cache_attention, static_argnums=(0, 1))
