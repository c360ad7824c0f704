"""The operators scoremod::attention_forward and scoremod::attention_backward, as PyTorch's transformations and compilers know them.

forward:  q, k, v, operands, dropout -> o; lse (float32 [batch, heads, seq_q]; empty unless with_lse or backward); each row's largest score (likewise;
          empty unless the call asks for it); the largest magnitude in o (float32 without a dimension; empty likewise)
backward: q, k, v, o, lse, d_o, operands, dropout -> dq, dk, dv, and the gradients of the operands in `wanted`

Tensors are [batch, head, sequence, dim]; of sequences one after the other [token, head, dim], and the lse [token, head]. After the program's operands
come the tensors of Call.bound(). `call` is Call.text(). `backward` says that a backward may follow, which then is compiled, too.
`dropout` is int64 [2] on the host: the seed and the offset of a call that drops weights.
"""

import torch
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad

from scoremod import lse_gradient
from scoremod.errors import UnsupportedError
from scoremod.torch import execution
from scoremod.torch.call import FLOAT8, call_of, with_given_deltas
from scoremod.torch.covered_tokens import leaves_tokens
from scoremod.torch.execution import gradient_dtype
from scoremod.torch.fold_batch import fold_backward, fold_forward
from scoremod.torch.looks import dense, look_of
from scoremod.torch.saved_tensors import as_saved, save
from scoremod.torch.strides import all_taken, empty_like, empty_output, lying_as, taken, taken_operand

_library = torch.library.Library("scoremod", "DEF")
_FORWARD, _BACKWARD = "scoremod::attention_forward", "scoremod::attention_backward"
_library.define(
    "attention_forward(Tensor q, Tensor k, Tensor v, Tensor[] operands, Tensor? dropout, int[] wanted, bool backward, bool with_lse, str call) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "attention_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor d_o, Tensor[] operands, Tensor? dropout, int[] wanted, str call) "
    "-> (Tensor, Tensor, Tensor, Tensor[])"
)


def _forward_outputs(q, k, v, backward, with_lse, call):
    q, v = taken(q), taken(v)
    call = call_of(call)
    shapes = (q.shape[:-1] if asked else (0,) for asked in (backward or with_lse, call.max_scores))
    return output_of(call, q, v), *(rows_of(call, q, shape) for shape in shapes), amax_of(call, q)


def amax_of(call, q):
    return torch.empty(() if call.amax_o else (0,), dtype=torch.float32, device=q.device)


def output_of(call, q, v):
    """A new output."""
    return cleared_output(call, empty_output(q, v, call.output_dtype(q)))


def cleared_output(call, o):
    """The memory of an output. What no sequence has is 0 after the call."""
    return o.zero_() if leaves_tokens(call, o) else o


def rows_of(call, q, shape):
    """A new LSE, or largest scores. What no sequence has is -inf after the call."""
    rows = torch.empty(shape, dtype=torch.float32, device=q.device)
    return rows.fill_(-torch.inf) if leaves_tokens(call, q) else rows


def gradient_of(call, tensor):
    """A new gradient of query, key or value. What no sequence has is 0 after the call."""
    gradient = empty_like(tensor, gradient_dtype(tensor))
    return gradient.zero_() if leaves_tokens(call, tensor) else gradient


def _taken_operands(operands, wanted, call):
    """The operands as a call takes them; those of Call.bound() are dense."""
    count = len(call_of(call).program.operands)
    of_program = [taken_operand(operand, i in wanted) for i, operand in enumerate(operands[:count])]
    return [*of_program, *(operand.contiguous() for operand in operands[count:])]


def _forward(q, k, v, operands, dropout, wanted, backward, with_lse, call):
    o, lse, largest, amax = _forward_outputs(q, k, v, backward, with_lse, call)
    operands = _taken_operands(operands, wanted, call)
    of_lse, of_largest, of_amax = (
        each if asked else None for each, asked in ((lse, backward or with_lse), (largest, call_of(call).max_scores), (amax, call_of(call).amax_o))
    )
    q, k, v = all_taken(q, k, v, backward)
    execution.forward(q, k, v, operands, o, of_lse, of_largest, of_amax, dropout, call, wanted, backward)
    return o, lse, largest, amax


def _forward_fake(q, k, v, operands, dropout, wanted, backward, with_lse, call):
    return _forward_outputs(q, k, v, backward, with_lse, call)


def _backward_outputs(q, k, v, operands, wanted, call):
    return *(gradient_of(call_of(call), taken(x)) for x in (q, k, v)), [empty_like(_taken_operands(operands, wanted, call)[i]) for i in wanted]


