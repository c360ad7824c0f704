"""The sizes of an attention, from the shapes of its arrays."""

from typing import NamedTuple

from scoremod.errors import InvalidArgumentError
from scoremod.program import AXES

LAYOUTS = ("BSHD", "SBHD", "BHSD")


class Sizes(NamedTuple):
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim_qk: int
    dim_v: int

    def axes(self) -> dict[str, int]:
        """axis -> the size of the score along it."""
        return dict(zip(AXES, (self.batch, self.heads_q, self.seq_q, self.seq_kv)))


def sizes_of(layout, q, k, v, *, may_be_empty=False):
    """The Sizes of arrays (or shapes) in a layout. Raises InvalidArgumentError that names what doesn't fit. may_be_empty: takes 0 for all but the
    head dims."""
    if layout not in LAYOUTS:
        raise InvalidArgumentError(f"layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}")
    shapes = {name: tuple(getattr(x, "shape", x)) for name, x in (("query", q), ("key", k), ("value", v))}
    fitting = _fitting(layout, *shapes.values())
    if fitting is not None:
        return fitting
    for name, shape in shapes.items():
        if len(shape) != 4:
            raise InvalidArgumentError(f"{name}: expected 4 dimensions in the order {layout}, found shape {shape}")
    size = {name: dict(zip(layout, shape)) for name, shape in shapes.items()}
    for letter, first, second, what in (
        ("B", "query", "key", "batch"),
        ("B", "query", "value", "batch"),
        ("H", "key", "value", "number of heads"),
        ("S", "key", "value", "length"),
        ("D", "query", "key", "head dim"),
    ):
        if size[first][letter] != size[second][letter]:
            raise InvalidArgumentError(
                f"{second}: expected the {what} of {first}, {size[first][letter]}, found {size[second][letter]} in shape {shapes[second]} ({layout})"
            )
    empty = [letter for name in shapes for letter in layout if size[name][letter] == 0]
    if empty and (not may_be_empty or "D" in empty):
        raise InvalidArgumentError(f"expected arrays that are not empty, found shapes {', '.join(map(str, shapes.values()))}")
    if size["query"]["H"] % max(size["key"]["H"], 1) or (size["query"]["H"] > 0) != (size["key"]["H"] > 0):
        raise InvalidArgumentError(f"query: expected a number of heads that is a multiple of key's {size['key']['H']}, found {size['query']['H']}")
    return Sizes(
        size["query"]["B"],
        size["query"]["H"],
        size["key"]["H"],
        size["query"]["S"],
        size["key"]["S"],
        size["query"]["D"],
        size["value"]["D"],
    )


def _fitting(layout, q, k, v):
    """The Sizes of shapes that fit, which most do; None where sizes_of() has to find out."""
    if len(q) != 4 or len(k) != 4 or len(v) != 4:
        return None
    b, h, s, d = _PLACES[layout]
    fit = q[b] == k[b] == v[b] and k[h] == v[h] and k[s] == v[s] and q[d] == k[d] and 0 not in q and 0 not in k and v[d] != 0
    return Sizes(q[b], q[h], k[h], q[s], k[s], q[d], v[d]) if fit and q[h] % k[h] == 0 else None


_PLACES = {layout: tuple(map(layout.index, "BHSD")) for layout in LAYOUTS}
