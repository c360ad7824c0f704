"""Python numbers that change from call to call, while functions are traced that read them: they may become operands of arithmetic, and nothing else.

An OpenNumber takes the place of a float that a function reads. Arithmetic with Python's numbers gives another one, and arithmetic with a score or
an index takes it for a tensor of one number. Any other use makes the trace one for that number alone.
"""

import operator

import torch
from torch.utils._python_dispatch import _disable_current_modes

_ARITHMETIC = {
    getattr(kind, name)
    for kind, names in (
        (torch, ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "rsub")),
        (torch.Tensor, ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "__add__", "__radd__", "__sub__", "__rsub__")),
        (torch.Tensor, ("__mul__", "__rmul__", "__div__", "__rdiv__", "__truediv__", "__rtruediv__")),
    )
    for name in names
}
# Python's numbers and tensors of one float32 give results of one dtype beside these.
_PARTNERS = (torch.float32, torch.int32, torch.int64)
_NUMBERS = (int, float)


class IsRead(Exception):
    """A function asks an OpenNumber for what only the number itself could answer."""


class OpenNumber:
    """A float of which a trace may not know the value.

    value: its value in this call. evaluate: a function of (read -> value), which gives its value in any call. reads: the reads that it is computed
    of, numbered as in rebuilt_functions. is_read: a set that collects the reads whose values were asked for.
    """

    def __init__(self, value, evaluate, reads, is_read):
        self.value, self.evaluate, self.reads, self.is_read = value, evaluate, reads, is_read

    def refuse(self, *_, **__):
        self.is_read |= self.reads
        raise IsRead

    def tensor(self, device):
        """A tensor of the number's value in this call."""
        return tensor_of_number(self.value, device)

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        for each in (*arguments, *(options or {}).values()):
            if type(each) is OpenNumber:
                each.refuse()
        raise IsRead

    def __neg__(self):
        return OpenNumber(-self.value, lambda values: -self.evaluate(values), self.reads, self.is_read)

    def __pos__(self):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):  # what Python and PyTorch look for, and no float has
            raise AttributeError(name)
        self.refuse()


def _computed(operation, is_reflected):
    def compute(self, other):
        if isinstance(other, torch.Tensor):
            return NotImplemented
        if type(other) is not OpenNumber and type(other) not in _NUMBERS:
            self.refuse()
        x, y = (other, self) if is_reflected else (self, other)
        value = operation(_value(x), _value(y))
        is_read = self.is_read
        return OpenNumber(value, lambda values: operation(_at(x, values), _at(y, values)), _reads(x) | _reads(y), is_read)

    return compute


def _value(x):
    return x.value if type(x) is OpenNumber else x


def _at(x, values):
    return x.evaluate(values) if type(x) is OpenNumber else x


def _reads(x):
    return x.reads if type(x) is OpenNumber else frozenset()


for _name, _operation in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul), ("truediv", operator.truediv)):
    setattr(OpenNumber, f"__{_name}__", _computed(_operation, False))
    setattr(OpenNumber, f"__r{_name}__", _computed(_operation, True))
for _name in (
    *(
        "bool",
        "float",
        "int",
        "index",
        "complex",
        "str",
        "repr",
        "format",
        "hash",
        "round",
        "trunc",
        "floor",
        "ceil",
        "abs",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    ),
    *("floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod", "pow", "rpow", "reduce_ex", "dir", "sizeof"),
):
    setattr(OpenNumber, f"__{_name}__", OpenNumber.refuse)


class NumbersOfTrace:
    """The OpenNumbers that a trace has made tensors of."""

    def __init__(self, device):
        self._device, self._made = device, {}

    def made(self):
        """(OpenNumber, tensor) of each, in the order of their first use."""
        return list(self._made.values())

    def as_tensors(self, function, arguments, options, is_traced):
        """Arguments of a function that a mode sees, with tensors for OpenNumbers. is_traced: of a tensor, whether it stands for a score or an index."""
        given = [each for each in (*arguments, *options.values()) if type(each) is OpenNumber]
        if not given:
            return arguments
        if len(given) != 1 or len(arguments) != 2 or options or function not in _ARITHMETIC or not _is_partner(arguments, is_traced):
            for each in given:
                each.is_read |= each.reads
            raise IsRead
        return tuple(self._tensor(each) if type(each) is OpenNumber else each for each in arguments)

    def _tensor(self, number):
        if id(number) not in self._made:
            with _disable_current_modes():
                self._made[id(number)] = number, number.tensor(self._device)
        return self._made[id(number)][1]


def _is_partner(arguments, is_traced):
    other = arguments[1] if type(arguments[0]) is OpenNumber else arguments[0]
    return isinstance(other, torch.Tensor) and other.dtype in _PARTNERS and torch.get_default_dtype() == torch.float32 and is_traced(other)


def tensor_of_number(value, device):
    """A tensor of one number, which no transfer to a device waits for."""
    return torch.full((), value, dtype=torch.float32, device=device)
