"""How a call is compiled, and which backends can run it, without running it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask

import scoremod
from scoremod.call_spec import NO_OFFSETS
from scoremod.drawing import picture
from scoremod.explanation import Explanation, Operand
from scoremod.mask_map import decided
from scoremod.program import operand_name
from scoremod.query_positions import named
from scoremod.signatures import Backends, MaskName
from scoremod.torch.api import call_of_arguments, checked
from scoremod.torch.call import MEMORY
from scoremod.torch.captures import Read
from scoremod.torch.execution import problem_of
from scoremod.torch.function_keys import key_of
from scoremod.torch.graph_modifier import graph_modifier
from scoremod.torch.kept_traces import kept_trace
from scoremod.torch.other_arguments import ELSEWHERE
from scoremod.torch.query_starts import at_positions
from scoremod.torch.signatures import Lengths, MaskMod, MaxLength, PageTable, QueryStart, ScoreMod
from scoremod.torch.sequences import SequenceArguments
from scoremod.torch.strides import empty_output, taken, taken_operand
from scoremod.torch.token_lists import ListedCall, paged_call
from scoremod.unknown_arguments import arguments_of, refuse
from scoremod.user_functions import names_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Arguments of explain() that make score_mod a callback that builds on a graph.
CALLBACKS = ("score_mod_tensors", "score_mod_bprop", "score_mod_bprop_tensors", "trust_bprop")


def explain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    *,
    mask_mod: MaskMod | MaskName | None = None,
    enable_gqa: bool = True,
    lengths: Lengths = None,
    q_offsets: torch.Tensor | None = None,
    kv_offsets: torch.Tensor | None = None,
    page_table: PageTable = None,
    max_length: MaxLength = None,
    sink: torch.Tensor | None = None,
    backends: Backends = None,
    q_start: QueryStart = None,
    token_list: torch.Tensor | None = None,
    **callbacks: Any,
) -> Explanation:
    """Explains what becomes of a call, with its backward; of pages the forward, where they are read in place.

    Parameters
    ----------
    query, key, value, score_mod, block_mask, mask_mod, lengths, q_offsets, kv_offsets, page_table, max_length, sink, backends, q_start
        flex_attention's.
    token_list : integer Tensor [batch, queries, entries], optional
        flex_attention's. What is explained is the call that it becomes: one batch for each query of each batch, on pages of one token.
    enable_gqa : bool
        False refuses fewer heads of key than of query, as flex_attention does where it isn't asked for them.
    **callbacks
        fused_attention's score_mod_tensors (which may be empty), score_mod_bprop, score_mod_bprop_tensors and trust_bprop. With any of them score_mod
        is a callback that builds on a graph. Dimensions are in flex_attention's order.

    Returns
    -------
    Explanation
        The program, each operand with its origin and size, the mask's class, the derivative, and each backend's answer. str() of it is a page for people.
        With token_list, `listed` has the caller's numbers of batches and queries.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        As flex_attention.
    """
    unknown = [name for name in callbacks if name not in CALLBACKS]
    if unknown:
        refuse("explain", unknown, [*arguments_of(explain), *CALLBACKS], ELSEWHERE)
    sequences = SequenceArguments(q_offsets=q_offsets, kv_offsets=kv_offsets, page_table=page_table, max_length=max_length, lengths=lengths)
    if callbacks:
        places = {**sequences._asdict(), "mask_mod": mask_mod, "q_start": q_start}
        score_mod = graph_modifier(query, key, value, places, score_mod, **callbacks)
    if token_list is not None:
        mask_mod, q_start = named(mask_mod, q_start)
        call = ListedCall(query, key, value, score_mod, mask_mod, block_mask, lengths, q_start, NO_OFFSETS, None, sequences._asdict())
        found = explain(**paged_call(token_list, call), enable_gqa=enable_gqa, sink=sink, backends=backends)
        return dataclasses.replace(found, listed=(query.shape[0], query.shape[2]))
    problem, traced, sources, tensors = _traced(query, key, value, score_mod, block_mask, mask_mod, enable_gqa, sequences, sink, backends, q_start)
    program = traced.program
    called = _called(sources, score_mod, block_mask, mask_mod)
    operands = tuple(_operand(i, source, decl, tensor, called) for i, (source, decl, tensor) in enumerate(zip(sources, program.operands, tensors)))
    compiled = scoremod.explain(problem, backends=backends, memory=MEMORY[query.device.type], device=query.device.index if query.is_cuda else None)
    decide = None
    if q_offsets is None and page_table is None:
        decide = lambda drawn: decided(drawn, program, problem, _arrays(tensors))  # noqa: E731
    return Explanation(program.text(), operands, json.loads(problem), compiled, why_not_kept=traced.why_not_kept, decide=decide)


def draw(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    *,
    mask_mod: MaskMod | MaskName | None = None,
    enable_gqa: bool = True,
    **options: Any,
) -> Figure:
    """A picture of what the functions do to the scores of one head of one batch.

    Parameters
    ----------
    query, key, value, score_mod, block_mask, mask_mod
        flex_attention's.
    enable_gqa : bool
        explain's.
    **options
        scoremod.draw's: batch, head, tile, queries, keys.

    Returns
    -------
    matplotlib.figure.Figure
        scoremod.draw's.

    Raises
    ------
    InvalidArgumentError
        For what flex_attention or scoremod.draw refuses.
    """
    problem, _, sources, tensors = _traced(query, key, value, score_mod, block_mask, mask_mod, enable_gqa)
    return picture(problem, _arrays(tensors), _called(sources, score_mod, block_mask, mask_mod), **options)


def _called(sources, score_mod, block_mask, mask_mod):
    """operand's name -> the name by which the functions read its tensor."""
    read = {operand_name(i): source.base.tensor for i, source in enumerate(sources) if isinstance(source, Read)}
    return names_of(read, (score_mod, mask_mod, None if block_mask is None else block_mask.mask_mod))


