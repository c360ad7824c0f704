"""Programs that differ in their constants alone, each of which is compiled: a warning where there are many, as of a Python number that is annealed."""

import warnings

from scoremod.bounded_cache import BoundedCache
from scoremod.fork_safety import Lock

# Layers of a model may each have a number of their own, so a few programs are no sign of a number that changes.
MOST_PROGRAMS = 16

# A program without its constants -> the constants of those that were seen, up to MOST_PROGRAMS.
_seen = BoundedCache(512)
_lock = Lock()


def warn_of_changing_constants(program, as_operand, stacklevel):
    """Counts a program that was traced. Warns once, where it is the MOST_PROGRAMSth of those that differ in constants alone.

    as_operand: how the framework captures a number as a tensor."""
    structure = program._replace(nodes=tuple(node._replace(payload=None) if node.op == "constant" else node for node in program.nodes))
    constants = tuple(node.payload for node in program.nodes if node.op == "constant")
    with _lock:
        seen = _seen.get(structure)
        if seen is None:
            seen = _seen[structure] = []
        if len(seen) == MOST_PROGRAMS or constants in seen:
            return
        seen.append(constants)
        is_told = len(seen) == MOST_PROGRAMS
    if is_told:
        before, now = next((before, now) for before, now in zip(seen[-2], constants) if before != now)
        warnings.warn(
            f"{MOST_PROGRAMS} programs were compiled that differ in their numbers alone: one is {now} in this call of score_mod or mask_mod, and was {before} "
            f"in the one before. Where a Python number changes from call to call, capture it as an array of one number instead, {as_operand}, no value of "
            "which compiles anything (scoremod docs functions)",
            stacklevel=stacklevel + 1,
        )
