"""Eager calls at other sizes than an earlier one: what an EagerCall has of its sizes is worked out anew, and all else is that call's.

This holds of calls without a backward whose operands are the caller's tensors as they are. Whatever else there is, and whatever doesn't fit, goes the long
way, which says what is wrong.
"""

from scoremod.decode_masks import keeps_keys_up_to_the_query
from scoremod.errors import Error
from scoremod.torch.asked_sizes import answer_alike
from scoremod.torch.call import PAGED
from scoremod.torch.captures import Computed, Extents
from scoremod.torch.looks import dense, span
from scoremod.torch.strides import all_taken, output_strides


class Resizing:
    """An EagerCall as one of its like at other sizes."""

    def __init__(self, call, places):
        """places: those of the call's operands among the tensors that at() takes."""
        self._call, self._places = call, places
        self._compiled, self._traced, self._of_call = call.compiled, call.traced, call.call
        (*_, self._heads, _, self._dim), (_, self._heads_kv, self._block, _), (*_, self._dim_v) = (self._compiled.forward.tensors[name].shape for name in "qkv")
        self._itemsizes = [look.dtype.itemsize for look in (*self._compiled.forward.tensors.values(), *[look for _, look in self._compiled.forward.operands])]
        self._is_paged = self._of_call.place == PAGED
        self._axes = [() if isinstance(source, Computed) else source.axes for _, source in call.traced.at(call.extents)]
        self._is_causal = keeps_keys_up_to_the_query(call.traced.program)
        # The library takes the program's operands and the sink; what else is bound has the problem's sizes.
        self._described = [*range(len(self._axes)), *([len(self._axes) + self._of_call.bound().index("sink")] if self._of_call.sink else [])]

    @staticmethod
    def of(call, places):
        """The Resizing of an EagerCall; None where it is one that goes the long way."""
        is_plain = call.direct() is not None and call.takes_all and not call.wants_backward and call.call.place in (None, PAGED)
        if not is_plain or call.call.has_offsets or call.call.factors or call.call.max_scores or call.compiled.sizes is None:
            return None
        for _, source in call.traced.at(call.extents):
            if not isinstance(source, Computed) and (source.fixed or source.order != tuple(range(len(source.order)))):
                return None
        if call.traced.has_limits():
            return None
        return Resizing(call, places)

    def at(self, tensors, looks):
        """The EagerCall; None where the long way is to be gone. looks: (shape, strides) of each tensor."""
        extents = self._extents(looks)
        if extents is None or not answer_alike(self._traced.guards, extents):
            return None
        if self._is_causal and extents.q_idx[1] == 1 < extents.kv_idx[1]:  # which is warned of
            return None
        query, key, value = tensors[:3]
        if any(x is not y for x, y in zip(all_taken(query, key, value, False), (query, key, value))):
            return None
        operands = [looks[place] for place in self._places]
        if not self._hold(tensors, operands, extents):
            return None
        (shape_q, strides_q), (_, strides_k), (_, strides_v) = looks[:3]
        is_like = self._call.may_be_like_query and (query.is_contiguous() or list(strides_q) == output_strides(query, self._dim_v))
        o = looks[0] if is_like else (shape_q[:-1] + (self._dim_v,), tuple(output_strides(query, self._dim_v)))
        numbers = [*strides_q, *strides_k, *strides_v, *o[1]]
        for number in self._described:
            numbers += operands[number][0]
            numbers += operands[number][1]
        paged = (looks[1][0][0], operands[len(self._axes)][0][1]) if self._is_paged else (0, 0)
        sizes = extents.b[1], self._heads, self._heads_kv, extents.q_idx[1], extents.kv_idx[1], 0, 0, *paged
        try:
            attention, workspace_bytes = self._compiled.sizes.at(sizes, numbers)
        except Error:
            return None
        rows = shape_q[:-1]
        shapes = [*looks[:3], o, *([dense(rows, None, None)[:2]] if self._call.has_lse else []), *operands]
        bytes_of_each = [span(*each) * size for each, size in zip(shapes, self._itemsizes)]
        return self._call.resized(self._compiled.resized(attention, shapes, [*bytes_of_each, workspace_bytes]), extents, rows, is_like)

    def _extents(self, looks):
        """The Extents of tensors of these looks, which have the ranks of the call's; None where they do not fit together or have other heads."""
        (batch, heads, queries, dim), (blocks, heads_kv, keys, dim_k), of_values = looks[0][0], looks[1][0], looks[2][0]
        if (heads, heads_kv, dim, dim_k, *of_values) != (self._heads, self._heads_kv, self._dim, self._dim, blocks, heads_kv, keys, self._dim_v):
            return None
        if self._is_paged:
            table = looks[self._places[len(self._axes)]][0]
            if keys != self._block or table[0] != batch:
                return None
            keys *= table[1]
        elif blocks != batch:
            return None
        known = self._call.extents
        sizes = Extents((0, batch), known.h, (0, queries), (0, keys), known.are_limits, known.is_part)
        return sizes if batch * queries * keys * blocks else None

    def _hold(self, tensors, operands, extents):
        """Whether the operands are read as they are at these sizes."""
        for place in self._places:
            if not tensors[place].is_contiguous():
                return False
        for axes, (shape, _) in zip(self._axes, operands):
            if axes is not None and shape != tuple([getattr(extents, axis)[1] for axis in axes]):
                return False
        for name, (shape, _) in zip(self._of_call.bound(), operands[len(self._axes) :]):
            expected = (self._heads,) if name == "sink" else (extents.b[1],) if name == "lengths_kv" else operands[len(self._axes)][0]
            if shape != expected:
                return False
        return True
