"""Eager calls at other sizes than an earlier one: their sizes are written as numbers into structs that stand ready, and all else is that call's.

This holds of calls without a backward whose operands are the caller's tensors as they are. Whatever else there is, and whatever doesn't fit, goes the long
way, which says what is wrong.
"""

from scoremod.decode_masks import keeps_keys_up_to_the_query
from scoremod.errors import Error
from scoremod.open_attention import Handle
from scoremod.program import AXES
from scoremod.torch.asked_sizes import answer_alike, axes_of
from scoremod.torch.call import PAGED
from scoremod.torch.captures import Computed, Extents
from scoremod.torch.eager_calls import AtSizes
from scoremod.torch.looks import dense, span
from scoremod.torch.strides import output_strides, taken

_HEADS = AXES.index("h")


class Resizing:
    """An EagerCall as one of its like at other sizes."""

    def __init__(self, call, places):
        """places: those of the call's operands among the tensors that at() takes."""
        forward, self._call, self._places = call.compiled.forward, call, places
        self._forward, self._sizes, self._has_lse, self._may_be_like_query = forward, call.compiled.sizes, call.has_lse, call.may_be_like_query
        looks = forward.of_all.looks
        (*_, self._heads, _, self._dim), (_, self._heads_kv, self._block, _), (*_, self._dim_v) = (looks[name].shape for name in "qkv")
        self._itemsizes = [look.dtype.itemsize for look in looks.values()]
        self._is_paged = call.call.place == PAGED
        # Heads are those of the call, and so are the answers of what asks for nothing else.
        self._guards = [each for each in call.traced.guards if axes_of(each[0]) - {"h"}]
        self._is_causal = keeps_keys_up_to_the_query(call.traced.program)
        of_program = [() if isinstance(source, Computed) else source.axes for _, source in call.traced.at(call.extents)]
        # For each operand of the program the axes that its shape follows; None of one of any shape.
        self._axes = [None if axes is None else [AXES.index(axis) for axis in axes] for axes in of_program]
        self._count, self._bound = len(self._axes), call.call.bound()
        # The library takes the program's operands and the sink; what else is bound has the problem's sizes.
        self._described = [*range(self._count), *([self._count + self._bound.index("sink")] if call.call.sink else [])]

    @staticmethod
    def of(call, places):
        """The Resizing of an EagerCall; None where it is one that goes the long way."""
        is_plain = call.direct() is not None and call.takes_all and not call.wants_backward and call.call.place in (None, PAGED)
        if not is_plain or call.call.has_offsets or call.call.factors or call.call.max_scores:
            return None
        if call.compiled.sizes.strided != ("q", "k", "v", "o"):  # at() writes theirs in this order
            return None
        for _, source in call.traced.at(call.extents):
            if not isinstance(source, Computed) and (source.fixed or source.order != tuple(range(len(source.order)))):
                return None
        if call.traced.has_limits() or any(len(call.compiled.forward.of_all.looks[name].shape) != 4 for name in "qkv"):
            return None
        return Resizing(call, places)

    def at(self, tensors, looks):
        """The AtSizes of tensors of the ranks and dtypes of the call's; None where the long way is to be gone. looks: (shape, strides) of each tensor."""
        query, key, value = tensors[:3]
        (shape_q, strides_q), (shape_k, strides_k), (shape_v, strides_v) = looks[:3]
        counts, paged = self._counts(looks)
        if counts is None or paged is None:
            return None
        operands = [looks[place] for place in self._places]
        if operands and not self._hold(tensors, operands, counts):
            return None
        reach_q, reach_k, reach_v = [self._reach(each, look, itemsize) for each, look, itemsize in zip((query, key, value), looks, self._itemsizes)]
        if reach_q is None or reach_k is None or reach_v is None:
            return None
        rows = shape_q[:-1]
        of_output = strides_q if reach_q[1] and self._may_be_like_query else tuple(output_strides(query, self._dim_v))
        is_like = self._may_be_like_query and of_output == strides_q
        numbers = [*strides_q, *strides_k, *strides_v, *of_output]
        for number in self._described:
            shape, strides = operands[number]
            numbers += shape
            numbers += strides
        batch, heads, queries, keys = counts
        try:
            handle, workspace_bytes = self._sizes.at((batch, heads, self._heads_kv, queries, keys, 0, 0, *paged), numbers)
        except Error:
            return None
        owner, of_rows = Handle(handle), batch * heads * queries
        sizes = [reach_q[0], reach_k[0], reach_v[0], of_rows * self._dim_v * self._itemsizes[3]]
        shapes = [*looks[:3], (rows + (self._dim_v,), of_output), *operands]
        if self._has_lse:
            shapes.insert(4, dense(rows, None, None)[:2])
            sizes.append(of_rows * self._itemsizes[4])
        sizes += [tensors[place].nbytes for place in self._places]
        sizes.append(workspace_bytes)
        return AtSizes(self._forward.resized(owner, handle, shapes, sizes), rows, is_like)

    @staticmethod
    def _reach(tensor, look, itemsize):
        """(bytes from the first element to the last, whether there are no gaps) of query, key or value; None of one that is not taken as it lies."""
        if tensor.is_contiguous():
            return tensor.nbytes, True
        (batch, heads, length, dim), (of_batch, of_head, of_token, of_element) = look
        # A part of a longer cache, whose heads or whose tokens are the outer ones: what taken() would find, in a tenth of its time.
        is_part = of_element == 1 and (
            (of_batch >= of_head * heads and of_head >= of_token * length and of_token >= dim)
            or (of_batch >= of_token * length and of_token >= of_head * heads and of_head >= dim)
        )
        if is_part:
            return ((batch - 1) * of_batch + (heads - 1) * of_head + (length - 1) * of_token + dim) * itemsize, False
        return (span(*look) * itemsize, False) if taken(tensor, is_only_read=True) is tensor else None

    def _counts(self, looks):
        """((batch, heads, queries, keys), (blocks, blocks of a sequence)) of tensors of these looks.

        None, None where they do not fit together, where they have other heads, or where the trace would be another.
        """
        (batch, heads, queries, dim), (blocks, heads_kv, keys, dim_k), of_values = looks[0][0], looks[1][0], looks[2][0]
        if (heads, heads_kv, dim, dim_k, *of_values) != (self._heads, self._heads_kv, self._dim, self._dim, blocks, heads_kv, keys, self._dim_v):
            return None, None
        paged = 0, 0
        if self._is_paged:
            rows, columns = looks[self._places[self._count]][0]
            if keys != self._block or rows != batch:
                return None, None
            keys, paged = keys * columns, (blocks, columns)
        elif blocks != batch:
            return None, None
        if not batch * queries * keys * blocks or (self._is_causal and queries == 1 < keys):  # which is warned of
            return None, None
        counts = batch, heads, queries, keys
        if self._guards:
            known = self._call.extents
            if not answer_alike(self._guards, Extents(*[(0, count) for count in counts], are_limits=known.are_limits, is_part=known.is_part)):
                return None, None
        return counts, paged

    def _hold(self, tensors, operands, counts):
        """Whether the operands are read as they are at these sizes."""
        for place in self._places:
            if not tensors[place].is_contiguous():
                return False
        for axes, (shape, _) in zip(self._axes, operands):
            if axes is not None and shape != tuple([counts[axis] for axis in axes]):
                return False
        for name, (shape, _) in zip(self._bound, operands[self._count :]):
            expected = (self._heads,) if name == "sink" else (counts[0],) if name == "lengths_kv" else operands[self._count][0]
            if shape != expected:
                return False
        return True
