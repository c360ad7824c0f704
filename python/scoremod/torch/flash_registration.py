"""scoremod as an implementation of PyTorch's own FlashAttention operators, which scaled_dot_product_attention and varlen_attn call.

They are replaced below autograd, on CUDA and on the CPU. There PyTorch has an operator of its own for scaled_dot_product_attention, whose other cases (a mask
tensor, float64) stay PyTorch's. Each returns tensors that lie as PyTorch's meta functions say, which compiled graphs rely on.
"""

import torch

from scoremod.call_spec import NO_OFFSETS, CallSpec
from scoremod.errors import UnsupportedError
from scoremod.torch.api import checked, flex_attention
from scoremod.torch.call_options import options_of
from scoremod.torch.flash_arguments import FlexArguments, of_dense, of_varlen
from scoremod.torch.function_keys import key_of
from scoremod.torch.kept_traces import kept_trace
from scoremod.torch.parts import taken_part
from scoremod.torch.query_starts import started
from scoremod.torch.sequences import SequenceArguments, placed_of
from scoremod.torch.strides import all_taken, output_strides

_CPU_OPERATOR = "_scaled_dot_product_flash_attention_for_cpu"
_ON_CPU = (torch.float32, torch.float16, torch.bfloat16)


def register(name: str = "scoremod") -> None:
    """Makes scoremod known as an implementation of FlashAttention, for torch.nn.attention.activate_flash_attention_impl(name).

    Nothing changes before that call. After it scaled_dot_product_attention without a mask tensor, where PyTorch chooses its flash backend, and varlen_attn
    run by scoremod, with their gradients. torch.nn.attention.restore_flash_attention_impl() ends it.

    Parameters
    ----------
    name
        By which it is activated.

    Raises
    ------
    UnsupportedError
        For a PyTorch without this registry.
    """
    registered = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if registered is None or not hasattr(torch.library, "get_kernel"):
        raise UnsupportedError(
            f"register: expected a PyTorch with torch.nn.attention.register_flash_attention_impl and torch.library.get_kernel, found {torch.__version__}, which "
            "lacks one; update it, or call scoremod.torch.flex_attention"
        )
    registered(name, register_fn=_activate)


class _Handle:
    """Keeps the operators replaced until it is removed."""

    def __init__(self, library):
        self._library = library

    def remove(self):
        self._library = None


def _activate():
    library = torch.library.Library("aten", "IMPL")
    for device in ("CUDA", "CPU"):
        for name, run in (
            ("_flash_attention_forward", _forward),
            ("_flash_attention_forward_no_dropout_inplace", _forward_into),
            ("_flash_attention_backward", _backward),
            ("_scaled_dot_product_flash_attention", _forward_of_heads),
            ("_scaled_dot_product_flash_attention_backward", _backward_of_heads),
        ):
            library.impl(name, run, device)
    for name, run in ((_CPU_OPERATOR, _forward_on_cpu), (f"{_CPU_OPERATOR}_backward", _backward_on_cpu)):
        library.impl(name, run(torch.library.get_kernel(f"aten::{name}", "CPU")), "CPU", with_keyset=True)
    return _Handle(library)


def _forward(
    query,
    key,
    value,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    return_debug_mask,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
    seqused_k=None,
    alibi_slopes=None,
    block_table=None,
    num_splits=None,  # the kernels choose
    out=None,
):
    if return_debug_mask:
        raise UnsupportedError("return_debug_mask: expected False, found True; scoremod's kernels make no probabilities")
    window = window_size_left, window_size_right
    if cum_seq_q is None:
        if seqused_k is not None or block_table is not None:
            raise UnsupportedError("seqused_k, block_table: expected cum_seq_q beside them, found none; give where the queries of sequences begin and end")
        arguments = of_dense(query, key, value, is_causal, window, 0.0, alibi_slopes)
    else:
        arguments = of_varlen(
            query, key, value, cum_seq_q, cum_seq_k, (max_q, max_k), block_table, seqused_k, is_causal, window, 0.0, alibi_slopes
        )  # fmt: skip
    if dropout_p and (seqused_k is not None or block_table is not None):
        raise UnsupportedError("dropout_p: expected 0 beside seqused_k and block_table, which are for inference, found more")
    if out is not None and cum_seq_q is None:
        out = out.transpose(1, 2)
    o, lse, *random = _run(arguments, dropout_p, scale, out)
    if cum_seq_q is None:
        return o.transpose(1, 2), lse, *random
    return o, lse.T.contiguous(), *random


def _forward_into(out, *arguments, **options):
    return _forward(*arguments, out=out, **options)[1]


