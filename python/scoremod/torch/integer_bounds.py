"""How large the integers of a traced function get, so that programs, which compute in int32, give what PyTorch gives in int64.

A bound limits a value's magnitude: a number, plus multiples of the largest magnitude in each of some operands, which are known at the call.
"""

from typing import Any, NamedTuple

import torch

from scoremod.torch.checked_integers import INT32
from scoremod.torch.values import Value

# Operations whose int64 result may be one that int32 doesn't hold though its arguments are.
GROWING = {"add", "sub", "rsub", "neg", "abs", "floor_divide", "div"}
_LARGEST_ARGUMENT = {"maximum", "minimum", "max", "min", "where", "masked_fill", "clamp", "clamp_min", "clamp_max", "bitwise_and"}
_FIRST_ARGUMENT = {"neg", "abs", "sign", "sgn", "floor_divide", "div", "fmod", "bitwise_right_shift", "__rshift__"}
# Floats become integers up to which float32 has all, and indices are at most so large where torch.compile leaves sizes open.
_OF_FLOATS, _OF_OPEN_SIZES = 2**24, 2**29


class Bound(NamedTuple):
    """number + the sum over (operand, factor) in `reads` of factor times the operand's largest magnitude. The number may be an asked_sizes.Size."""

    number: Any
    reads: tuple = ()

    def plus(self, other):
        factors = dict(self.reads)
        for operand, factor in other.reads:
            factors[operand] = factors.get(operand, 0) + factor
        return Bound(self.number + other.number, tuple(factors.items()))

    def times(self, factor):
        return Bound(self.number * factor, tuple((operand, each * factor) for operand, each in self.reads))

    def limit(self) -> Any:
        """How large the integers in its operands may be, for int32 to hold the value; None where there is no such limit."""
        factors = sum(factor for _, factor in self.reads)
        return (INT32.max - self.number) // factors if factors else None


class IntegerBounds:
    """The Bounds of a trace's Values."""

    def __init__(self, builder, extents):
        """extents: asked_sizes.AskedExtents."""
        self._builder, self._extents, self._bounds = builder, extents, {}

    def of(self, value):
        """The Bound of a Value of integers, or of a number."""
        if not isinstance(value, Value):
            return Bound(abs(int(value)) if isinstance(value, (bool, int)) else _OF_FLOATS)
        found = self._bounds.get(value.serial)
        if found is None:
            found = self._bounds[value.serial] = self._of_dtype(value)
        return found

    def _of_dtype(self, value):
        if value.dtype == torch.bool:
            return Bound(1)
        if value.literal is not None:
            return Bound(abs(int(value.literal)))
        if value.dtype is None or value.dtype.is_floating_point:
            return Bound(_OF_FLOATS)
        bound, largest = self._of_operation(value), 2 ** (value.dtype.itemsize * 8 - 1)
        return Bound(largest) if bound.number > largest or (bound.reads and largest < INT32.max) else bound

    def _of_operation(self, value):
        if value.axis is not None:
            return Bound(_OF_OPEN_SIZES if self._extents.is_open else self._extents.largest(value.axis))
        node = None if value.node is None else self._builder.nodes[value.node]
        if node is not None and node.op in ("operand", "gather"):
            return Bound(0, ((node.payload, 1),))
        if value.operation is None or not hasattr(value.operation[0], "_schema"):
            return Bound(INT32.max)
        function, arguments, options = value.operation
        name = function._schema.name.removeprefix("aten::")
        name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        return self._of_arguments(name, arguments, options)

    def _of_arguments(self, name, arguments, options):
        if name in ("add", "sub", "rsub"):
            x, y = (self.of(each) for each in arguments[:2])
            alpha = options.get("alpha", arguments[2] if len(arguments) > 2 else 1)
            return x.times(abs(int(alpha))).plus(y) if name == "rsub" else x.plus(y.times(abs(int(alpha))))
        if name in _FIRST_ARGUMENT:
            return self.of(arguments[0])
        if name == "remainder":
            return self.of(arguments[1])
        if name in _LARGEST_ARGUMENT:
            given = [*arguments, *options.values()]
            return self._largest(given[1:] if name == "where" else given)
        if name in ("mul", "bitwise_left_shift", "__lshift__"):
            x, y = (self.of(each) for each in arguments[:2])
            x, y = (x, y) if not y.reads else (y, x)
            return Bound(INT32.max) if y.reads else x.times(y.number if name == "mul" else 2 ** min(int(y.number), 31))
        if arguments and isinstance(arguments[0], Value) and name in _MOVING:
            return self.of(arguments[0])
        return Bound(INT32.max)

    def _largest(self, given):
        number, factors = 0, {}
        for bound in (self.of(each) for each in given if each is not None):
            number = max(number, bound.number)
            for operand, factor in bound.reads:
                factors[operand] = max(factors.get(operand, 0), factor)
        return Bound(number, tuple(factors.items()))


# Operations that move, name or convert an element.
_MOVING = {
    *("clone", "alias", "lift_fresh", "lift_fresh_copy", "unsqueeze", "squeeze", "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t"),
    *("sum", "amax", "amin", "contiguous", "_reshape_alias", "view_as", "_to_copy", "detach", "floor", "ceil", "round", "trunc"),
}