def _backward(q, k, v, o, lse, d_o, operands, dropout, wanted, call):
    dq, dk, dv, d_operands = _backward_outputs(q, k, v, operands, wanted, call)
    operands = _taken_operands(operands, wanted, call)
    o = taken(o)
    lse, d_o = lying_as(lse, dense(q.shape[:-1], torch.float32, q.device)), lying_as(d_o, look_of(o))
    execution.backward(taken(q), taken(k), taken(v), o, lse, d_o, operands, dropout, dq, dk, dv, d_operands, call, wanted)
    return dq, dk, dv, d_operands


def _backward_fake(q, k, v, o, lse, d_o, operands, dropout, wanted, call):
    return _backward_outputs(q, k, v, operands, wanted, call)


def compile_forward(q, k, v, operands, wanted, backward, with_lse, call):
    """Compiles attention_forward for tensors that look like these, and refuses what it would."""
    q, k, v = map(taken, (q, k, v))
    operands = [taken_operand(operand, i in wanted) for i, operand in enumerate(operands)]
    execution.compiled_problem(q, k, v, output_of(call_of(call), q, v), operands, call, wanted, backward, backward or with_lse)


def compile_backward(q, k, v, o, operands, wanted, call):
    """Compiles attention_backward for tensors that look like these, and refuses what it would."""
    q, k, v, o = map(taken, (q, k, v, o))
    operands = [taken_operand(operand, i in wanted) for i, operand in enumerate(operands)]
    execution.compiled_problem(q, k, v, o, operands, call, wanted, True, True)


def _save(ctx, inputs, output):
    q, k, v, operands, dropout, wanted, backward, with_lse, call = inputs
    o, lse, largest, amax = output
    save(ctx, q, k, v, o, lse, dropout, *operands)
    ctx.mark_non_differentiable(largest, amax)
    ctx.wanted, ctx.call, ctx.with_lse, ctx.count, ctx.runs = list(wanted), call, with_lse, len(operands), backward
    ctx.set_materialize_grads(False)


def with_lse_columns(v, o, d_o, d_lse, *, by_row_sum):
    """scoremod.lse_gradient's columns for d_lse of the shape of an LSE."""

    def rounded(x):
        numbers = x.to(d_o.dtype)
        return numbers, numbers.float()

    with torch.autocast(v.device.type, enabled=False):  # which would look for a common dtype of parts that have one, and knows none of FP8
        return lse_gradient.with_lse_columns(torch, v, o, d_o, d_lse[..., None], rounded, by_row_sum=by_row_sum)


def differentiate(ctx, saved, d_o, d_lse):
    """The gradients of attention_forward's arguments. ctx: has what _save keeps. saved: ctx.saved_tensors, which hooks may let nobody read twice."""
    # An empty list, whatever it would hold, is taken for one of tensors.
    nothing = [None] * ctx.count, None, None if ctx.wanted else [], None, None, None
    if d_o is None and d_lse is None:
        return None, None, None, *nothing
    if any(each is not None and is_legacy_batchedtensor(each) for each in (d_o, d_lse)):
        raise UnsupportedError(
            "flex_attention: expected one gradient of its output, found a batch of them (torch.autograd.grad with is_grads_batched=True, or "
            "torch.autograd.functional.jacobian with vectorize=True); use torch.func.jacrev, or torch.func.vmap of torch.func.vjp, which run as one call"
        )
    refuse_tangents(d_o, d_lse)
    q, k, v, o, lse, dropout, *operands = as_saved(ctx, saved)
    if not ctx.runs:
        raise UnsupportedError(
            "scoremod::attention_forward: expected backward=True of a call that is differentiated, found one of a graph that was made where gradients were off, "
            "as within torch.no_grad(); make it (torch.export, make_fx) where they are on, with a tensor that requires a gradient"
        )
    dim = v.shape[-1]
    d_o = torch.zeros_like(o) if d_o is None else d_o
    call = ctx.call
    if d_lse is not None:
        by_row_sum = dropout is not None or call_of(call).sink or call_of(call).factors > 0
        v, o, d_o = with_lse_columns(v, o, d_o, d_lse, by_row_sum=by_row_sum)
        operands = _with_scale_columns(call_of(call), operands, dim)
        call = with_given_deltas(call)
    dq, dk, dv, gradients = _gradients(q, k, v, o, lse, d_o, operands, dropout, ctx.wanted, call)
    by_number = dict(zip(ctx.wanted, gradients))
    dv = dv[..., :dim]
    if q.dtype in FLOAT8:  # parts.taken_part refuses to be asked for these
        dq = dk = dv = None
    return dq, dk, dv, [by_number.get(i) for i in range(ctx.count)], *nothing[1:]


