"""explain's map of a mask where operands decide about tiles: what they hold says the rest."""

import numpy as np

from scoremod.attention import Attention
from scoremod.scores import HeadScores

# Each score is evaluated, which takes a second for so many.
_MOST_SCORES = 2**22
# Any score that no function is likely to single out.
_SCORE = 0.7109375
_UNDECIDED = "+"


def decided(drawn, program, problem, arrays):
    """The map, whose rows operands have decided; as it was where they change nothing, or there are too many scores.

    drawn: explain's "map". program: the traced Program. problem: its JSON text. arrays: operand's name -> array in the problem's shape.
    """
    if not program.operands or not any(_UNDECIDED in row for row in drawn["rows"]) or _score_may_mask(program):
        return drawn
    problem = Attention(problem, backend="reference").problem
    queries, keys = problem["seq_q"], problem["seq_kv"]
    if queries * keys > _MOST_SCORES:
        return drawn
    scores = HeadScores(problem, arrays, 0, 0, 0, queries)
    kept = np.stack([scores.of_key(key, _SCORE) != -np.inf for key in range(keys)], axis=1)
    rows = [_decided_row(row, kept[i * drawn["tile_q"] : (i + 1) * drawn["tile_q"]], drawn["tile_kv"]) for i, row in enumerate(drawn["rows"])]
    return {**drawn, "rows": rows, "decided": True}


def _decided_row(row, kept, tile):
    parts = (kept[:, j * tile : (j + 1) * tile] for j in range(len(row)))
    return "".join("#" if part.all() else "+" if part.any() else "." for part in parts)


def _score_may_mask(program):
    """Whether a choice, or the mask itself, depends on the score: then what is kept isn't known without it."""
    depends = []
    for node in program.nodes:
        depends.append(node.op == "score" or any(depends[argument] for argument in node.args))
        if node.op == "select" and depends[node.args[0]]:
            return True
    return program.keep is not None and depends[program.keep]
