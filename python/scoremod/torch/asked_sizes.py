"""The questions that a trace asks of a call's sizes. The trace serves every other call whose sizes give the same answers.

A tracer sees sizes as symbols: it may compute with them, and each comparison is kept with its answer. Any other way to read a size keeps the size itself.
"""

from scoremod.program import AXES

_OPERATIONS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
}
_COMPARISONS = {
    "<": lambda x, y: x < y,
    "==": lambda x, y: x == y,
}


class AskedExtents:
    """Extents as a tracer may ask for them. are_limits and is_part are plain: the key of a trace has them.

    is_open: whether a compiler leaves sizes open, whose comparisons it keeps itself.
    """

    def __init__(self, extents):
        self.are_limits, self.is_part = extents.are_limits, extents.is_part
        self.is_open = not all(isinstance(size, int) for size in extents.sizes().values())
        self._extents, self._answers = extents, {}

    def count(self, axis):
        """How many indices a call has along an axis."""
        return self._size("count", axis)

    def end(self, axis):
        """The first index beyond those that a call has."""
        return self._size("end", axis)

    def largest(self, axis):
        """The largest magnitude of an index."""
        return self._size("largest", axis)

    def counts(self):
        return {axis: self.count(axis) for axis in AXES}

    def guards(self):
        """(comparison, answer) of all that was asked."""
        return tuple(self._answers.items())

    def _size(self, what, axis):
        expression = what, axis
        return Size(self, expression, evaluated(expression, self._extents))

    def note(self, comparison, answer):
        if not self.is_open:
            self._answers[comparison] = answer


class Size:
    """An integer that follows from a call's sizes."""

    __slots__ = ("_asked", "_expression", "_value")

    def __init__(self, asked, expression, value):
        self._asked, self._expression, self._value = asked, expression, value

    def _made(self, operation, x, y):
        (of_x, x), (of_y, y) = _parts(x), _parts(y)
        return Size(self._asked, (operation, of_x, of_y), _OPERATIONS[operation](x, y))

    def __add__(self, other):
        return self._made("+", self, other)

    def __radd__(self, other):
        return self._made("+", other, self)

    def __sub__(self, other):
        return self._made("-", self, other)

    def __rsub__(self, other):
        return self._made("-", other, self)

    def __mul__(self, other):
        return self._made("*", self, other)

    def __rmul__(self, other):
        return self._made("*", other, self)

    def __floordiv__(self, other):
        return self._made("//", self, other)

    def _compared(self, comparison, x, y):
        (of_x, x), (of_y, y) = _parts(x), _parts(y)
        answer = bool(_COMPARISONS[comparison](x, y))
        self._asked.note((comparison, of_x, of_y), answer)
        return answer

    def __lt__(self, other):
        return self._compared("<", self, other)

    def __gt__(self, other):
        return self._compared("<", other, self)

    def __le__(self, other):
        return not self._compared("<", other, self)

    def __ge__(self, other):
        return not self._compared("<", self, other)

    def __eq__(self, other):
        return self._compared("==", self, other)

    def __index__(self):
        """The number itself, which the trace then is for alone."""
        self._asked.note(("==", self._expression, self._value), True)
        return self._value

    __int__ = __index__

    def __bool__(self):
        return not self._compared("==", self, 0)

    def __str__(self):
        return str(self.__index__())

    __repr__ = __str__


def expression_of(x):
    """The expression of a size or a number, which evaluated() computes at any sizes."""
    return _parts(x)[0]


def _parts(x):
    """(expression, value) of a Size or of a number."""
    return (x._expression, x._value) if isinstance(x, Size) else (x, x)


def evaluated(expression, extents):
    """The number, or the answer, of an expression at some Extents."""
    if not isinstance(expression, tuple):
        return expression
    if len(expression) == 2:
        what, axis = expression
        first, count = getattr(extents, axis)
        if what == "largest":
            return max(abs(first), abs(first + count - 1))
        return count if what == "count" else first + count
    operation, x, y = expression
    return (_OPERATIONS.get(operation) or _COMPARISONS[operation])(evaluated(x, extents), evaluated(y, extents))


def axes_of(expression):
    """The axes whose sizes an expression reads."""
    if not isinstance(expression, tuple):
        return frozenset()
    if len(expression) == 2:
        return frozenset(expression[1:])
    _, x, y = expression
    return axes_of(x) | axes_of(y)


def answer_alike(guards, extents):
    """Whether the comparisons of a trace give the same answers at these Extents."""
    for comparison, answer in guards:
        if evaluated(comparison, extents) != answer:
            return False
    return True
