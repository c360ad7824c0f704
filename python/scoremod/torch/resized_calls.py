"""Eager calls at other sizes than an earlier one: their sizes are written as numbers into structs that stand ready, and all else is that call's.

This holds of calls without a backward whose operands are the caller's tensors as they are. Whatever else there is, and whatever doesn't fit, goes the long
way, which says what is wrong. In generation keys and values grow, and the other tensors look as before. What follows from those is kept beside their looks.
"""

import itertools
import operator
from typing import Any

from scoremod.decode_masks import keeps_keys_up_to_the_query
from scoremod.program import AXES
from scoremod.torch.asked_sizes import answer_alike, axes_of
from scoremod.torch.call import PAGED, RAGGED
from scoremod.torch.captures import Computed, Extents
from scoremod.torch.looks import dense
from scoremod.torch.prepared_calls import AtNewSizes, layout_of
from scoremod.torch.sequences import has_known_lengths, known_lengths
from scoremod.torch.strides import output_strides, taken


class _OfQuery:
    """All that follows from a query's look, which is (shape, strides).

    rows: the shape of an LSE. strides: those of the output. is_like_query: whether the output has the query's shape and strides. results: (shape, strides) of
    each tensor that a call makes.
    """

    __slots__ = ("is_like_query", "look", "results", "rows", "strides")


class _OfOperands:
    """All that follows from the looks of the operands, and from the call's counts along the axes that they and the trace's questions follow.

    numbers: the shape and strides of those that the library takes, in a row.
    """

    __slots__ = ("counts", "looks", "numbers")


