"""A program at a known distance of two shards says of every score what the program says that takes the distance as an operand."""

import os
import secrets

import numpy as np
import pytest

from scoremod.program import Builder, OperandDecl
from scoremod.shard_distance import Shards, at_distance, keeps_nothing

SEED = int(os.environ.get("SCOREMOD_TEST_SEED", secrets.randbits(32)))
COUNT, QUERIES, KEYS = 4, 6, 6


class Positions:
    """A builder with the positions of blocks, or of single tokens dealt out in turn."""

    def __init__(self, step=QUERIES, scale=1):
        self.builder = Builder()
        shard, distance = (self.builder.node("operand", "i32", payload=self.builder.operand(OperandDecl("i32"))) for _ in range(2))
        far = self.op("sub", shard, distance)
        self.q, self.k = (
            self.op("add", self.times(self.builder.node(index, "i32"), scale), self.times(number, step))
            for index, number in (("q_idx", shard), ("kv_idx", far))
        )
        self.score = self.builder.node("score", "f32")

    def op(self, *arguments):
        return self.builder.op(*arguments)

    def number(self, value):
        return self.builder.constant(value, "i32")

    def times(self, node, factor):
        return self.op("mul", node, self.number(factor))

    def program(self, keep, value=None):
        program, order = self.builder.finish(self.score if value is None else value, keep)
        operands = [order.index(i) if i in order else None for i in range(2)]
        return program, Shards(*operands, COUNT, (QUERIES, KEYS))


def evaluated(program, operands, q, k):
    """(value, keep) for arrays of indices, in int32 and float32."""
    made = []
    operations = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
        "select": np.where, "f32": np.float32, "floor_div": lambda x, y: np.where(y == 0, 0, x // np.where(y == 0, 1, y)),
        "mod": lambda x, y: np.where(y == 0, x, x % np.where(y == 0, 1, y)),
    }  # fmt: skip
    leaves = {"q_idx": q, "kv_idx": k, "score": np.float32(0.5)}
    types = {"f32": np.float32, "i32": np.int32, "bool": "true".__eq__}
    for node in program.nodes:
        if node.op in leaves:
            made.append(leaves[node.op])
        elif node.op == "operand":
            made.append(np.int32(operands[node.payload]))
        elif node.op == "constant":
            made.append(types[node.type](node.payload))
        else:
            made.append(operations[node.op](*(made[arg] for arg in node.args)))
    return made[program.value], True if program.keep is None else made[program.keep]


def random_program(generator):
    positions = Positions(*[(QUERIES, 1), (1, COUNT)][generator.integers(2)])
    big = generator.integers(4) == 0
    number = lambda: positions.number(int(generator.integers(-(2**31), 2**31) if big else generator.integers(-30, 31)))  # noqa: E731
    numbers = [positions.q, positions.k, number(), number()]
    truths = [positions.op("ge", positions.q, positions.k)]
    pick = lambda nodes: nodes[generator.integers(len(nodes))]  # noqa: E731
    for _ in range(generator.integers(3, 15)):
        kind = generator.integers(4)
        if kind == 0:
            op = pick(["add", "sub", "add", "sub", "mul", "neg", "floor_div", "mod"])
            numbers.append(positions.op(op, pick(numbers), *([] if op == "neg" else [pick(numbers) if op in ("add", "sub") else number()])))
        elif kind < 3:
            truths.append(positions.op(pick(["lt", "le", "gt", "ge", "eq", "ne"]), pick(numbers), pick(numbers)))
        else:
            op = pick(["and", "or", "not"])
            truths.append(positions.op(op, pick(truths), *([] if op == "not" else [pick(truths)])))
    value = positions.op("select", pick(truths), positions.op("f32", pick(numbers)), positions.score)
    return positions.program(truths[-1], value)


def test_random_programs():
    print("SCOREMOD_TEST_SEED", SEED)
    generator = np.random.default_rng(SEED)
    q, k = np.meshgrid(np.arange(QUERIES, dtype=np.int32), np.arange(KEYS, dtype=np.int32), indexing="ij")
    with np.errstate(over="ignore"):
        for _ in range(150):
            program, shards = random_program(generator)
            for distance in range(1 - COUNT, COUNT):
                rewritten, order = at_distance(program, shards, distance)
                for shard in range(max(0, distance), min(COUNT, COUNT + distance)):
                    given = [shard if i == shards.shard else distance for i in range(len(program.operands))]
                    value, keep = (np.broadcast_to(x, q.shape) for x in evaluated(program, given, q, k))
                    got_value, got_keep = (np.broadcast_to(x, q.shape) for x in evaluated(rewritten, [given[i] for i in order], q, k))
                    text = f"{program.text()}\nat {distance}:\n{rewritten.text()}"
                    np.testing.assert_array_equal(got_keep, keep, err_msg=text)
                    np.testing.assert_array_equal(got_value, value, err_msg=text)


def keeps_at(positions, keep):
    """The operations of the mask at each distance, of which "all" keeps all."""
    program, shards = positions.program(keep)
    at = [at_distance(program, shards, distance)[0] for distance in range(1 - COUNT, COUNT)]
    return ["all" if p.keep is None else "nothing" if keeps_nothing(p) else "; ".join(_operations(p)) for p in at]


def _operations(program):
    return [line.split(" = ", 1)[1] for line in program.text().splitlines() if line.startswith("let ")]


def test_a_causal_mask_is_nothing_itself_or_all():
    blocks = Positions()
    assert keeps_at(blocks, blocks.op("ge", blocks.q, blocks.k)) == ["nothing"] * 3 + ["q_idx >= kv_idx"] + ["all"] * 3


def test_a_causal_mask_of_tokens_in_turn_is_one_of_two_bands():
    striped = Positions(step=1, scale=COUNT)
    texts = keeps_at(striped, striped.op("gt", striped.q, striped.k))
    assert len(set(texts[:4])) == len(set(texts[4:])) == 1 and texts[4] == "q_idx >= kv_idx"
    assert texts[0] == "kv_idx + 1; q_idx >= t4"


def test_a_window_reaches_the_shard_before():
    blocks = Positions()
    window = blocks.op("lt", blocks.op("sub", blocks.q, blocks.k), blocks.number(4))
    causal = blocks.op("ge", blocks.q, blocks.k)
    texts = keeps_at(blocks, blocks.op("and", causal, window))
    assert [text in ("nothing", "all") for text in texts] == [True] * 3 + [False] * 2 + [True] * 2
    assert texts[-2:] == ["nothing"] * 2


def test_what_depends_on_the_place_keeps_its_operands():
    """A comparison of one position, and a difference that may wrap around."""
    blocks = Positions()
    first = blocks.op("lt", blocks.k, blocks.number(7))
    assert {len(at_distance(*blocks.program(first), d)[0].operands) for d in range(1 - COUNT, COUNT)} == {2}
    far = Positions(step=2**30)
    program, shards = far.program(far.op("ge", far.q, far.k))
    assert at_distance(program, shards, 1)[0] == program


@pytest.mark.parametrize("distance", [-3, 0, 2])
def test_arithmetic_keeps_the_distance_as_an_operand(distance):
    """So that one program serves all distances at which the masks are equal."""
    blocks = Positions()
    program, shards = blocks.program(None, blocks.op("f32", blocks.op("sub", blocks.q, blocks.k)))
    rewritten, order = at_distance(program, shards, distance)
    assert order == [shards.distance] and rewritten == at_distance(program, shards, 1)[0]
