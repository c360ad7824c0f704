"""A traced call as the operators take it: which of its sequences, pages and sinks are fields of the problem, and what becomes of the others."""

import functools
import math
import os
from typing import NamedTuple

import torch
from torch._C._functorch import peek_interpreter_stack

from scoremod.attention import support
from scoremod.errors import UnsupportedError
from scoremod.finite_masks import warn_of_finite_masks
from scoremod.large_operands import warn_of_large_operands
from scoremod.torch.call import FLOAT8, MEMORY, RAGGED, at_offsets
from scoremod.torch.captures import Computed
from scoremod.torch.execution import problem_of
from scoremod.torch.float8 import refuse_cache_gradients, refuse_gradients
from scoremod.torch.sequences import gathered, gathered_tokens
from scoremod.torch.strides import empty_output, taken, taken_operand


class Part(NamedTuple):
    """A call of the operators: attention_ops has what their arguments are.

    text: Call.text(); structure: that of Call.structure().
    sink_after: the sink that is applied to the output and the LSE, where no backend in question takes it as a field; None for none.
    offsets_q: where the sequences of varlen queries begin and end; None for others.
    is_as_given: whether the caller's tensors are those of the call, and nothing comes after it.
    """

    key: torch.Tensor
    value: torch.Tensor
    operands: list
    wanted: list
    backward: bool
    text: str
    structure: str
    sink_after: torch.Tensor | None
    offsets_q: torch.Tensor | None
    is_as_given: bool


def taken_part(query, key, value, traced, sources, bound, options):
    """The Part of a call. traced, sources: those of kept_traces.kept_trace(); bound: the tensors of options.bound()."""
    warn_of_large_operands(_computed(sources), "PyTorch", 4)
    operands = [source.tensor(query.device) for source in sources]
    if query.is_cuda:
        warn_of_finite_masks(traced.program, sources, None, 5, "float('-inf')")
    learned = torch.is_grad_enabled()
    backward = learned and any(x.requires_grad for x in (query, key, value, *operands, *bound))
    if backward and options.dtype_kv is not None:
        refuse_cache_gradients(query, key, value)
    if backward and query.dtype in FLOAT8:
        refuse_gradients(query, key, value, options)
    is_gathered = options.is_paged and backward  # pages have no backward
    if is_gathered:
        key, value, bound, options = _gathered(key, value, bound, options)
    sink_after = None
    if options.sink and not _takes_sink(query, key, value, [*operands, *bound], options._replace(program=traced.program)):
        at = options.bound().index("sink")
        bound, options, sink_after = (*bound[:at], *bound[at + 1 :]), options._replace(sink=False), bound[at]
        if options.output_dtype(query) in FLOAT8 or options.amax_o:
            raise UnsupportedError(
                "sink: expected no scale_o and no return_amax_o beside it where no backend has sinks, found one: they apply to the output before the "
                "sink does. Scale the output afterwards"
            )
    operands = [*operands, *bound]
    wanted = [i for i, operand in enumerate(operands) if learned and operand.requires_grad]
    of_all = options.structure()
    structure = traced.texts.get(of_all)
    if structure is None:
        structure = traced.texts[of_all] = of_all._replace(program=traced.program).text()
    text = at_offsets(structure, options.offsets if options.has_offsets else None)
    is_as_given = not is_gathered and sink_after is None
    return Part(key, value, operands, wanted, backward, text, structure, sink_after, bound[0] if options.is_ragged else None, is_as_given)


def _gathered(key, value, bound, options):
    """(key, value, bound, options) of a call on pages as one on the keys that they hold."""
    if options.is_ragged:
        key, value, places, most = gathered_tokens(key, value, bound[:4])
        most = most if isinstance(most, int) else None  # a size that a compiler leaves open
        return key, value, (*places, *bound[4:]), options._replace(place=RAGGED, longest=(options.longest[0], most))
    key, value, lengths = gathered(key, value, bound[:3])
    return key, value, (lengths, *bound[3:]), options._replace(place=None)


def _computed(sources):
    """(axes, shape, bytes) of each operand that PyTorch computes for indices, but for those of sizes that a compiler leaves open."""
    for source in sources:
        if isinstance(source, Computed) and not source.value.is_uniform:
            axes = source.value.axes()
            shape = [getattr(source.extents, axis)[1] for axis in axes]
            if all(isinstance(size, int) for size in shape):
                yield axes, shape, math.prod(shape) * source.value.dtype.itemsize


def _takes_sink(query, key, value, operands, call):
    """Whether a backend in question runs the call with the sink as a field, in both directions where there are two; found out without building anything."""
    if peek_interpreter_stack() is not None:
        return False  # mapped calls would run in turn
    tensors = [taken(x.detach()) for x in (query, key, value)]
    operands = [taken_operand(x.detach(), True) for x in operands]
    sizes = (size for x in (*tensors, *operands) for size in (*x.shape, *x.stride()))
    if not all(isinstance(size, int) for size in sizes):
        return False  # sizes that torch.compile leaves open
    q, k, v = tensors
    problem = problem_of(q, k, v, empty_output(q, v, call.output_dtype(q)), operands, call, wanted=range(len(operands)), backward=call.has_backward, stats=True)
    return _runs(problem, call.backends, MEMORY[query.device.type], os.environ.get("SCOREMOD_BACKENDS"))


@functools.lru_cache(maxsize=1024)
def _runs(problem, backends, memory, _environment):
    return any(answer["supported"] for answer in support(problem, backends=list(backends), memory=memory, level="static"))
