"""Programs of attention between two shards of a sequence whose distance is known.

An index of a shard has the position number * step + index. So a comparison of a query's position with a key's depends only on the distance
of their shards: q + s * step >= k + (s - d) * step is q >= k - d * step. With a known d that is a band, or one constant for all of the
shard's scores. The compiler can't find that out: to it s and d are numbers of any size.
"""

import math
import numbers
from typing import NamedTuple

from scoremod.errors import InvalidArgumentError
from scoremod.program import Builder

# In this order shard r of n has chunks r and 2 * n - 1 - r of the sequence's 2 * n. With a causal mask every shard then has as much to do.
DUAL_CHUNK_SWAP = "dual_chunk_swap"
CHUNKS = 2  # that a shard has in this order

_INT32 = (-(2**31), 2**31 - 1)
_INDICES = ("q_idx", "kv_idx")
# x op 0 is sign * x + shift >= 0.
_AT_LEAST_ZERO = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}


def check_order(tokens):
    """Raises InvalidArgumentError unless a text given for stripe()'s tokens names the order."""
    if tokens != DUAL_CHUNK_SWAP:
        raise InvalidArgumentError(f'tokens: expected a number of tokens or "{DUAL_CHUNK_SWAP}", found {tokens!r}')


def chunks_of(length, striped):
    """How many blocks of the sequence a shard of this length has."""
    if not isinstance(striped, str) or striped != DUAL_CHUNK_SWAP:
        return 1
    if length % CHUNKS:
        raise InvalidArgumentError(f"striped: expected an even length of each shard, which has two chunks, found {length}")
    return CHUNKS


def check_stripes(length, striped):
    """Raises InvalidArgumentError unless a shard of this length has whole stripes of so many tokens, or is one block."""
    if not isinstance(striped, numbers.Integral) or striped < 0:
        raise InvalidArgumentError(f'striped: expected True, False, a number of tokens or "{DUAL_CHUNK_SWAP}", found {striped!r}')
    if striped and length % striped:
        raise InvalidArgumentError(f"striped: expected a divisor of each shard's length, {length}, found {striped!r}")


def _fits(ends):
    return _INT32[0] <= ends[0] and ends[1] <= _INT32[1]


def _wrapped(number):
    """As int32 holds it."""
    return (number + 2**31) % 2**32 - 2**31


class Shards(NamedTuple):
    """The two operands that say which shards these are, and the shards' extents."""

    shard: int | None  # the operand that has the number of the queries' shard; None if the program doesn't read it
    distance: int | None  # the operand that has the queries' number less the keys'; None likewise
    count: int  # of shards
    lengths: tuple  # how many queries and how many keys a shard has


def at_distance(program, shards, known):
    """(program, order): the program where the distance is `known`, and which operand each of its operands was. Comparisons alone are rewritten:
    elsewhere the distance stays an operand, so that programs for several distances are equal where their masks are."""
    rewriter = _Rewriter(program, shards, known)
    for node in program.nodes:
        rewriter.visit(node)
    keep = None if program.keep is None else rewriter.numbers[program.keep]
    if keep is not None and rewriter.builder.constant_value(keep) is True:
        keep = None
    return rewriter.builder.finish(rewriter.numbers[program.value], keep)


def keeps_nothing(program):
    """Whether no key is kept, as the program's text says."""

    def is_constant(number, literal):
        node = program.nodes[number]
        return node.op == "constant" and node.payload == literal

    return is_constant(program.value, "-inf") or (program.keep is not None and is_constant(program.keep, "false"))


class _Sum(NamedTuple):
    """constant + the sum of coefficient * node: exact, where int32 may wrap around."""

    terms: dict  # node -> coefficient, none of them 0
    constant: int

    def plus(self, other, factor=1):
        terms = dict(self.terms)
        for node, coefficient in other.terms.items():
            terms[node] = terms.get(node, 0) + factor * coefficient
        return _Sum({node: c for node, c in terms.items() if c}, self.constant + factor * other.constant)


