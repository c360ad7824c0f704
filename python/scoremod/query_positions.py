"""Names of masks, and of where a call's queries stand in their sequences, that all front ends know."""

from typing import Any

from scoremod.errors import InvalidArgumentError

# The q_start with which the last query of each sequence stands at its last key.
BOTTOM_RIGHT = "bottom_right"


def named(mask_mod: Any, q_start: Any) -> tuple[Any, Any]:
    """(mask_mod, q_start) of flex_attention's arguments, of which mask_mod may be a name."""
    if not isinstance(mask_mod, str):
        return mask_mod, q_start
    if mask_mod == "causal":
        return causal, q_start
    if mask_mod != "causal_bottom_right":
        raise InvalidArgumentError(f'mask_mod: expected a function, "causal" or "causal_bottom_right", found {mask_mod!r:.100}')
    if q_start is not None and not is_bottom_right(q_start):
        raise InvalidArgumentError('mask_mod="causal_bottom_right": expected no q_start beside it, found one, which says otherwise; give mask_mod="causal"')
    return causal, BOTTOM_RIGHT


def is_bottom_right(q_start):
    """Whether a q_start is that name. Raises InvalidArgumentError for another one."""
    if isinstance(q_start, str) and q_start != BOTTOM_RIGHT:
        raise InvalidArgumentError(f'q_start: expected integers or "{BOTTOM_RIGHT}", found {q_start!r:.100}')
    return isinstance(q_start, str)


def without_needless_mask(mask_mod: Any, queries: Any) -> Any:
    """The mask of a call whose queries end where their keys do; none for a causal one of sequences with one query at most, which sees all keys.

    So a step of decoding evaluates no mask. queries: how many each sequence has at most, which may be an open size.
    """
    return None if mask_mod is causal and isinstance(queries, int) and queries == 1 else mask_mod


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx
