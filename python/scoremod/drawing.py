"""A picture of a problem: the tiles of its mask, what its program makes of scores, and the operands that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from scoremod.attention import Attention
from scoremod.errors import EnvironmentError, InvalidArgumentError
from scoremod.scores import HeadScores, float_array, operands_of
from scoremod.signatures import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Scores that a picture may ask for: some seconds.
_MOST_SCORES = 2**25
_EMPTY, _PARTIAL, _FULL = 0, 1, 2
_COLORS = ("#f4f4f4", "#8ecae6", "#0072b2")
_CURVE_SCORES = np.linspace(-20, 20, 161, dtype=np.float32)
_MOST_CURVES = 16


def draw(
    problem: Problem,
    operands: Mapping[str, ArrayLike] | None = None,
    *,
    batch: int = 0,
    head: int = 0,
    tile: int | None = None,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
) -> Figure:
    """Draws one head of one batch of a problem.

    The panels show:
    - the mask's tiles (empty, partial, full), with the share of scores that is computed if empty tiles are skipped;
    - the change that the program makes to a score of 0 at each place;
    - scores from -20 to 20 after the program, at a kept place;
    - each float operand of one or two dimensions: curves, with the drawn head's before the others, or a picture of many rows.

    Parameters
    ----------
    problem : dict or str
        The fields of `scoremod docs problem`, or their JSON text.
    operands : dict of str to array, optional
        An array for each operand of the program, in the problem's shape.
    batch, head : int
        The batch and the head that are drawn.
    tile : int, optional
        The side of the mask's tiles; without it 128, or less where the sequences are short.
    queries, keys : (int, int), optional
        The first index and the number of those that are drawn; all without them.

    Returns
    -------
    matplotlib.figure.Figure
        Every value in it comes from the library itself.

    Raises
    ------
    InvalidArgumentError
        For arguments that don't fit, and for more than 2^25 scores.
    EnvironmentError
        Without matplotlib.
    """
    return picture(problem, operands or {}, {}, batch=batch, head=head, tile=tile, queries=queries, keys=keys)


def picture(problem, operands, names, *, batch=0, head=0, tile=None, queries=None, keys=None):
    """draw() where operands have other names for people than in the program: operand -> name, of those that have one."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentError(f"draw: expected matplotlib, found {error}; pip install matplotlib") from None
    problem = Attention(problem, backend="reference").problem
    arrays = dict(operands)
    _check_index("batch", batch, problem["batch"])
    _check_index("head", head, problem["heads_q"])
    queries, keys = (_range(name, given, problem[size]) for name, given, size in (("queries", queries, "seq_q"), ("keys", keys, "seq_kv")))
    if queries[1] * keys[1] > _MOST_SCORES:
        raise InvalidArgumentError(
            f"expected at most {_MOST_SCORES} scores, found {queries[1]} queries times {keys[1]} keys; draw a part with queries=(first, count) and keys="
        )
    side = _tile_side(tile, max(queries[1], keys[1]))
    scores = HeadScores(problem, arrays, batch, head, *queries)
    modified = np.stack([scores.of_key(key) for key in range(keys[0], keys[0] + keys[1])], axis=1)
    panels = [
        lambda axes: _draw_tiles(axes, block_mask(modified > -np.inf, side), queries, keys, side),
        lambda axes: _draw_change(axes, modified, queries, keys),
        lambda axes: _draw_curve(axes, scores, modified, queries, keys),
    ]
    panels += _operand_panels(problem, arrays, names, head)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 4.1 * rows), layout="constrained")
    for panel, axes in zip(panels, figure.subplots(rows, columns, squeeze=False).flat):
        panel(axes)
    for axes in figure.axes[len(panels) : rows * columns]:
        axes.set_visible(False)
    figure.suptitle(f"batch {batch}, head {head}", fontsize=10)
    return figure


def block_mask(kept, side):
    """For each tile of a bool [queries, keys] 0 where nothing is kept, 1 where some is, 2 where all is: int8 [tiles, tiles]."""
    rows, columns = (np.arange(0, size, side) for size in kept.shape)
    counts = np.add.reduceat(np.add.reduceat(kept.astype(np.int64), rows, axis=0), columns, axis=1)
    sizes = np.outer(np.diff([*rows, kept.shape[0]]), np.diff([*columns, kept.shape[1]]))
    return np.where(counts == 0, _EMPTY, np.where(counts == sizes, _FULL, _PARTIAL)).astype(np.int8)


def _check_index(name, index, size):
    if not 0 <= index < size:
        raise InvalidArgumentError(f"{name}: expected an index from 0 to {size - 1}, found {index}")


def _range(name, given, size):
    first, count = (0, size) if given is None else given
    if not (0 <= first and 0 < count and first + count <= size):
        raise InvalidArgumentError(f"{name}: expected (first, count) within {size}, found {(first, count)}")
    return first, count


