"""Calls of the C interface with the memory of tensors, on PyTorch's current stream."""

import functools
from typing import Any, NamedTuple

import torch

from scoremod.bounded_cache import BoundedCache
from scoremod.environment import settings
from scoremod.open_attention import OpenAttention, PreparedSizes
from scoremod.problem import OperandTensor, ProblemTemplate, named_operands
from scoremod.sizes import Sizes
from scoremod.torch.call import DTYPE_NAMES, FLOAT8, LAYOUT, MEMORY, MIXED, TENSOR_DTYPES, call_of, check_dtypes, of_any_lengths, structure_of
from scoremod.torch.covered_tokens import covered_tokens
from scoremod.torch.looks import Look, dense
from scoremod.torch.prepared_calls import Direction

# Compiled problems by the looks of their calls' tensors. The library keeps them by their sizes, too; this saves a call's structs.
_kept = BoundedCache(1024)
# Problems that were compiled for all sizes.
_open = BoundedCache(256)


def forward(q, k, v, operands, o, lse, max_scores, amax_o, dropout, call, wanted, backward):
    """Fills o, and lse, max_scores and amax_o unless they are None. dropout: int64 [2], the seed and the offset; None where nothing is dropped."""
    if covered := covered_tokens(call_of(call), q, k, operands):
        q, o, lse, max_scores = (each if each is None else covered.queries(each) for each in (q, o, lse, max_scores))
        k, v = covered.keys(k), covered.keys(v)
        operands, call = covered.operands, covered.text
    compiled = compiled_problem(q, k, v, o, operands, call, wanted, backward, lse is not None)
    outputs = (each for each in (lse, max_scores, amax_o) if each is not None)
    compiled.forward.run(q, k, v, o, *outputs, *operands, dropout=dropout, offsets=_offsets_of(call))


def backward(q, k, v, o, lse, d_o, operands, dropout, dq, dk, dv, d_operands, call, wanted):
    """Fills dq, dk, dv and d_operands, which are those of the operands in `wanted`."""
    if covered := covered_tokens(call_of(call), q, k, operands):
        q, o, lse, d_o, dq = map(covered.queries, (q, o, lse, d_o, dq))
        k, v, dk, dv = map(covered.keys, (k, v, dk, dv))
        operands, call = covered.operands, covered.text
    compiled = compiled_problem(q, k, v, o, operands, call, wanted, True, True)
    compiled.backward.run(q, k, v, o, lse, d_o, dq, dk, dv, *operands, *d_operands, dropout=dropout, offsets=_offsets_of(call))


def _offsets_of(text):
    call = call_of(text)
    return call.offsets if call.has_offsets else None


class CompiledProblem:
    """One problem, ready to be called with tensors that look as those that it was compiled for. sizes: the PreparedSizes of problems like it. backward: of a problem that
    has one."""

    sizes: PreparedSizes
    backward: Direction

    def __init__(self, attention, sizes, call, q, k, v, o, operands, wanted, backward, stats):
        def look(x, dtype, shape=None):
            """The Look that x has to have: it is where q is."""
            return Look(shape or x.shape, x.stride(), dtype, q.device)

        self.sizes = sizes
        looks = {name: look(x, x.dtype) for name, x in (("q", q), ("k", k), ("v", v))}
        looks["o"] = look(o, call.output_dtype(q), torch.Size([*q.shape[:-1], v.shape[-1]]))
        in_program = len(call.program.operands)
        of_operands = [
            # The problem has no strides of what is bound beside its program.
            (name, look(x, x.dtype) if i < in_program or x.is_contiguous() else dense(x.shape, x.dtype, q.device))
            for i, (name, x) in enumerate(zip(call.names(), operands, strict=True))
        ]
        lse = dense(q.shape[:-1], torch.float32, q.device) if stats or call.max_scores or backward else None
        outputs = {"lse": lse} if stats else {}
        outputs |= {"max_logit": lse} if call.max_scores else {}
        outputs |= {"amax_o": dense((), torch.float32, q.device)} if call.amax_o else {}
        workspace = attention.forward_workspace_bytes
        self.forward = Direction(attention, "forward", {**looks, **outputs}, of_operands, [], workspace, call, q.device)
        if backward:
            gradients = {f"d{name}": look(x, gradient_dtype(x)) for name, x in (("q", q), ("k", k), ("v", v))}
            of_wanted = [of_operands[i] for i in wanted]
            workspace = attention.backward_workspace_bytes
            all_looks = {**looks, "lse": lse, "d_o": looks["o"], **gradients}
            self.backward = Direction(attention, "backward", all_looks, of_operands, of_wanted, workspace, call, q.device)


class _Described(NamedTuple):
    """All of a problem that follows from its tensors, as ProblemTemplate.text() takes it."""

    sizes: Sizes
    operands: list
    lies: dict
    named: dict | None
    sized: dict | None


def problem_of(q, k, v, o, operands, call, *, wanted, backward, stats):
    """The problem of these tensors as JSON: docs/reference/problem.md. The scale isn't in it: it is bound at each call."""
    return _template_of(call, q.dtype, backward, stats).text(*_described(q, k, v, o, operands, call, wanted))


