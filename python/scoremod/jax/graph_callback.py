"""Calls of the callbacks of fused_attention, and the comparison of a backward callback with the derived derivative."""

import functools
import threading

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from scoremod import callback_graph
from scoremod.callback_samples import MASK_CONSTANT, MASK_LIKE, SAMPLES, drawn, first_difference, random_elements, text_of
from scoremod.errors import InvalidArgumentError
from scoremod.jax.custom_rules import has_custom_rule
from scoremod.jax.fallbacks import warn_of_uncompared
from scoremod.jax.graph import Graph
from scoremod.jax.jaxprs import closed, inner_jaxprs, meaning_of

# A callback may leave what it made on an object that threads share, for its backward to use.
ONE_AT_A_TIME = threading.RLock()


def element(array, indices):
    """The element of an array of rank 4 or 0 at an element of the score."""
    if array.ndim == 0:
        return array
    # No index is negative, which array[...] would ask of each.
    return lax.dynamic_slice(array, _places(array, indices), (1,) * array.ndim, allow_negative_indices=False).reshape(())


def _places(array, indices):
    return [0 if size == 1 else index for size, index in zip(array.shape, indices)]


def call_back(callback, name, score, elements, indices, graph=None):
    """The Tensor that a callback makes of a score. elements: name -> number."""
    return callback_graph.call_back(callback, name, score, elements, graph or Graph(indices))


def check_backward(score_mod, score_mod_bprop, tensors, bprop_tensors, same, sizes):
    """Raises InvalidArgumentError if the two derivatives differ at random scores and places, with random contents of the arrays whose values aren't
    known. Warns where they can't be compared.

    same: the names of those tensors of the backward that are tensors of the forward -> the name there, or None."""
    scores, upstream, places = drawn(sizes)
    elements = {name: _elements(array, places) for name, array in tensors.items()}
    unknown = {name: _random_elements(name, tensors[name].dtype) for name, known in elements.items() if known is None}
    elements |= unknown
    bprop_elements = {name: _elements(array, places) for name, array in bprop_tensors.items()}
    for name, known in bprop_elements.items():
        if known is None and same.get(name) is None:
            return warn_of_uncompared(4)  # an array that is traced and may be anything, such as one over another
        if known is None:
            bprop_elements[name] = elements[same[name]]

    def both(score, d_score, indices, elements, bprop_elements):
        graph = Graph(indices)
        value = call_back(score_mod, "score_mod", score, elements, indices, graph)
        return value, call_back(score_mod_bprop, "score_mod_bprop", d_score, bprop_elements, indices, graph)

    arguments = scores, upstream, places, elements, bprop_elements
    with ONE_AT_A_TIME:
        jaxpr = jax.make_jaxpr(both)(*jax.tree.map(_one_of, arguments))
    if any(isinstance(array, jax.core.Tracer) for array in jaxpr.consts):
        return warn_of_uncompared(4)  # likewise of what a callback captures
    comparison = _Comparison(jaxpr, arguments)
    found = (_first_difference if comparison.is_known else _first_difference.__wrapped__)(comparison)
    if found is not None:
        raise InvalidArgumentError(text_of(found, scores, upstream))


def _has_rules(jaxpr):
    return any(has_custom_rule(equation) or any(map(_has_rules, inner_jaxprs(equation))) for equation in closed(jaxpr).jaxpr.eqns)


def _one_of(samples):
    return jax.ShapeDtypeStruct((), samples.dtype)


class _Comparison:
    """Both callbacks of one element, as a jaxpr, and the samples. Two are equal if they compute the same of the same numbers, whichever
    objects the callbacks are."""

    def __init__(self, jaxpr, arguments):
        self.jaxpr, self.arguments = jaxpr, arguments
        # The text of a function with a derivative rule of its own doesn't say the rule.
        rules = [jax.make_jaxpr(self._of_one)(*jax.tree.map(_one_of, arguments))] if _has_rules(jaxpr) else []
        meanings = tuple(map(meaning_of, [jaxpr, *rules]))
        self.is_known = None not in meanings
        self._key = meanings, *(np.asarray(array).tobytes() for array in jax.tree.leaves(arguments))

    def __eq__(self, other):
        return self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def results(self):
        """(derived, given) of each sample, 0 where scores have no weight."""
        with jax.core.eval_context():
            return map(np.asarray, jax.vmap(self._of_one)(*self.arguments))

    def _of_one(self, score, d_score, *others):
        def both(score):
            value, given = core.jaxpr_as_fun(self.jaxpr)(score, d_score, *jax.tree.leaves(others))
            return value, given

        value, pull_back, given = jax.vjp(both, score, has_aux=True)
        derived = pull_back(d_score)[0]
        kept = (value > MASK_LIKE) & ~((value <= MASK_CONSTANT) & (derived == 0))
        return jnp.where(kept, derived, 0), jnp.where(kept, given, 0)


@functools.lru_cache(maxsize=256)
def _first_difference(comparison):
    return first_difference(*comparison.results())


def _elements(array, places):
    """An array's elements at places, as NumPy's; None for one that is traced."""
    if isinstance(array, jax.core.Tracer):
        return None
    with jax.core.eval_context():
        return np.broadcast_to(np.asarray(array[tuple(_places(array, places))] if array.ndim else array), (SAMPLES,))


def _random_elements(name, dtype):
    return random_elements(name, jnp.issubdtype(dtype, jnp.floating)).astype(dtype)
