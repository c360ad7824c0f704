"""Eager calls of a kind that was seen before. They skip all that was worked out for the first one: a call checks that it is of that kind, makes
tensors for the results, and runs.

Two calls are of one kind where their functions are the same (kept_traces), and all tensors, captured ones included, look the same. What is special to
PyTorch, its transformations and modes, and tensors of other classes, goes by the operators (attention_ops) instead.
"""

import functools
import operator

import torch
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad

from scoremod.bounded_cache import BoundedCache
from scoremod.environment import settings
from scoremod.torch.asked_sizes import answer_alike
from scoremod.torch.attention_ops import amax_of, cleared_output, differentiate, output_of, rows_of
from scoremod.torch.call import DTYPE_NAMES, FLOAT8, at_offsets, call_of
from scoremod.torch.captures import operand_tensor
from scoremod.torch.checked_integers import ANY
from scoremod.torch.covered_tokens import leaves_tokens
from scoremod.torch.execution import compiled_problem
from scoremod.torch.kept_traces import rebased
from scoremod.torch.looks import dense, hold_numbers, look_of
from scoremod.torch.native import binding
from scoremod.torch.outputs import check_shape
from scoremod.torch.saved_tensors import save
from scoremod.torch.strides import all_taken, empty_output, lying_as, output_strides, taken_operand
from scoremod.torch.trace_modes import PRE_DISPATCH

_kept = BoundedCache(1024)

_count_modes = torch._C._len_torch_dispatch_stack
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_tracing_state = torch._C._get_tracing_state


def is_plain(*tensors):
    """Whether a call with these is nothing but a call: one of tensors whose memory holds their numbers, outside all modes.

    On which device they are, their kind says, and calls of none but those of scoremod's devices are kept.
    """
    if not hold_numbers(*tensors):
        return False
    return (
        peek_interpreter_stack() is None
        and _count_modes() == 0
        and not _is_included(PRE_DISPATCH)
        and forward_ad._current_level < 0
        and _tracing_state() is None
    )


def kind_of(functions, captured, query, key, value, enable_gqa, with_lse, options):
    """The kind of a call. functions: the key of its functions; captured: the tensors that they and the call's fields read."""
    kind = [functions, options, enable_gqa, with_lse, torch.get_num_threads(), settings()]
    for x in (query, key, value, *captured):
        kind += (x.shape, x.stride(), x.dtype, x.device, x.requires_grad)
    return tuple(kind)


def known(kind):
    """The EagerCall of this kind, if there was one before."""
    return _kept.get(kind)


def keep(kind, call):
    _kept[kind] = call


