"""A score program as Python holds it while a function is traced: hash-consed nodes, and their text (docs/reference/program_text.md)."""

import math
from typing import NamedTuple

import numpy as np

AXES = ("b", "h", "q_idx", "kv_idx")
MAX_TABLE_RANK = 4

# Ops that the text writes between their arguments; every other one is written as a function.
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floor_div": "//", "mod": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_PREFIX = {"neg": "-", "not": "!"}


class Node(NamedTuple):
    """One operation.

    op is "score", one of AXES, "constant", "operand", "gather", or an op of docs/reference/ops.md. type is "f32", "i32" or "bool". args are numbers of
    earlier nodes. payload is a constant's literal or an operand's number."""

    op: str
    type: str
    args: tuple = ()
    payload: object = None


class OperandDecl(NamedTuple):
    """A tensor that the program reads: with a dimension for each of `axes`, or a table of rank `table_rank` if that is not 0."""

    type: str
    axes: tuple = ()
    table_rank: int = 0


class Program(NamedTuple):
    """A score program: how it modifies one score. Nodes are numbered depth first from the roots, and operands in the order in which nodes
    read them. So equal structure means equal text, which identifies the program."""

    nodes: tuple
    operands: tuple
    value: int
    keep: int | None

    def text(self):
        lines = [_declaration(number, decl) for number, decl in enumerate(self.operands)]
        names = []
        for number, node in enumerate(self.nodes):
            expression = _expression(node, names)
            if node.args and node.op != "constant":
                lines.append(f"let t{number} = {expression}")
                expression = f"t{number}"
            names.append(expression)
        lines.append(f"value = {names[self.value]}")
        if self.keep is not None:
            lines.append(f"keep = {names[self.keep]}")
        return "\n".join(lines)

    def reads(self, op):
        return any(node.op == op for node in self.nodes)


def operand_name(number):
    return f"x{number}"


class Builder:
    """Makes nodes, each once. A node is known by its number."""

    def __init__(self):
        self.nodes = []
        self.operands = []
        self.index_axes = {}  # of each node that a user's function sees as an index, the axis; it is never negative
        self._numbers = {}

    def node(self, op, type, *args, payload=None):
        node = Node(op, type, args, payload)
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def constant(self, value, type):
        return self.node("constant", type, payload=_literal(value, type))

    def operand(self, decl):
        """The number of a new operand."""
        self.operands.append(decl)
        return len(self.operands) - 1

    def type(self, number):
        return self.nodes[number].type

    def constant_value(self, number):
        """The value of a constant, or None for any other node."""
        node = self.nodes[number]
        if node.op != "constant":
            return None
        return {"f32": float, "i32": int, "bool": "true".__eq__}[node.type](node.payload)

    def is_never_negative(self, number):
        """Whether that is known of an integer: of what a user's function sees as an index, of constants, and of the larger of one of these and anything."""
        if number in self.index_axes:
            return True
        value = self.constant_value(number)
        if value is not None:
            return value >= 0
        return self.nodes[number].op == "max" and any(map(self.is_never_negative, self.nodes[number].args))

    def op(self, op, *args):
        """The node of an op of docs/reference/ops.md, whose result type follows from its arguments."""
        types = [self.type(arg) for arg in args]
        if op in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "bool"):
            return self.node(op, "bool", *args)
        if op in ("f32", "i32"):
            return args[0] if types[0] == op else self.node(op, op, *args)
        return self.node(op, types[1] if op == "select" else types[0], *args)

    def finish(self, value, keep=None):
        """(program, order): order[i] is the number that operand i of the program had here. What no root reaches is left out."""
        numbers, nodes, order = {}, [], []

        def visit(root):
            pending = [root]
            while pending:
                old = pending[-1]
                missing = [arg for arg in self.nodes[old].args if arg not in numbers]
                if missing:
                    pending.extend(reversed(missing))
                    continue
                pending.pop()
                if old in numbers:
                    continue
                node = self.nodes[old]
                if node.op in ("operand", "gather"):
                    if node.payload not in order:
                        order.append(node.payload)
                    node = node._replace(payload=order.index(node.payload))
                numbers[old] = len(nodes)
                nodes.append(node._replace(args=tuple(numbers[arg] for arg in node.args)))
            return numbers[root]

        value = visit(value)
        keep = None if keep is None else visit(keep)
        return Program(tuple(nodes), tuple(self.operands[i] for i in order), value, keep), order


def _declaration(number, decl):
    if decl.table_rank:
        return f"table {operand_name(number)}: {decl.type} rank {decl.table_rank}"
    return f"operand {operand_name(number)}: {decl.type} [{', '.join(decl.axes)}]"


def _expression(node, names):
    args = [names[arg] for arg in node.args]
    if node.op == "constant":
        return node.payload
    if node.op == "operand":
        return operand_name(node.payload)
    if node.op == "gather":
        return f"{operand_name(node.payload)}[{', '.join(args)}]"
    if node.op in _INFIX:
        return f"{args[0]} {_INFIX[node.op]} {args[1]}"
    if node.op in _PREFIX:
        return f"{_PREFIX[node.op]}{args[0]}"
    return f"{node.op}({', '.join(args)})" if args else node.op


def _literal(value, type):
    """The text of a constant. It also tells 0.0 from -0.0, and makes all NaNs one."""
    if type == "bool":
        return "true" if value else "false"
    if type == "i32":
        return str(int(value))
    value = float(np.float32(value))
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "nan" if math.isnan(value) else repr(value)