def _items_at(places):
    """A function that gives the items of a sequence at these places, in a tuple; None where there are no places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda items, place=places[0]: (items[place],)) if places else None


class Resizing:
    """An EagerCall as one of its like at other sizes."""

    def __init__(self, call, places, sized):
        """places: those of the call's operands among the tensors that at() takes. sized: (place, look) of those whose looks the trace may follow from."""
        self._call, self._places, self._sized = call, places, sized
        self._sizes, self._has_lse, self._may_be_like_query = call.compiled.sizes, call.has_lse, call.may_be_like_query
        self._of_all, self._layout = call.compiled.forward.of_all, layout_of(self._sizes)
        looks = self._of_all.looks
        self._know_shapes(*(looks[name].shape for name in "qkv"))
        self._is_paged = call.call.place == PAGED
        # Heads are those of the call, and so are the answers of what asks for nothing else.
        self._guards = [each for each in call.traced.guards if axes_of(each[0]) - {"h"}]
        self._is_causal = keeps_keys_up_to_the_query(call.traced.program)
        of_program = [() if isinstance(source, Computed) else source.axes for _, source in call.traced.at(call.extents)]
        # For each operand of the program the axes that its shape follows; None of one of any shape.
        self._axes = [None if axes is None else [AXES.index(axis) for axis in axes] for axes in of_program]
        self._count, self._bound = len(self._axes), call.call.bound()
        # The axes whose counts an _OfOperands follows from.
        asked = [AXES.index(axis) for comparison, _ in self._guards for axis in axes_of(comparison)]
        of_bound = [AXES.index("b")] if self._bound else []
        followed = sorted({*asked, *of_bound, *itertools.chain.from_iterable(axes for axes in self._axes if axes is not None)})
        self._of_places, self._of_followed = _items_at(places), _items_at(followed)
        self._of_query: Any = None  # of the last sizes, and so the next
        self._of_operands: Any = None
        # The library takes the program's operands and the sink; what else is bound has the problem's sizes.
        self._described = [*range(self._count), *([self._count + self._bound.index("sink")] if call.call.sink else [])]

    @staticmethod
    def of(call, places, sized):
        """The Resizing of an EagerCall; None where it is one that goes the long way. places, sized: as in __init__()."""
        is_ragged = call.call.place == RAGGED
        is_plain = call.direct() is not None and call.takes_all and not call.wants_backward and (is_ragged or call.call.place in (None, PAGED))
        if not is_plain or call.call.has_offsets or call.call.factors or call.call.max_scores:
            return None
        if call.compiled.sizes.strided != ("q", "k", "v", "o"):  # at() writes theirs in this order
            return None
        for _, source in call.traced.at(call.extents):
            if not isinstance(source, Computed) and (source.fixed or source.order != tuple(range(len(source.order)))):
                return None
        if call.traced.has_limits() or any(len(call.compiled.forward.of_all.looks[name].shape) != (3 if is_ragged else 4) for name in "qkv"):
            return None
        return (_RaggedResizing if is_ragged else Resizing)(call, places, sized)

    def checks(self, tensors, kept):
        """The checks of integers in host memory (repeated_calls.Entry) of calls that look like these tensors; None where their numbers do not fit. kept: those of the
        call's."""
        return kept

    def _know_shapes(self, shape_q, shape_k, shape_v):
        (*_, self._heads, _, self._dim), (_, self._heads_kv, self._block, _), (*_, self._dim_v) = shape_q, shape_k, shape_v

    def at(self, tensors, looks):
        """The AtNewSizes of tensors of the ranks and dtypes of the call's; None where the long way is to be gone. looks: (shape, strides) of each tensor."""
        for place, look in self._sized:
            if looks[place] != look:
                return None
        look_q, look_k, look_v = looks[:3]
        counts, placed = self._counts(look_q[0], look_k[0], look_v[0], looks)
        if counts is None or placed is None:
            return None
        # Each is read once: another thread may put the one of its own call there.
        of_query, of_operands = self._of_query, self._of_operands
        if of_query is None or of_query.look != look_q:
            of_query = self._of_query = self._found_of_query(tensors[0], look_q)
        operands = self._of_places(looks) if self._of_places is not None else ()
        followed = self._of_followed(counts) if self._of_followed is not None else ()
        if of_operands is None or of_operands.looks != operands or of_operands.counts != followed:
            of_operands = self._of_operands = self._found_of_operands(tensors, operands, counts, followed)
        if of_query is None or of_operands is None:
            return None
        if not self._is_taken(tensors[1], look_k) or (look_v != look_k and not self._is_taken(tensors[2], look_v)):
            return None
        batch, heads, queries, keys = counts
        # Sums of tuples take a third of the time of lists that are made of them.
        lies = self._lies
        numbers = lies(look_q[1]) + lies(look_k[1]) + lies(look_v[1]) + lies(of_query.strides) + of_operands.numbers
        sizes = (batch, heads, self._heads_kv, queries, keys) + placed
        made = AtNewSizes.of(self._of_all, self._sizes, self._layout, sizes, numbers, looks[:3] + of_query.results + operands)
        made.rows, made.is_like_query = of_query.rows, of_query.is_like_query
        return made

    def _found_of_query(self, query, look):
        """The _OfQuery of a look; None where the query is not taken as it lies."""
        shape, strides = look
        if not self._is_taken(query, look):
            return None
        found = _OfQuery()
        found.look, found.rows = look, shape[:-1]
        found.strides = strides if query.is_contiguous() and self._may_be_like_query else tuple(output_strides(query, self._dim_v))
        found.is_like_query = self._may_be_like_query and found.strides == strides
        results = [(found.rows + (self._dim_v,), found.strides)]
        if self._has_lse:
            results.append(dense(found.rows, None, None)[:2])
        found.results = tuple(results)
        return found

    def _found_of_operands(self, tensors, looks, counts, followed):
        """The _OfOperands of these looks and counts; None where the operands are not read as they are, or where the trace would be another."""
        known = self._call.extents
        extents = Extents(*[(0, count) for count in counts], are_limits=known.are_limits, is_part=known.is_part)
        if not answer_alike(self._guards, extents) or not self._hold(tensors, looks, counts):
            return None
        found = _OfOperands()
        found.looks, found.counts = looks, followed
        found.numbers = tuple(itertools.chain.from_iterable(each for number in self._described for each in looks[number]))
        return found

    @staticmethod
    def _lies(strides):
        """Strides of batch, head, sequence and dim, of a tensor's."""
        return strides

    @staticmethod
    def _is_taken(tensor, look):
        """Whether query, key or value is taken as it lies."""
        if tensor.is_contiguous():
            return True
        (batch, heads, length, dim), (of_batch, of_head, of_token, of_element) = look
        # A part of a longer cache, whose heads or whose tokens are the outer ones: what taken() would find, in a tenth of its time.
        is_part = of_element == 1 and (
            (of_batch >= of_head * heads and of_head >= of_token * length and of_token >= dim)
            or (of_batch >= of_token * length and of_token >= of_head * heads and of_head >= dim)
        )
        return is_part or taken(tensor, is_only_read=True) is tensor

    def _counts(self, shape_q, shape_k, shape_v, looks):
        """((batch, heads, queries, keys), (tokens of queries, of keys, blocks, blocks of a sequence)) of tensors of these looks.

        None, None where they do not fit together, or where they have other heads.
        """
        (batch, heads, queries, dim), (blocks, heads_kv, keys, dim_k) = shape_q, shape_k
        if heads != self._heads or heads_kv != self._heads_kv or dim != self._dim or dim_k != dim or shape_v != (blocks, heads_kv, keys, self._dim_v):
            return None, None
        placed = 0, 0, 0, 0
        if self._is_paged:
            rows, columns = looks[self._places[self._count]][0]
            if keys != self._block or rows != batch:
                return None, None
            keys, placed = keys * columns, (0, 0, blocks, columns)
        elif blocks != batch:
            return None, None
        if not batch * queries * keys * blocks or (self._is_causal and queries == 1 < keys):  # which is warned of
            return None, None
        return (batch, heads, queries, keys), placed

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


class _RaggedResizing(Resizing):
    """That of sequences one after the other. A call brings how many there are, and how many tokens; the most that one has is the first call's, or all tokens."""

    def checks(self, tensors, kept):
        if not kept:  # in device memory, where nobody reads them
            return kept
        checks = []
        for place, of, longest in zip(self._places[self._count :], (0, 1), self._call.call.longest):
            tokens = tensors[of].shape[0]
            # Calls that leave tokens to no sequence are made of the others (covered_tokens).
            fits = longest, 0, tokens
            if longest is None or known_lengths(tensors[place], tokens, longest) != fits:
                return None
            checks.append((place, has_known_lengths(fits, tokens, longest)))
        return tuple(checks)

    def _know_shapes(self, shape_q, shape_k, shape_v):
        (_, self._heads, self._dim), (_, self._heads_kv, _), (*_, self._dim_v) = shape_q, shape_k, shape_v
        self._block = None

    @staticmethod
    def _lies(strides):
        of_token, of_head, of_dim = strides
        return 0, of_head, of_token, of_dim

    @staticmethod
    def _is_taken(tensor, look):
        return tensor.is_contiguous() or taken(tensor, is_only_read=True) is tensor

    def _counts(self, shape_q, shape_k, shape_v, looks):
        (tokens_q, heads, dim), (tokens_kv, heads_kv, dim_k) = shape_q, shape_k
        if heads != self._heads or heads_kv != self._heads_kv or dim != self._dim or dim_k != dim or shape_v != (tokens_kv, heads_kv, self._dim_v):
            return None, None
        batch = looks[self._places[self._count]][0][0] - 1
        if batch < 1 or not tokens_q * tokens_kv:
            return None, None
        queries, keys = map(self._call.call.longest_of, (0, 1), (tokens_q, tokens_kv), (batch, batch))
        return (batch, heads, queries, keys), (tokens_q, tokens_kv, 0, 0)

    def _hold(self, tensors, operands, counts):
        # Both offsets have a number more than there are sequences.
        offsets = operands[self._count : self._count + 2]
        return all(shape == (counts[0] + 1,) for shape, _ in offsets) and super()._hold(tensors, operands, counts)
