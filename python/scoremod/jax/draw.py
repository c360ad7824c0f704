"""A picture of what flex_attention's functions do to scores."""

import json

import numpy as np

import scoremod
from scoremod.jax.api import CallOptions, trace_call
from scoremod.program import operand_name


def draw(query, key, value, score_mod=None, mask_mod=None, *, scale=None, layout="BSHD", **options):
    """scoremod.draw of flex_attention's arguments: a matplotlib Figure of one head of one batch. query, key and value may be jax.ShapeDtypeStructs;
    options are scoremod.draw's: batch, head, tile, queries and keys. The arrays that the functions capture must be known: not inside jax.jit."""
    traced = trace_call(query, key, value, score_mod, mask_mod, scale, layout, CallOptions(), ())
    problem = json.loads(traced.problem)
    if traced.call.scale is not None:
        problem["scale"] = traced.call.scale
    arrays = {operand_name(i): np.asarray(source.array()) for i, source in enumerate(traced.sources)}
    return scoremod.draw(problem, arrays, **options)
