"""fused_attention: the score function as a callback that builds on a graph."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.errors import InvalidArgumentError
from scoremod.jax.api import flex_attention
from scoremod.jax.arrays import known_array
from scoremod.jax.call import sizes_of
from scoremod.jax.graph import Graph, Tensor
from scoremod.jax.program import AXES

_SAMPLES = 256
_TOLERANCE = 1e-3


def fused_attention(
    query,
    key,
    value,
    *,
    score_mod=None,
    score_mod_bprop=None,
    score_mod_tensors=None,
    score_mod_bprop_tensors=None,
    layout="BSHD",
    **options,
):
    """flex_attention for those who write score_mod(graph, score, tensors) -> tensor, as cuDNN's callbacks are written.

    graph: scoremod.jax.graph.Graph, with the methods of cudnn-frontend's graph. score was multiplied by the scale.
    score_mod_tensors: name -> array that broadcasts against [batch, heads, seq_q, seq_kv], or a number. Callbacks get them as tensors
        of the graph, under their names. Gradients flow to the arrays.
    score_mod_bprop(graph, dscore, tensors) -> tensor: the derivative, with score_mod_bprop_tensors. It isn't needed: the backward pass is
        derived from score_mod. If given, it is compared with the derived one at random scores, and one that differs is refused.
        It is called after score_mod on the same graph, so it may use tensors that score_mod made.
    options: flex_attention's scale, return_lse, deterministic, backend and fallback.
    """
    _check_arguments(score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors)
    if score_mod is None:
        return flex_attention(query, key, value, layout=layout, **options)
    sizes = tuple(sizes_of(layout, query, key, value).axes()[axis] for axis in AXES)
    tensors = _arrays("score_mod_tensors", score_mod_tensors, sizes)
    if score_mod_bprop is not None:
        bprop_tensors = _arrays("score_mod_bprop_tensors", score_mod_bprop_tensors, sizes)
        _check_bprop(score_mod, score_mod_bprop, tensors, bprop_tensors, sizes)

    # Arrays, scalars too, are captured: their values are no part of the program.
    captured = {name: jnp.asarray(array) for name, array in tensors.items()}

    def modifier(score, *indices):
        return _call(score_mod, "score_mod", Graph(indices), score, captured, indices)

    return flex_attention(query, key, value, modifier, layout=layout, **options)


def _check_arguments(score_mod, score_mod_bprop, tensors, bprop_tensors):
    others = {"score_mod_bprop": score_mod_bprop, "score_mod_tensors": tensors, "score_mod_bprop_tensors": bprop_tensors}
    given = [name for name, value in others.items() if value is not None]
    if score_mod is None and given:
        raise InvalidArgumentError(f"{', '.join(given)} require score_mod; give it, or leave them out")
    if bprop_tensors and score_mod_bprop is None:
        raise InvalidArgumentError("score_mod_bprop_tensors require score_mod_bprop; give it, or leave them out")
    for name, function in (("score_mod", score_mod), ("score_mod_bprop", score_mod_bprop)):
        if function is not None and not callable(function):
            raise InvalidArgumentError(f"{name}: expected a function, found {function!r}")


def _arrays(what, given, sizes):
    """name -> array of rank 4 or 0, of NumPy where the caller's value is known even while JAX traces."""
    if given is not None and not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{what}: expected a mapping from names to arrays, found {given!r}")
    arrays = {}
    for name, value in (given or {}).items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"{what}: expected names, found {name!r}")
        array = known_array(f"{what}['{name}']", value)
        if array.ndim == 0:
            arrays[name] = array
            continue
        shape = (1,) * (4 - array.ndim) + array.shape
        if len(shape) != 4 or any(n not in (1, size) for n, size in zip(shape, sizes)):
            raise InvalidArgumentError(f"{what}['{name}']: expected a shape that broadcasts to {sizes}, found {array.shape}")
        arrays[name] = array.reshape(shape)
    return arrays


def _element(array, indices):
    array = jnp.asarray(array)
    if array.ndim == 0:
        return Tensor(array)
    return Tensor(array[tuple(0 if size == 1 else index for size, index in zip(array.shape, indices))])


def _call(callback, name, graph, score, arrays, indices):
    result = callback(graph, Tensor(score), {each: _element(array, indices) for each, array in arrays.items()})
    if not isinstance(result, Tensor):
        raise InvalidArgumentError(f"{name}: expected it to return a tensor of the graph, found {result!r}")
    return result.value


def _check_bprop(score_mod, score_mod_bprop, tensors, bprop_tensors, sizes):
    """Compares the two derivatives at random scores and places, with random contents of the arrays whose values aren't known."""
    with jax.ensure_compile_time_eval():
        random = np.random.default_rng(0)
        tensors, bprop_tensors = ({name: _known(array, name) for name, array in each.items()} for each in (tensors, bprop_tensors))
        scores = jnp.asarray(random.normal(0, 4, _SAMPLES), jnp.float32)
        upstream = jnp.asarray(random.normal(0, 1, _SAMPLES), jnp.float32)
        places = [jnp.asarray(random.integers(0, size, _SAMPLES), jnp.int32) for size in sizes]

        def both(score, d_score, *indices):
            graph = Graph(indices)
            function = lambda score: _call(score_mod, "score_mod", graph, score, tensors, indices)  # noqa: E731
            value, pull_back = jax.vjp(function, score)
            function(score)  # what score_mod leaves on its object is then of this trace
            given = _call(score_mod_bprop, "score_mod_bprop", graph, d_score, bprop_tensors, indices)
            kept = value > -jnp.inf
            return jnp.where(kept, pull_back(d_score)[0], 0), jnp.where(kept, given, 0)

        derived, given = map(np.asarray, jax.vmap(both)(scores, upstream, *places))
        scores, upstream = np.asarray(scores), np.asarray(upstream)
    wrong = np.flatnonzero(~(np.abs(derived - given) <= _TOLERANCE * np.maximum(1, np.abs(derived))))
    if wrong.size:
        i = wrong[0]
        raise InvalidArgumentError(
            f"score_mod_bprop: expected the derivative of score_mod, {derived[i]} at score {scores[i]} for d score {upstream[i]}, found "
            f"{given[i]} ({wrong.size} of {_SAMPLES} samples differ); leave it out to have it derived"
        )


def _known(array, name):
    """The array, or random contents if it is being traced; equal names get equal ones."""
    try:
        return jnp.asarray(np.asarray(array))
    except jax.errors.TracerArrayConversionError:
        random = np.random.default_rng(list(name.encode()))
        if jnp.issubdtype(array.dtype, jnp.floating):
            return jnp.asarray(random.uniform(0.5, 2, array.shape), array.dtype)
        return jnp.asarray(random.integers(0, 2, array.shape), array.dtype)
