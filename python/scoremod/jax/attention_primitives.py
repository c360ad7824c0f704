"""The JAX primitives: one attention forward, one backward. XLA runs them through libscoremod_jax.so.

forward:  q, k, v, *operands -> o, and lse if with_lse, and each row's largest score if call.max_logit, and the largest magnitude in o if
          call.amax_o
backward: q, k, v, o, lse, d_o, *operands -> dq, dk, dv, and the gradient of each operand whose number is in `wanted`

After the operands come the other runtime arguments (Call.bound), such as the keys of dropout. lse is float32 [batch, heads, seq_q], or
[tokens, heads] of varlen tensors.

Each primitive exists twice. Functions call the first one, which jax.vmap and a mesh's partitioner take apart. The second one is the
remaining call on one device.
"""

import functools

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax._src import dispatch
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from scoremod.errors import UnsupportedError
from scoremod.jax import ffi
from scoremod.jax.call import problem_text
from scoremod.jax.float8 import is_float8, output_dtype
from scoremod.jax.fold_batch import batch_backward, batch_forward
from scoremod.jax.manual_axes import type_like
from scoremod.jax.open_sizes import is_open
from scoremod.jax.partition import BACKWARD_TENSORS, FORWARD_TENSORS, Option, backward_results, forward_results, partitioned
from scoremod.jax.selection import check_runs, compiled, device_of

# A workspace starts at a multiple of this within its buffer; XLA promises less.
_ALIGNMENT = 64

forward_p = Primitive("scoremod_attention_forward")
backward_p = Primitive("scoremod_attention_backward")
device_forward_p = Primitive("scoremod_attention_forward_on_device")
device_backward_p = Primitive("scoremod_attention_backward_on_device")


def forward(call, q, k, v, operands, *, with_lse, wanted=None):
    """[o] or [o, lse], and the largest scores if call.max_logit, which have the LSE's shape; then what call.amax_o asks for.

    wanted: what backward() will be called with, so that both are directions of one compiled problem; None where it won't be."""
    return forward_p.bind(q, k, v, *operands, call=call, with_lse=with_lse, wanted=wanted)


def backward(call, q, k, v, o, lse, d_o, operands, *, wanted):
    return backward_p.bind(q, k, v, o, lse, d_o, *operands, call=call, wanted=tuple(wanted))


def _forward_avals(q, k, v, *operands, call, with_lse, wanted):
    sizes = call.sizes(q, k, v)
    o = type_like(q, (*q.shape[:-1], sizes.dim_v), output_dtype(call, q))
    rows = type_like(q, call.row_shape(q, sizes), jnp.float32)
    return [o] + [rows] * (with_lse + call.max_logit) + [type_like(q, (), jnp.float32)] * call.amax_o


def _backward_avals(q, k, v, o, lse, d_o, *operands, call, wanted):
    gradients = [type_like(x, x.shape, jnp.bfloat16 if is_float8(x) else x.dtype) for x in (q, k, v)]
    return gradients + [type_like(x, x.shape, x.dtype) for x in (operands[i] for i in wanted)]


def _lower_forward(platform, context, *arguments, call, with_lse, wanted):
    q, k, v, *operands = context.avals_in
    problem = problem_text(call, q, k, v, operands, backward=wanted is not None, stats=with_lse, wanted=wanted)
    return _lower(ffi.FORWARD, platform, context, arguments, call, problem)


def _lower_backward(platform, context, *arguments, call, wanted):
    q, k, v, _, _, _, *operands = context.avals_in
    problem = problem_text(call._replace(max_logit=False, amax_o=False), q, k, v, operands, backward=True, stats=True, wanted=wanted)
    return _lower(ffi.BACKWARD, platform, context, arguments, call, problem, wanted=np.asarray(wanted, np.int64))