def _forward_of_heads(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    o, lse, *random = _forward(query, key, value, None, None, 0, 0, dropout_p, is_causal, return_debug_mask, scale=scale)
    return o.transpose(1, 2), lse, None, None, query.shape[1], key.shape[1], *random


def _run(arguments: FlexArguments, dropout_p, scale, out):
    """(output, LSE, numbers of the dropout, nothing, no debug mask), as flex_attention has the first two."""
    q, k, v, score_mod, mask_mod, options = arguments
    with torch.no_grad():
        if dropout_p:
            dropout = torch.randint(2**62, (2,), dtype=torch.int64, device="cpu")
            part = _part(arguments, dropout_p, scale)
            o, lse, *_ = torch.ops.scoremod.attention_forward(*all_taken(q, k, v, False), part.operands, dropout, [], False, True, part.text)
            # On the host, as those of PyTorch's efficient attention are: a backward need not wait for them.
            numbers = dropout.view(torch.uint64)
            if out is not None:
                o = out.copy_(o)
        else:
            o, lse = flex_attention(q, k, v, score_mod, mask_mod=mask_mod, scale=scale, enable_gqa=True, return_lse=True, out=out, **options)
            numbers = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return o, lse, numbers, torch.zeros((), dtype=torch.uint64, device=q.device), torch.empty(0, dtype=q.dtype, device=q.device)


def _part(arguments: FlexArguments, dropout_p, scale):
    """The Part of the call, for the operators of scoremod."""
    q, k, v, score_mod, mask_mod, options = arguments
    at = SequenceArguments(**{name: options.get(name) for name in ("q_offsets", "kv_offsets", "max_length")})
    placed = placed_of(q, k, v, at)
    offsets, is_start = NO_OFFSETS, False
    if options["q_start"] is not None:
        score_mod, mask_mod, offsets, is_start = started(options["q_start"], q, k, at, score_mod, mask_mod, offsets)
    place, longest, bound = (None, (None, None), ()) if placed is None else (placed.place, placed.longest, placed.bound)
    spec = CallSpec(scale=scale, offsets=offsets, q_start=is_start, dropout=dropout_p, place=place, longest=longest)
    options = options_of(spec)
    q, k, v, extents = checked(q, k, v, bound, True, options)
    functions, captured = key_of(score_mod, mask_mod)
    traced, sources, _ = kept_trace((score_mod, mask_mod), functions, captured, extents, q.device)
    return taken_part(q, k, v, traced, sources, bound, options)


def _backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    rng_state,
    unused,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
):
    window = window_size_left, window_size_right
    if cum_seq_q is None:
        arguments = of_dense(query, key, value, is_causal, window, 0.0, None)
        grad_out, out = grad_out.transpose(1, 2), out.transpose(1, 2)
    else:
        arguments = of_varlen(query, key, value, cum_seq_q, cum_seq_k, (max_q, max_k), None, None, is_causal, window, 0.0, None)
        logsumexp = logsumexp.T.contiguous()
    gradients = _gradients(arguments, grad_out, out, logsumexp, dropout_p, rng_state, scale)
    if cum_seq_q is None:
        gradients = (each.transpose(1, 2) for each in gradients)
    return tuple(map(_lying_as_empty_like, gradients, (query, key, value)))


def _backward_of_heads(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    *,
    scale=None,
):
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    arguments = of_dense(q, k, v, is_causal, (-1, -1), 0.0, None)._replace(query=query, key=key, value=value)
    gradients = _gradients(arguments, grad_out, out, logsumexp, dropout_p, philox_seed, scale)
    return tuple(map(_lying_as_empty_like, gradients, (query, key, value)))


def _gradients(arguments: FlexArguments, d_o, o, lse, dropout_p, numbers, scale):
    """(dq, dk, dv) of tensors as flex_attention has them."""
    q, k, v = arguments[:3]
    with torch.no_grad():
        part = _part(arguments, dropout_p, scale)
        dropout = numbers.cpu().view(torch.int64) if dropout_p else None
        return torch.ops.scoremod.attention_backward(q, k, v, o, lse, d_o, part.operands, dropout, [], part.text)[:3]


def _lying_as_empty_like(gradient, tensor):
    """The gradient with the strides of torch.empty_like(tensor)."""
    if gradient.stride() == tensor.stride() and list(tensor.stride()) == output_strides(tensor, tensor.shape[-1]):  # a dense tensor
        return gradient
    like = torch.empty_like(tensor)
    return gradient if gradient.stride() == like.stride() else like.copy_(gradient)


def _forward_on_cpu(native):
    def run(keys, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
        if not _is_ours(query, attn_mask, dropout_p):
            return native.call_boxed(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        o = torch.empty_like(query)
        with torch.no_grad():
            mask_mod = "causal" if is_causal else None
            o, lse = flex_attention(query, key, value, mask_mod=mask_mod, scale=scale, enable_gqa=True, return_lse=True, out=o)
        return o, lse.transpose(1, 2).contiguous().transpose(1, 2)

    return run


def _backward_on_cpu(native):
    def run(keys, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
        if not _is_ours(query, attn_mask, dropout_p):
            return native.call_boxed(keys, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        arguments = FlexArguments(query, key, value, None, _causal if is_causal else None, {"q_start": None})
        gradients = _gradients(arguments, grad_out, out, logsumexp.contiguous(), 0.0, None, scale)
        return tuple(each.transpose(1, 2).contiguous().transpose(1, 2) for each in gradients)

    return run


def _is_ours(query, attn_mask, dropout_p):
    return attn_mask is None and not dropout_p and query.dtype in _ON_CPU


def _causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx
