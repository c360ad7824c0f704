"""An input as decisions."""


class Choices:
    """An input's bytes, each of which decides one thing. A byte of 0 takes what is right, and so does each one after the end: short inputs are right
    calls with few mistakes, which get past the first check."""

    def __init__(self, data):
        self._bytes = iter(data)

    def byte(self):
        return next(self._bytes, 0)

    def right_or(self, right, *wrong):
        """The right value, unless the byte is the number of a wrong one."""
        number = self.byte()
        return wrong[number - 1] if 0 < number <= len(wrong) else right

    def among(self, *values):
        """One of values that are all right."""
        return values[self.byte() % len(values)]

    def flags(self):
        """Eight decisions of one byte."""
        byte = self.byte()
        return [bool(byte >> bit & 1) for bit in range(8)]
