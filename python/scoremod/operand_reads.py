"""How a program reads captured arrays: which read is a broadcast operand, and which a table's.

An array that is indexed by the indices themselves (slopes[h], ids[b, kv_idx]) becomes a tensor with a dimension for each of them.
Indexed by anything else (bias[h, q_idx - kv_idx + n]) it becomes a table, read at computed indices that are clamped to its extents.
"""

from scoremod.program import AXES, MAX_TABLE_RANK, OperandDecl


class OperandReads:
    """The operands of a program that is being built, each once.

    sources: for each operand the object that makes its array, as the caller gave it. Sources with equal identity(), or without one equal
    themselves, are one operand."""

    def __init__(self, builder, sizes):
        """sizes: axis -> the size of the score along it."""
        self._builder = builder
        self._sizes = sizes
        self._numbers = {}
        self.sources = []

    def computed(self, type, axes, positions, source):
        """The node of an array with a dimension for each of `axes` (a scalar without any) at the element.

        positions: for each axis the node of what the functions see as the index. Where that isn't the index itself, the array is whole, and
            is read at what they see.
        """
        if all(self._builder.nodes[node].op in AXES for node in positions):
            return self._builder.node("operand", type, payload=self._number(OperandDecl(type, tuple(axes)), source))
        number = self._number(OperandDecl(type, (), len(axes)), source)
        return self._builder.node("gather", type, *positions, payload=number)

    def captured(self, type, indices, extents, source):
        """The node of an array of these extents at these index nodes; None if a table has no room for so many.

        source(order, sizes): what makes the operand's array: the captured one, its dimensions cut to `sizes` (if not None), then reordered.
        """
        axes = self._axes(indices, extents)
        if axes is not None:
            order = tuple(sorted(range(len(axes)), key=lambda i: AXES.index(axes[i])))
            decl = OperandDecl(type, tuple(axes[i] for i in order))
            sizes = tuple(self._sizes[axis] for axis in axes)
            return self._builder.node("operand", type, payload=self._number(decl, source(order, sizes)))
        if len(indices) > MAX_TABLE_RANK:
            return None
        number = self._number(OperandDecl(type, (), len(indices)), source(tuple(range(len(indices))), None))
        return self._builder.node("gather", type, *indices, payload=number)

    def _axes(self, indices, extents):
        """The axes that these index nodes are, if an array of these extents then covers every one of their values."""
        axes = [self._builder.nodes[node].op for node in indices]
        distinct = all(axis in AXES for axis in axes) and len(set(axes)) == len(axes)
        return axes if distinct and all(n >= self._sizes[axis] for axis, n in zip(axes, extents)) else None

    def _number(self, decl, source):
        key = (decl, source.identity() if hasattr(source, "identity") else source)
        if key not in self._numbers:
            self._numbers[key] = self._builder.operand(decl)
            self.sources.append(source)
        return self._numbers[key]