class _Rewriter:
    def __init__(self, program, shards, known):
        self.builder = Builder()
        for decl in program.operands:
            self.builder.operand(decl)
        self._shards = shards
        self._known = known
        self._shard = self._distance = None  # their nodes
        self.numbers = []  # of the program's nodes here
        self._sums = {}
        self._ranges = {}

    def visit(self, node):
        args = tuple(self.numbers[arg] for arg in node.args)
        number = self._rewritten(node, args)
        self.numbers.append(self.builder.node(node.op, node.type, *args, payload=node.payload) if number is None else number)
        if node.op == "operand" and node.payload == self._shards.shard:
            self._shard, self._ranges[self.numbers[-1]] = self.numbers[-1], (0, self._shards.count - 1)
        if node.op == "operand" and node.payload == self._shards.distance:
            self._distance, self._ranges[self.numbers[-1]] = self.numbers[-1], (self._known, self._known)

    def _rewritten(self, node, args):
        """The node that takes this one's place; None where it stays as it is."""
        if node.op in ("and", "or", "not", "select"):
            return self._folded(node.op, args)
        if not args or self.builder.type(args[0]) != "i32":
            return None
        if node.op in ("lt", "le", "gt", "ge", "eq", "ne"):
            return self._comparison(node.op, *args)
        if node.op in ("add", "sub", "neg", "mul"):
            return self._arithmetic(node, args)
        return None

    def _folded(self, op, args):
        """The node that a constant among the arguments decides; None where none does."""
        values = [self.builder.constant_value(arg) if self.builder.type(arg) == "bool" else None for arg in args]
        if op == "select":
            return None if values[0] is None else args[1] if values[0] else args[2]
        if op == "not":
            return None if values[0] is None else self.builder.constant(not values[0], "bool")
        decides = op == "or"  # the value that decides the whole; the other one changes nothing
        for value, arg, other in zip(values, args, reversed(args)):
            if value is not None:
                return arg if value is decides else other
        return None

    def _arithmetic(self, node, args):
        """The sum without the shard's number where that cancels; equal modulo 2^32 in either form."""
        number = self.builder.node(node.op, node.type, *args)
        total = self._sum_of(number)
        if self._shard in total.terms or not any(self._shard in self._sum_of(arg).terms for arg in args):
            return number
        return self._written(total)

    def _sum_of(self, number):
        """An i32 node as a sum of nodes that are none."""
        if number in self._sums:
            return self._sums[number]
        node = self.builder.nodes[number]
        parts = [self._sum_of(arg) for arg in node.args] if node.op in ("add", "sub", "neg", "mul") else []
        made = _Sum({number: 1}, 0)
        if node.op == "constant":
            made = _Sum({}, int(node.payload))
        elif node.op in ("add", "sub"):
            made = parts[0].plus(parts[1], 1 if node.op == "add" else -1)
        elif node.op == "neg":
            made = _Sum({}, 0).plus(parts[0], -1)
        elif node.op == "mul" and not (parts[0].terms and parts[1].terms):
            scaled, factor = (parts[0], parts[1]) if parts[0].terms else (parts[1], parts[0])
            made = _Sum({}, 0).plus(scaled, factor.constant)
        self._sums[number] = made
        return made

    def _range(self, total):
        """The smallest and the largest value of a sum."""
        low = high = total.constant
        for node, coefficient in total.terms.items():
            ends = [coefficient * end for end in self._range_of(node)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _range_of(self, number):
        if number not in self._ranges:
            node = self.builder.nodes[number]
            made = _INT32
            if node.op in _INDICES:
                made = (0, self._shards.lengths[_INDICES.index(node.op)] - 1)
            elif node.op in ("floor_div", "mod"):
                divisor = self.builder.constant_value(node.args[1])
                ends = self._range(self._sum_of(node.args[0]))
                if divisor is not None and divisor > 0 and _fits(ends):
                    made = (0, divisor - 1) if node.op == "mod" else tuple(end // divisor for end in ends)
            self._ranges[number] = made
        return self._ranges[number]

    def _comparison(self, op, left, right):
        left, right = self._sum_of(left), self._sum_of(right)
        difference = left.plus(right, -1)
        of_shards = {self._shard, self._distance} & (left.terms.keys() | right.terms.keys())
        if not of_shards or self._shard in difference.terms or not all(_fits(self._range(side)) for side in (left, right)):
            return None
        apart = difference.terms.get(self._distance, 0) * self._known
        terms = {node: c for node, c in difference.terms.items() if node != self._distance}
        return self._against_zero(op, _Sum(terms, difference.constant + apart))

    def _against_zero(self, op, difference):
        """The node of difference `op` 0, without what all of it is a multiple of."""
        if op in ("eq", "ne"):
            low, high = self._range(difference)
            step = math.gcd(*difference.terms.values()) or 1
            if low > 0 or high < 0 or difference.constant % step or low == high:
                return self.builder.constant((low == high == 0) is (op == "eq"), "bool")
            return self._sides(op, _Sum({node: c // step for node, c in difference.terms.items()}, difference.constant // step))
        sign, shift = _AT_LEAST_ZERO[op]
        difference = _Sum({}, shift).plus(difference, sign)
        low, high = self._range(difference)
        if low >= 0 or high < 0:
            return self.builder.constant(low >= 0, "bool")
        step = math.gcd(*difference.terms.values())
        return self._sides("ge", _Sum({node: c // step for node, c in difference.terms.items()}, difference.constant // step))

    def _sides(self, op, difference):
        """left `op` right, each a sum of positive multiples."""
        left = _Sum({node: c for node, c in difference.terms.items() if c > 0}, max(difference.constant, 0))
        right = _Sum({node: -c for node, c in difference.terms.items() if c < 0}, max(-difference.constant, 0))
        if not (_fits(self._range(left)) and _fits(self._range(right))):
            return None
        return self.builder.op(op, self._written(left), self._written(right))

    def _written(self, total):
        number = None
        for node, coefficient in sorted(total.terms.items()):
            term = node if coefficient == 1 else self.builder.op("mul", node, self.builder.constant(_wrapped(coefficient), "i32"))
            number = term if number is None else self.builder.op("add", number, term)
        if number is None or total.constant:
            constant = self.builder.constant(_wrapped(total.constant), "i32")
            number = constant if number is None else self.builder.op("add", number, constant)
        return number
