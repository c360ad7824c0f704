"""Trees of draft tokens, whose queries look at the cached keys and, among the drafts, at their ancestors and themselves alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from scoremod.jax.arrays import host_numbers, jax_array, whole
from scoremod.signatures import Modifier
from scoremod.tree_arguments import room_of, rounds_of, with_a_cycle, wrong_cached, wrong_parent, wrong_tree


def tree_mask(tree: ArrayLike, cached: ArrayLike) -> Modifier:
    """The mask_mod of a tree of draft tokens: a draft keeps all cached keys, its ancestors among the drafts, and itself.

    It sees positions in the sequence, where draft i of batch b stands at cached[b] + i. The call therefore takes q_start=cached; "bottom_right" says
    the same where lengths are cached + drafts for as many queries. A query below cached[b] is no draft, and keeps no key: its output is 0.

    Parameters
    ----------
    tree : array
        Each draft's parent, integers [batch, drafts] with -1 for a draft that follows the cached keys, in any order. Or ancestors, bools
        [batch, drafts, drafts]: whether draft i sees draft j. A draft sees itself in any case. Without the batch one tree serves all batches. Drafts
        that a batch lacks may be anything that is a tree.
    cached : integer array [batch]
        How many keys each sequence has before its first draft's.

    Returns
    -------
    function
        For flex_attention's mask_mod, and for zoo.all_of with others. No value of tree or cached compiles anything.

    Raises
    ------
    InvalidArgumentError
        For arrays that don't fit, and for parents that the host knows and that are no tree.
    """
    ancestors = ancestors_of(tree)
    of_all, begins = ancestors.ndim == 2, _checked_cached(cached, ancestors)
    # Indices of a table are clamped: keys and queries beyond its room find a last row and column that see nothing.
    drafts = ancestors.shape[-1]
    sees = jnp.pad(ancestors, [(0, 0)] * (ancestors.ndim - 2) + [(0, room_of(drafts) + 1 - drafts)] * 2)

    def mask_mod(b, h, q_idx, kv_idx):
        first = begins[b]
        query, key = q_idx - first, kv_idx - first
        is_seen = sees[query, key] if of_all else sees[b, query, key]
        return (q_idx >= first) & ((kv_idx < first) | is_seen)

    return mask_mod


def tree_depths(tree: ArrayLike) -> jax.Array:
    """How many ancestors each draft has: cached[:, None] + tree_depths(tree) are the drafts' positions in the text, as a model's RoPE takes them.

    Parameters
    ----------
    tree : array
        tree_mask's.

    Returns
    -------
    Array
        int32 [batch, drafts]; without the batch where tree is.

    Raises
    ------
    InvalidArgumentError
        As tree_mask.
    """
    return ancestors_of(tree).sum(-1, dtype=jnp.int32) - 1


def at_tree_depths(function: Modifier, tree: ArrayLike, cached: ArrayLike) -> Modifier:
    """A score_mod or mask_mod that sees positions in the text: cached[b] + depth of a draft, in place of where its key lies. ALiBi, relative biases
    and windows then are those of plain decoding.

    Parameters
    ----------
    function : function
        score_mod(score, b, h, q_idx, kv_idx) or mask_mod(b, h, q_idx, kv_idx).
    tree, cached : array
        tree_mask's.

    Returns
    -------
    function
        Of as many arguments, for a call whose q_start is as tree_mask needs it.

    Raises
    ------
    InvalidArgumentError
        As tree_mask.
    """
    ancestors = ancestors_of(tree)
    of_all, begins = ancestors.ndim == 2, _checked_cached(cached, ancestors)
    drafts = ancestors.shape[-1]
    depths = jnp.pad(ancestors.sum(-1, dtype=jnp.int32) - 1, [(0, 0)] * (ancestors.ndim - 2) + [(0, room_of(drafts) - drafts)])

    def of_indices(*arguments):
        *before, b, h, q_idx, kv_idx = arguments
        first = begins[b]

        def position(index):
            draft = index - first
            return jnp.where(draft < 0, index, first + (depths[draft] if of_all else depths[b, draft]))

        return function(*before, b, h, position(q_idx), position(kv_idx))

    return of_indices


def ancestors_of(tree: ArrayLike) -> jax.Array:
    """tree_mask's tree as bool [batch, drafts, drafts], or [drafts, drafts]: whether a draft sees another one, its own included."""
    array = whole(jax_array("tree", tree))
    if array.dtype == jnp.bool_ and array.ndim in (2, 3) and array.shape[-1] == array.shape[-2]:
        return array | np.eye(array.shape[-1], dtype=bool)
    if not jnp.issubdtype(array.dtype, jnp.integer) or array.ndim not in (1, 2):
        raise wrong_tree(f"{array.dtype} of shape {array.shape}")
    known = host_numbers(tree)
    return _reached(jnp, array) if known is None else jnp.asarray(_checked(known))


def _reached(xp, parents):
    """xp: jax.numpy or numpy."""
    drafts = parents.shape[-1]
    reached = (parents[..., None] == np.arange(drafts)) | np.eye(drafts, dtype=bool)
    # Each product takes in ancestors twice as far away.
    for _ in range(rounds_of(drafts)):
        reached = xp.matmul(reached.astype(np.float32), reached.astype(np.float32)) > 0
    return reached


def _checked(parents):
    """The ancestors of parents; refused are one that no draft has the number of, and a draft that is above itself."""
    drafts = parents.shape[-1]
    wrong = np.argwhere((parents < -1) | (parents >= drafts))
    if wrong.size:
        at = wrong[0].tolist()
        raise wrong_parent(at, int(parents[tuple(at)]), drafts)
    reached = _reached(np, parents)
    above = reached & ~np.eye(drafts, dtype=bool)
    # Two drafts of a cycle are above each other.
    wrong = np.argwhere((parents == np.arange(drafts)) | (above & np.swapaxes(above, -1, -2)).any(-1))
    if wrong.size:
        raise with_a_cycle(wrong[0].tolist())
    return reached


def _checked_cached(cached, ancestors):
    cached = whole(jax_array("cached", cached))
    batch = ancestors.shape[0] if ancestors.ndim == 3 else None
    if not jnp.issubdtype(cached.dtype, jnp.integer) or cached.ndim != 1 or batch not in (None, cached.shape[0]):
        raise wrong_cached(batch, f"{cached.dtype} of shape {cached.shape}")
    return cached.astype(jnp.int32)