def _lower(target, platform, context, arguments, call, problem, **attributes):
    ffi.register()
    if is_open(*context.avals_in):
        # How much scratch memory a call needs follows from its sizes: it allocates that itself.
        check_runs(problem, call, platform, True, backward=target == ffi.BACKWARD)
        target, needed = ffi.ANY_SIZE[target], 0
    else:
        needed = _workspace_bytes(target, platform, call, problem)
    # The call has one more result than the primitive: its scratch memory.
    scratch = jax.core.ShapedArray((needed + _ALIGNMENT,), jnp.uint8)
    if call.scale is not None:
        attributes["scale"] = np.float32(call.scale)
    if call.new_sizes is not None:
        attributes["new_sizes"] = call.new_sizes
    attributes["backends"] = ",".join(call.backends)
    context = context.replace(avals_out=[*context.avals_out, scratch])
    return jax.ffi.ffi_lowering(target)(context, *arguments, problem=problem, **attributes)[:-1]


def _workspace_bytes(target, platform, call, problem):
    device = device_of(platform)
    if device is not None:
        ffi.use_device(device)
    attention = compiled(problem, call, platform, backward=target == ffi.BACKWARD)
    return attention.backward_workspace_bytes if target == ffi.BACKWARD else attention.forward_workspace_bytes


def _refuse_jvp(primitive, primals, tangents, **parameters):
    raise UnsupportedError(
        f"cannot differentiate '{primitive.name}' directly: scoremod has first derivatives in reverse mode (jax.grad, jax.vjp) only; "
        'backend="xla" has no such limit'
    )


_partitioned_forward = partitioned(
    FORWARD_TENSORS,
    forward_results,
    lambda call, option, *arrays: device_forward_p.bind(*arrays, call=call, with_lse=option.with_lse, wanted=option.wanted),
)
_partitioned_backward = partitioned(
    BACKWARD_TENSORS,
    backward_results,
    lambda call, option, *arrays: device_backward_p.bind(*arrays, call=call, wanted=option.wanted),
)


def _take_apart_forward(*arrays, call, with_lse, wanted):
    return _partitioned_forward(call, Option(with_lse, wanted, call.max_logit, call.amax_o), *arrays)


def _take_apart_backward(*arrays, call, wanted):
    return _partitioned_backward(call, Option(None, wanted), *arrays)


def _lowering_of(take_apart):
    """The lowering of a call that a mesh may divide. Raises UnsupportedError where jax.export would keep a function of this process with it."""
    lower = mlir.lower_fun(take_apart, multiple_results=True)

    def lowering(context, *arguments, **parameters):
        module = context.module_context
        before = len(module.keepalives)
        results = lower(context, *arguments, **parameters)
        if module.lowering_parameters.for_export and len(module.keepalives) > before:
            raise UnsupportedError(
                "jax.export: expected a call whose shards are known when it is exported, found one on a mesh with automatic axes, where XLA asks "
                "this process for them later; call it inside a jax.shard_map over all axes of the mesh, or make the axes explicit "
                "(jax.sharding.AxisType.Explicit)"
            )
        return results

    return lowering


for _primitive, _device_primitive, _avals, _batching, _take_apart, _lowering in (
    (forward_p, device_forward_p, _forward_avals, batch_forward, _take_apart_forward, _lower_forward),
    (backward_p, device_backward_p, _backward_avals, batch_backward, _take_apart_backward, _lower_backward),
):
    for _each in (_primitive, _device_primitive):
        _each.multiple_results = True
        # As JAX runs its own primitives by themselves: compiled even where jax.disable_jit says otherwise.
        _each.def_impl(functools.partial(dispatch.apply_primitive, _each))
        _each.def_abstract_eval(_avals)
    ad.primitive_jvps[_primitive] = functools.partial(_refuse_jvp, _primitive)
    batching.primitive_batchers[_primitive] = functools.partial(_batching, _primitive)
    # Custom partitioning looks at the devices; only JAX's own primitives have a public way to say so.
    dispatch.prim_requires_devices_during_lowering.add(_primitive)
    mlir.register_lowering(_primitive, _lowering_of(_take_apart))
    for _platform in ("cpu", "cuda"):
        mlir.register_lowering(_device_primitive, functools.partial(_lowering, _platform), platform=_platform)
