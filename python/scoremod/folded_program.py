"""A program for mapped calls of attention, of which one call computes all: the mapped axis becomes part of the batch dimension.

A batch index b of the folded call is n * batch + b of the mapped ones. So the program's b becomes b % batch, a mapped operand varies
along the batch, and a mapped table gets one more index, b // batch.
"""

from scoremod.errors import UnsupportedError
from scoremod.program import MAX_TABLE_RANK, Builder


def folded(program, batch, mapped, remedy):
    """The program of the folded call, with the same operands in the same order.

    batch: the size of each mapped call's batch.
    mapped: for each operand whether it differs between the mapped calls.
    remedy: what to do instead, for the message of the UnsupportedError that a mapped table of MAX_TABLE_RANK indices is refused with.
    """
    builder = Builder()
    for decl, is_mapped in zip(program.operands, mapped):
        if is_mapped and decl.table_rank:
            decl = decl._replace(table_rank=decl.table_rank + 1)
            if decl.table_rank > MAX_TABLE_RANK:
                raise UnsupportedError(
                    f"vmap: a captured array that is mapped and read at {MAX_TABLE_RANK} computed indices can't get one more index; {remedy}"
                )
        elif is_mapped and "b" not in decl.axes:
            decl = decl._replace(axes=("b", *decl.axes))
        builder.operand(decl)
    b, size = builder.node("b", "i32"), builder.constant(batch, "i32")
    numbers = []
    for node in program.nodes:
        args = tuple(numbers[arg] for arg in node.args)
        if node.op == "b":
            numbers.append(builder.op("mod", b, size))
            continue
        if node.op == "gather" and mapped[node.payload]:
            args = (builder.op("floor_div", b, size), *args)
        numbers.append(builder.node(node.op, node.type, *args, payload=node.payload))
    keep = None if program.keep is None else numbers[program.keep]
    result, order = builder.finish(numbers[program.value], keep)
    assert order == list(range(len(program.operands)))
    return result