class EagerCall:
    """All calls of one kind."""

    def __init__(self, query, key, value, captured, bound, traced, extents, wanted, backward, with_lse, text):
        """bound: the tensors of Call.bound(). traced: a kept_traces.KeptTrace, of a call of these Extents. text: that of Call.structure()."""
        self._device, self.traced, self.extents, self.numbers = query.device, traced, extents, traced.numbers
        sources = traced.at(extents)
        self.takes_all = all(map(operator.is_, all_taken(query, key, value, backward), (query, key, value)))
        # A tensor whose dtype operands can't have is converted, and looked at, once a call, however often it is read.
        limits = [min([source.limit for number, source in sources if number == at], default=ANY) for at in range(len(captured))]
        limited = [tensor.dtype not in DTYPE_NAMES or limit < ANY for tensor, limit in zip(captured, limits)]
        self._converted = [(number, limits[number]) for number, is_limited in enumerate(limited) if is_limited]
        sources = [(number, source._replace(limit=ANY)) for number, source in sources]
        self.call = call_of(text)
        self._moves = self.call.has_offsets and traced.hangs_on_sizes()
        if self._moves:  # each call's offsets say what is read, and its operands lie as those that _operands_at() makes
            self._converted, operands = [], [source.tensor(query.device) for source in traced.bound(captured, extents)]
        else:
            captured = self._in_dtypes(captured)
            operands = [rebased(source, captured[number]).tensor(query.device) for number, source in sources]
        self._sources = [
            (number, None if _is_read_as_it_is(each, captured[number], i in wanted) else source, i in wanted)
            for i, ((number, source), each) in enumerate(zip(sources, operands))
        ]
        is_direct = not self._moves and all(source is None for _, source, _ in self._sources)
        self._direct = [number for number, source, _ in self._sources] if is_direct else None
        self.wants_backward, self.with_lse = backward, with_lse
        self.wanted, self.text = list(wanted), text
        q, k, v = all_taken(query.detach(), key.detach(), value.detach(), backward)
        given = [taken_operand(operand.detach(), i in wanted) for i, operand in enumerate([*operands, *bound])]
        self.has_lse, self._with_max, self._with_amax = backward or with_lse, self.call.max_scores, self.call.amax_o
        self._has_rows = self.has_lse or self._with_max or self._with_amax
        # PyTorch has a shorter way to make outputs with the query's strides.
        alike = q.shape[-1] == v.shape[-1] and self.call.output_dtype(q) == q.dtype and list(q.stride()) == output_strides(q, v.shape[-1])
        o = q if alike else empty_output(q, v, self.call.output_dtype(q))
        self.compiled = compiled_problem(q, k, v, o, given, text, wanted, backward, self.has_lse)
        self.may_be_like_query = q.shape[-1] == v.shape[-1] and self.call.output_dtype(q) == q.dtype
        self._at = self.compiled.forward
        self._at.rows, self._at.is_like_query = q.shape[:-1], alike
        self._clears = leaves_tokens(self.call, q)
        like_query = torch.zeros_like if self._clears else torch.empty_like  # as cleared_output()
        # They hold no reference to this: the binding's objects are none of those that Python collects in circles.
        rows = functools.partial(_rows_of, self.call, self.has_lse) if self._has_rows else None
        self.results = binding.Forward.make(like_query, functools.partial(_output_of, self.call), rows)
        if backward:
            tensors, operands = self.compiled.backward.of_all.tensors, self.compiled.backward.of_all.operands
            self._look_of_dropout = dense((2,), torch.int64, torch.device("cpu")) if self.call.dropout else None
            self.saved_looks = [*map(tensors.get, ("q", "k", "v", "o", "lse")), self._look_of_dropout, *(look for _, look in operands)]
            self._look_of_d_o, self._looks_of_gradients = tensors["d_o"], [tensors["dq"], tensors["dk"], tensors["dv"]]

    def serves(self, offsets):
        """Whether the functions' trace is the one of a call with these Offsets, too."""
        return answer_alike(self.traced.guards, self._extents_at(offsets))

    def __call__(self, query, key, value, captured, bound, dropout, offsets, out=None):
        """(o, lse, largest scores, largest magnitude); None for what nobody asked for. dropout: as in attention_ops. offsets: those of a call that has index
        offsets, else None. out: what o may be written to, and then is."""
        if self._converted:
            captured = self._in_dtypes(captured)
        if self._direct is not None:
            operands = [captured[number] for number in self._direct]
        elif self._moves:
            operands = self._operands_at(captured, offsets)
        else:
            operands = [self._operand(captured[number], source, wanted) for number, source, wanted in self._sources]
        operands += bound
        return self.run(query, key, value, operands, dropout, offsets, out)

    def direct(self):
        """The number of the captured tensor that each operand of the program is; None where one is made of a tensor."""
        return None if self._converted else self._direct

    def run(self, query, key, value, operands, dropout, offsets, out=None):
        """__call__() with the tensors of all operands."""
        if not self.takes_all:
            query, key, value = all_taken(query, key, value, self.wants_backward)
        if not self.wants_backward:
            return self.forward(query, key, value, operands, dropout, offsets, out)
        o, *rows = _Differentiable.apply(self, dropout, offsets, query, key, value, *operands)
        amax = rows.pop() if self._with_amax else None
        return o, rows[0] if self.with_lse else None, rows[-1] if self._with_max else None, amax

    def _in_dtypes(self, captured):
        captured = list(captured)
        for number, limit in self._converted:
            captured[number] = operand_tensor(captured[number], limit)
        return captured

    def _operand(self, tensor, source, wanted):
        return tensor if source is None else taken_operand(rebased(source, tensor).tensor(self._device), wanted)

    def _extents_at(self, offsets):
        return self.extents._replace(**{axis: (first, count) for first, (axis, (_, count)) in zip(offsets, self.extents.axes().items())})

    def _operands_at(self, captured, offsets):
        sources = self.traced.bound(captured, self._extents_at(offsets))
        return [taken_operand(source.tensor(self._device), wanted) for source, (_, _, wanted) in zip(sources, self._sources)]

    def forward(self, q, k, v, operands, dropout, offsets, out=None):
        return self.results.run(self._at, q, k, v, operands, dropout, offsets, out)

    def backward(self, saved, d_o, offsets):
        """(dq, dk, dv, gradient of each operand or None) of the tensors that autograd hands back. None where these look other than the saved ones,
        or are not plain."""
        q, k, v, o, lse, dropout, *operands = saved
        if dropout is not None and look_of(dropout) != self._look_of_dropout:
            return None
        gradients = [self._new(look) for look in self._looks_of_gradients]
        of_operands = [look.empty() for _, look in self.compiled.backward.of_all.gradients]
        d_o = lying_as(d_o, self._look_of_d_o)
        if not self.compiled.backward.run_if_plain(q, k, v, o, lse, d_o, *gradients, *operands, *of_operands, dropout=dropout, offsets=offsets):
            return None
        all_operands = [None] * len(operands)
        for i, gradient in zip(self.wanted, of_operands):
            all_operands[i] = gradient
        return *gradients, *all_operands

    def _new(self, look):
        gradient = look.empty()
        return gradient.zero_() if self._clears else gradient