def _described(q, k, v, o, operands, call, wanted):
    described = [OperandTensor(DTYPE_NAMES[operand.dtype], tuple(operand.shape), i in wanted, operand.stride()) for i, operand in enumerate(operands)]
    count = len(call.program.operands)
    placed = call.placed(q, k, operands[count:])
    # Scales of KV heads have a shape that the problem doesn't know.
    bound = zip(call.bound(), described[count:], strict=True)
    named = {name: each for name, each in bound if name == "sink" or (name in call.factor_names() and each.shape)} or None
    sized = None if placed is None else placed.fields(LAYOUT, q, k)
    lies = {name: _strides_of(x) for name, x in (("q", q), ("k", k), ("v", v), ("o", o))}
    return _Described(call.sizes(q, k, v, operands[count:]), described[:count], lies, named, sized)


def _strides_of(tensor):
    """The strides of batch, head, sequence and dim; varlen tensors have one batch, whose stride has no meaning."""
    if tensor.dim() != 3:
        return tensor.stride()
    of_token, of_head, of_dim = tensor.stride()
    return 0, of_head, of_token, of_dim


def _attention_of(described, template, call, key, threads):
    """(the Attention of a call's tensors, PreparedSizes of its like). key: all that decides the problem beside them."""
    sizes, operands, lies, named, sized = described
    paged = None if sized is None else sized.get("paged")
    by_name = named_operands(operands, named)
    # Sizes come with the call, and kernels are made for head dims, and for the size of a block.
    structure = (
        key,
        sizes.dim_qk,
        sizes.dim_v,
        paged and paged["block_size"],
        *((name, operand.dtype, len(operand.shape), operand.gradient) for name, operand in by_name),
    )
    compiled = _open.get(structure)
    if compiled is None:
        opened: dict[str, Any] | None = None if sized is None else {name: None for name in sized}
        if opened is not None and paged:
            opened["paged"] = {"block_size": paged["block_size"], "blocks": None, "blocks_per_sequence": None}
        device = key[-1]
        place = {"memory": MEMORY[device.type], "device": device.index if device.type == "cuda" else None}
        text = template.open_text(sizes, operands, named, opened)
        compiled = _open[structure] = OpenAttention(text, backends=list(call.backends), new_sizes=call.new_sizes, threads=threads, **place)
    placed = (paged["blocks"], paged["blocks_per_sequence"]) if paged else (0, 0)
    tokens = (0, 0) if sized is None else (sized.get("tokens_q", 0), sized.get("tokens_kv", 0))
    of_operands = [(name, operand.shape, operand.strides) for name, operand in by_name]
    # A tensor of another rank is refused where it meets the call's others.
    strides = {name: own for name, own in lies.items() if len(own) == 4}
    prepared = PreparedSizes(compiled, tuple(strides), [(name, len(operand.shape), operand.strides is not None) for name, operand in by_name])
    return compiled.at_sizes((*sizes[:5], *tokens, *placed), strides, of_operands), prepared


def _template_of(call, dtype, backward, stats):
    given = (
        ("lengths", {"kv": True} if call.lengths else None),
        ("sink", "learned" if call.sink else None),
        ("dtype_o", call.dtype_o),
        ("amax_o", call.amax_o),
        ("dtype_kv", call.dtype_kv),
    )
    return ProblemTemplate(
        call.program,
        dtype=TENSOR_DTYPES[dtype],
        layout="THD" if call.is_ragged else LAYOUT,
        layouts={"k": LAYOUT, "v": LAYOUT} if call.place == MIXED else None,
        backward=backward,
        stats=stats,
        deterministic=call.deterministic,
        index_offsets=call.has_offsets,
        dropout=call.dropout,
        max_logit=call.max_scores,
        given_deltas=call.given_deltas,
        **{name: value for name, value in given if value},
    )


@functools.lru_cache(maxsize=1024)
def _known_template(text, dtype, backward, stats):
    """_template_of() of Call.text()."""
    return _template_of(call_of(text), dtype, backward, stats)


def gradient_dtype(tensor):
    """That of the gradient of query, key or value."""
    return torch.bfloat16 if tensor.dtype in FLOAT8 else tensor.dtype


def compiled_problem(q, k, v, o, operands, text, wanted, backward, stats):
    """The CompiledProblem of tensors that look like these, for all index offsets. text: Call.text()."""
    wanted, text = tuple(wanted), structure_of(text)
    threads = torch.get_num_threads() if q.is_cpu else 0
    key = (text, wanted, backward, stats, threads, settings(), q.dtype, q.device, *((x.shape, x.stride()) for x in (q, k, v, o)))
    key += tuple((x.shape, x.stride(), x.dtype) for x in operands)
    found = _kept.get(key)
    if found is None:
        call = call_of(text)
        check_dtypes(q, k, v)
        template = _known_template(text, q.dtype, backward, stats)
        structure = (of_any_lengths(text), *key[1:8])
        attention, sizes = _attention_of(_described(q, k, v, o, operands, call, wanted), template, call, structure, threads)
        if backward:
            attention.backward_backend  # refuses a backward that nothing runs, before the forward
        # Other threads take it from here as soon as it is kept: nothing may be set in it afterwards.
        found = _kept[key] = CompiledProblem(attention, sizes, call, q, k, v, o, operands, wanted, backward, stats)
    return found
