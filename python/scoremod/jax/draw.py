"""A picture of what flex_attention's functions do to scores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike

from scoremod.drawing import picture
from scoremod.call_spec import CallSpec
from scoremod.jax.api import trace_call
from scoremod.jax.call import split_scale
from scoremod.jax.operands import called
from scoremod.program import operand_name
from scoremod.signatures import Layout, Modifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    query: ArrayLike | jax.ShapeDtypeStruct,
    key: ArrayLike | jax.ShapeDtypeStruct,
    value: ArrayLike | jax.ShapeDtypeStruct,
    score_mod: Modifier | None = None,
    mask_mod: Modifier | None = None,
    *,
    scale: ArrayLike | None = None,
    layout: Layout = "BSHD",
    **options: Any,
) -> Figure:
    """A picture of what the functions do to the scores of one head of one batch.

    Parameters
    ----------
    query, key, value : array or jax.ShapeDtypeStruct
        flex_attention's.
    score_mod, mask_mod, scale, layout
        flex_attention's. The arrays that the functions capture must be known: not inside jax.jit.
    **options
        scoremod.draw's: batch, head, tile, queries and keys.

    Returns
    -------
    matplotlib.figure.Figure
        scoremod.draw's.

    Raises
    ------
    InvalidArgumentError
        For what flex_attention or scoremod.draw refuses.
    """
    number, array = split_scale(scale)
    traced = trace_call(query, key, value, score_mod, mask_mod, CallSpec(scale=number), array, layout)
    problem = json.loads(traced.problem)
    if traced.call.scale is not None:
        problem["scale"] = traced.call.scale
    arrays = {operand_name(i): np.asarray(source.array()) for i, source in enumerate(traced.sources)}
    return picture(problem, arrays, called(traced.sources, (score_mod, mask_mod)), **options)