def _arrays(tensors):
    """operand's name -> array, of the operands' tensors."""
    arrays = (tensor.detach().cpu() for tensor in tensors)
    return {operand_name(i): (x.float() if x.is_floating_point() else x).numpy() for i, x in enumerate(arrays)}


def _traced(query, key, value, score_mod, block_mask, mask_mod, enable_gqa, sequences=SequenceArguments(), sink=None, backends=None, q_start=None):
    """(problem, KeptTrace, sources, tensors) of a call."""
    mask_mod, q_start = named(mask_mod, q_start)
    if q_start is not None:
        score_mod, mask_mod = at_positions(q_start, query, key, sequences, score_mod, mask_mod)
    mask_mod, bound, options = call_of_arguments(query, key, value, block_mask, mask_mod, None, backends, sequences, sink)
    query, key, value, extents = checked(query, key, value, bound, enable_gqa, options)
    functions, captured = key_of(score_mod, mask_mod)
    traced, sources, _ = kept_trace((score_mod, mask_mod), functions, captured, extents, query.device)
    tensors = [taken_operand(source.tensor(query.device), True) for source in sources]
    q, k, v = (taken(tensor.detach()) for tensor in (query, key, value))
    call = options._replace(program=traced.program)
    of_call = [*tensors, *(tensor.detach() for tensor in bound)]
    problem = problem_of(q, k, v, empty_output(q, v, call.output_dtype(q)), of_call, call, wanted=range(len(of_call)), backward=call.has_backward, stats=True)
    return problem, traced, sources, tensors


def _operand(number, source, decl, tensor, called):
    dtype, size = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
    name = operand_name(number)
    return Operand(name, source.describe(), decl.axes, tuple(tensor.shape), dtype, size, called.get(name, ""))


def support(*arguments: Any, **options: Any) -> dict[str, tuple[str, ...]]:
    """Why backends can't run a call of flex_attention, forward and backward.

    Parameters
    ----------
    *arguments, **options
        explain()'s.

    Returns
    -------
    dict of str to tuple of str
        The reasons of each backend; () of one that can.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        As flex_attention.
    """
    return explain(*arguments, **options).answers()