def _with_scale_columns(call, operands, dim):
    """The operands of a call whose v has with_lse_columns: block scales have as many. dim: the head dim of v without them."""
    names = call.names()
    if "descale_v" not in names or operands[names.index("descale_v")].dim() != 4:
        return operands
    number = names.index("descale_v")
    return [*operands[:number], lse_gradient.with_scale_columns(torch, operands[number], dim), *operands[number + 1 :]]


def _differentiate_operator(ctx, d_o, d_lse, *d_others):
    return differentiate(ctx, ctx.saved_tensors, d_o, d_lse)


def _refuse_second(ctx, *gradients):
    raise UnsupportedError(
        "flex_attention was to be differentiated twice: scoremod has first derivatives only. Where second ones are needed, use "
        "torch.nn.functional.scaled_dot_product_attention, or attention written out in torch's operations"
    )


def refuse_forward_mode():
    raise UnsupportedError(
        "flex_attention has derivatives in reverse mode only, found a tensor with a tangent (torch.autograd.forward_ad, torch.func.jvp, jacfwd or hessian); "
        "use torch.func.vjp or jacrev"
    )


def refuse_tangents(*tensors):
    """Refuses tensors, of which some may be None, that have a tangent."""
    if forward_ad._current_level >= 0 and any(each is not None and forward_ad.unpack_dual(each).tangent is not None for each in tensors):
        refuse_forward_mode()


class _Backward(torch.autograd.Function):
    """The backward within torch.func's transformations, which follow it for a second derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, o, lse, d_o, wanted, call, *operands):
        *gradients, d_operands = torch.ops.scoremod.attention_backward(q, k, v, o, lse, d_o, list(operands), None, wanted, call)
        return *gradients, *d_operands

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        _refuse_second(ctx)

    @staticmethod
    def jvp(ctx, *tangents):
        refuse_forward_mode()


def _gradients(q, k, v, o, lse, d_o, operands, dropout, wanted, call):
    if peek_interpreter_stack() is not None:
        dq, dk, dv, *d_operands = _Backward.apply(q, k, v, o, lse, d_o, wanted, call, *operands)
        return dq, dk, dv, d_operands
    return torch.ops.scoremod.attention_backward(q, k, v, o, lse, d_o, operands, dropout, wanted, call)


class _Attention(torch.autograd.Function):
    """attention_forward with its derivative for torch.func's transformations, which don't know the derivatives of operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, wanted, backward, with_lse, call, *operands):
        return torch.ops.scoremod.attention_forward(q, k, v, list(operands), None, wanted, backward, with_lse, call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, wanted, backward, with_lse, call, *operands = inputs
        _save(ctx, (q, k, v, operands, None, wanted, backward, with_lse, call), output)

    @staticmethod
    def backward(ctx, d_o, d_lse, *d_others):
        dq, dk, dv, gradients, *_ = differentiate(ctx, ctx.saved_tensors, d_o, d_lse)
        return dq, dk, dv, None, None, None, None, *gradients

    @staticmethod
    def jvp(ctx, *tangents):
        refuse_forward_mode()


def attention(q, k, v, operands, dropout, wanted, backward, with_lse, call):
    """(o, lse, each row's largest score, the largest magnitude in o), the first two differentiable."""
    if peek_interpreter_stack() is not None:
        if dropout is not None:
            raise UnsupportedError("dropout_p: expected 0 within torch.func's transformations, which scoremod would drop weights alike in")
        return _Attention.apply(q, k, v, wanted, backward, with_lse, call, *operands)
    return torch.ops.scoremod.attention_forward(q, k, v, operands, dropout, wanted, backward, with_lse, call)


def _fold_forward(info, in_dims, *arguments):
    return fold_forward(torch.ops.scoremod.attention_forward, info.batch_size, in_dims, *arguments)


def _fold_backward(info, in_dims, *arguments):
    return fold_backward(torch.ops.scoremod.attention_backward, info.batch_size, in_dims, *arguments)


for _name, _run, _fake in (("attention_forward", _forward, _forward_fake), ("attention_backward", _backward, _backward_fake)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _run, _key)
    torch.library.register_fake(f"scoremod::{_name}", _fake, lib=_library)
torch.library.register_autograd(_FORWARD, _differentiate_operator, setup_context=_save, lib=_library)
torch.library.register_autograd(_BACKWARD, _refuse_second, lib=_library)
torch.library.register_vmap(_FORWARD, _fold_forward, lib=_library)
torch.library.register_vmap(_BACKWARD, _fold_backward, lib=_library)