def _output_of(call, q, v, out, is_like_query):
    """The memory of an output that is not simply a new one like the query. out: the caller's, which is taken where it lies as an output does; or None."""
    if out is not None and hold_numbers(out):
        strides = q.stride() if is_like_query else tuple(output_strides(q, v.shape[-1]))
        if out.stride() == strides:
            check_shape(out, (*q.shape[:-1], v.shape[-1]), call.output_dtype(q), q.device)
            return cleared_output(call, out)
    return cleared_output(call, torch.empty_like(q)) if is_like_query else output_of(call, q, v)


def _rows_of(call, has_lse, q, shape):
    """(LSE, largest scores, largest magnitude), new ones; None of those that the call lacks."""
    lse = rows_of(call, q, shape) if has_lse else None
    return lse, rows_of(call, q, shape) if call.max_scores else None, amax_of(call, q) if call.amax_o else None


def _is_read_as_it_is(operand, captured, wanted):
    return operand is captured and taken_operand(operand, wanted) is operand


class _Differentiable(torch.autograd.Function):
    """The forward of an EagerCall, whose backward is its own where that is nothing but a call, too."""

    @staticmethod
    def forward(ctx, call, dropout, offsets, q, k, v, *operands):
        o, lse, *others = call.forward(q, k, v, operands, dropout, offsets)
        others = [each for each in others if each is not None]
        save(ctx, q, k, v, o, lse, dropout, *operands, looks=call.saved_looks)
        ctx.set_materialize_grads(False)
        ctx.eager, ctx.offsets, ctx.call, ctx.wanted, ctx.count, ctx.runs = call, offsets, call.text, call.wanted, len(operands), True
        ctx.mark_non_differentiable(*others)
        ctx.lse_place = 0 if call.with_lse else None
        return o, *([lse] if call.with_lse else []), *others

    @staticmethod
    def backward(ctx, d_o, *d_rows):
        d_lse = None if ctx.lse_place is None else d_rows[ctx.lse_place]
        is_usual = d_lse is None and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        saved = ctx.saved_tensors
        if d_o is not None and is_usual and is_plain(d_o) and not is_legacy_batchedtensor(d_o):  # of is_grads_batched
            gradients = ctx.eager.backward(saved, d_o, ctx.offsets)
            if gradients is not None:
                if saved[0].dtype in FLOAT8:  # as in differentiate()
                    gradients = None, None, None, *gradients[3:]
                return None, None, None, *gradients
        ctx.call = at_offsets(ctx.eager.text, ctx.offsets)
        dq, dk, dv, gradients, *_ = differentiate(ctx, saved, d_o, d_lse)
        return None, None, None, dq, dk, dv, *gradients
