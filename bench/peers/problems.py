"""The parts of a case."""

from collections.abc import Callable
from dataclasses import dataclass

from shapes import Shape

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Case:
    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    learned: tuple = ()  # tensors that the score function captures, whose gradients are wanted
    plain: dict | None = None  # {"causal": bool, "window": keys or None} where a flash-attention call can say it
    mask_varies: tuple = (False, False)  # with the batch, with the head: what a block mask is made for
    lengths: tuple | None = None  # of the sequences that lie one after the other (varlen); mask_mod is of one sequence then
    packed_mask: Callable | None = None  # the mask of all tokens, for implementations that know no sequences
    deterministic: bool = False
    directions: tuple = (FORWARD, BACKWARD)
    name: str = ""
    modifier: str = ""
    shape_name: str = ""
    shape: Shape | None = None
    peers: tuple = ()

    def mask_of_all(self):
        return self.mask_mod if self.lengths is None else self.packed_mask