def _tile_side(tile, length):
    if tile is None:
        return min(128, max(1, length // 16))
    if tile < 1:
        raise InvalidArgumentError(f"tile: expected a side of 1 or more, found {tile}")
    return tile


def _extent(queries, keys):
    return keys[0], sum(keys), sum(queries), queries[0]


def _draw_tiles(axes, states, queries, keys, side):
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    extent = keys[0], keys[0] + states.shape[1] * side, queries[0] + states.shape[0] * side, queries[0]
    axes.imshow(states, cmap=ListedColormap(_COLORS), vmin=0, vmax=2, extent=extent, interpolation="nearest", aspect="auto")
    axes.set_xlim(keys[0], sum(keys))
    axes.set_ylim(sum(queries), queries[0])
    shares = [np.mean(states == state) for state in (_EMPTY, _PARTIAL, _FULL)]
    labels = [f"{name} {share:.1%}" for name, share in zip(("empty", "partial", "full"), shares)]
    handles = [Patch(facecolor=color, edgecolor="gray", label=label) for color, label in zip(_COLORS, labels)]
    # Below the tiles: within them it would hide some.
    axes.legend(handles=handles, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
    axes.set_title(f"tiles of {side} x {side}: {1 - shares[_EMPTY]:.1%} of the work is left", fontsize=9)
    _label(axes)


def _draw_change(axes, modified, queries, keys):
    shown = np.where(np.isfinite(modified), modified, np.nan)
    image = axes.imshow(shown, cmap="viridis", extent=_extent(queries, keys), interpolation="nearest", aspect="auto")
    axes.figure.colorbar(image, ax=axes)
    axes.set_facecolor(_COLORS[0])
    axes.set_title("what becomes of a score of 0", fontsize=9)
    _label(axes)


def _draw_curve(axes, scores, modified, queries, keys):
    """At the last kept place of the middle query that has one."""
    rows = np.flatnonzero(np.isfinite(modified).any(axis=1))
    axes.set_title("no score is kept", fontsize=9)
    if rows.size == 0:
        return
    row = rows[rows.size // 2]
    column = np.flatnonzero(np.isfinite(modified[row]))[-1]
    values = [scores.of_key(keys[0] + column, score)[row] for score in _CURVE_SCORES]
    axes.plot(_CURVE_SCORES, _CURVE_SCORES, color="#c0c0c0", linewidth=0.8)
    axes.plot(_CURVE_SCORES, values, color=_COLORS[_FULL])
    axes.set_title(f"scores at q_idx {queries[0] + row}, kv_idx {keys[0] + column}", fontsize=9)
    axes.set_xlabel("score", fontsize=8)
    axes.set_ylabel("modified", fontsize=8)


def _operand_panels(problem, arrays, names, head):
    panels = []
    dtypes = {spec["name"]: spec["dtype"] for spec in problem["operands"]}
    for operand in operands_of(problem):
        array = float_array(np.asarray(arrays[operand.name]), dtypes[operand.name])
        if array.dtype == np.float32 and array.ndim in (1, 2) and array.shape[-1] > 1:
            title = f"{names.get(operand.name, operand.name)} {list(array.shape)}"
            panels.append(lambda axes, title=title, operand=operand, array=array: _draw_operand(axes, title, operand, array, head))
    return panels


def _draw_operand(axes, title, operand, array, head):
    """Each row as a curve, and the head's own before the others, where rows may be heads. More rows than can be told apart are a picture."""
    rows = array.reshape(-1, array.shape[-1])
    axes.set_title(title, fontsize=9)
    names = operand.axes or tuple(f"index {dim}" for dim in range(array.ndim))
    axes.set_xlabel(names[-1], fontsize=8)
    axes.tick_params(labelsize=7)
    if len(rows) > _MOST_CURVES:
        axes.figure.colorbar(axes.imshow(rows, cmap="viridis", interpolation="nearest", aspect="auto"), ax=axes)
        axes.set_ylabel(names[0], fontsize=8)
        return
    marker = "." if array.shape[-1] <= 64 else None
    is_of_heads = 1 < len(rows) and head < len(rows) and (names[0] == "h" or not operand.axes)
    for number, row in enumerate(rows):
        if not is_of_heads or number != head:
            axes.plot(row, linewidth=0.8, marker=marker, color="#b0b0b0" if is_of_heads else None)
    if is_of_heads:
        axes.plot(rows[head], linewidth=2, marker=marker, color=_COLORS[_FULL])
        axes.set_title(f"{title}, row {head} before the others", fontsize=9)


def _label(axes):
    axes.set_xlabel("kv_idx", fontsize=8)
    axes.set_ylabel("q_idx", fontsize=8)
    axes.tick_params(labelsize=7)
