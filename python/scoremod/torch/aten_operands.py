"""The arguments of an operation, of which a rule of aten_rules makes nodes."""

import numbers

import torch

from scoremod.torch.captures import OPERAND_TYPES
from scoremod.torch.values import Value


class Operands:
    """Nodes of an operation's arguments. result: the dtype of what it makes."""

    def __init__(self, tracer, result):
        self._tracer = tracer
        self.builder = tracer.builder
        self.type = OPERAND_TYPES.get(result)

    def node(self, argument, type=None):
        """The node of a Value or a number, converted to a type of programs. Raises NoNode where there is none."""
        if isinstance(argument, Value):
            number = self._tracer.node_of(argument)
            if number is None:
                raise NoNode
            return number if type is None else self.builder.op(type, number) if self.builder.type(number) != type else number
        if isinstance(argument, torch.SymFloat):
            return self._tracer.captured_number(argument)
        if isinstance(argument, torch.SymInt):
            argument = int(argument)  # torch.compile then makes a graph for this number
        if not isinstance(argument, (bool, numbers.Real)):
            raise NoNode
        return self._tracer.constant(argument, type or _type_of_number(argument))

    def alike(self, *arguments):
        """Nodes in the type that PyTorch computes in."""
        type = self.common_type(*arguments)
        return [self.node(argument, type) for argument in arguments]

    def common_type(self, *arguments):
        """ "f32" if an argument is a float, else "i32", "bool" if all are."""
        types = {OPERAND_TYPES.get(each.dtype) if isinstance(each, Value) else _type_of_number(each) for each in arguments}
        return next((type for type in ("f32", "i32", "bool") if type in types), None)


class NoNode(Exception):
    """An operation's arguments have no nodes."""


def _type_of_number(number):
    return "bool" if isinstance(number, bool) else "i32" if isinstance(number, (numbers.Integral, torch.SymInt)) else "f32"
