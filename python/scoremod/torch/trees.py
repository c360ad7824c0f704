"""Trees of draft tokens, whose queries look at the cached keys and, among the drafts, at their ancestors and themselves alone."""

import torch
from torch.nn.functional import pad

from scoremod.signatures import Modifier
from scoremod.torch.captures import has_data
from scoremod.torch.sequences import dense_int32
from scoremod.torch.signatures import MaskMod
from scoremod.tree_arguments import room_of, rounds_of, with_a_cycle, wrong_cached, wrong_parent, wrong_tree


def tree_mask(tree: torch.Tensor, cached: torch.Tensor) -> MaskMod:
    """The mask_mod of a tree of draft tokens: a draft keeps all cached keys, its ancestors among the drafts, and itself.

    It sees positions in the sequence, where draft i of batch b stands at cached[b] + i. The call therefore takes q_start=cached; "bottom_right" says
    the same where lengths are cached + drafts for as many queries. A query below cached[b] is no draft, and keeps no key: its output is 0.

    Parameters
    ----------
    tree : Tensor
        Each draft's parent, an integer [batch, drafts] with -1 for a draft that follows the cached keys, in any order. Or ancestors, a bool
        [batch, drafts, drafts]: whether draft i sees draft j. A draft sees itself in any case. Without the batch one tree serves all batches. Drafts
        that a batch lacks may be anything that is a tree.
    cached : integer Tensor [batch]
        How many keys each sequence has before its first draft's.

    Returns
    -------
    function
        For flex_attention's mask_mod, and for and_masks with others. No value of tree or cached compiles anything.

    Raises
    ------
    InvalidArgumentError
        For tensors that don't fit, and in host memory for parents that are no tree.
    """
    ancestors, cached = ancestors_of(tree), _checked_cached(cached, tree)
    # Indices of a table are clamped: keys and queries beyond its room find a last row and column that see nothing.
    more = room_of(tree.shape[-1]) + 1 - tree.shape[-1]
    sees, of_all = pad(ancestors, (0, more, 0, more)), ancestors.dim() == 2

    def mask_mod(b, h, q_idx, kv_idx):
        first = cached[b]
        query, key = q_idx - first, kv_idx - first
        is_seen = sees[query, key] if of_all else sees[b, query, key]
        return (q_idx >= first) & ((kv_idx < first) | is_seen)

    return mask_mod


def tree_depths(tree: torch.Tensor) -> torch.Tensor:
    """How many ancestors each draft has: cached[:, None] + tree_depths(tree) are the drafts' positions in the text, as a model's RoPE takes them.

    Parameters
    ----------
    tree : Tensor
        tree_mask's.

    Returns
    -------
    Tensor
        int32 [batch, drafts]; without the batch where tree is.

    Raises
    ------
    InvalidArgumentError
        As tree_mask.
    """
    return ancestors_of(tree).sum(-1, dtype=torch.int32) - 1


def at_tree_depths(function: Modifier, tree: torch.Tensor, cached: torch.Tensor) -> Modifier:
    """A score_mod or mask_mod that sees positions in the text: cached[b] + depth of a draft, in place of where its key lies. ALiBi, relative biases
    and windows then are those of plain decoding.

    Parameters
    ----------
    function : function
        score_mod(score, b, h, q_idx, kv_idx) or mask_mod(b, h, q_idx, kv_idx).
    tree, cached : Tensor
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
    depths, cached = tree_depths(tree), _checked_cached(cached, tree)
    depths, of_all = pad(depths, (0, room_of(tree.shape[-1]) - tree.shape[-1])), depths.dim() == 1

    def of_indices(*arguments):
        *before, b, h, q_idx, kv_idx = arguments
        first = cached[b]

        def position(index):
            draft = index - first
            return torch.where(draft < 0, index, first + (depths[draft] if of_all else depths[b, draft]))

        return function(*before, b, h, position(q_idx), position(kv_idx))

    return of_indices


def ancestors_of(tree: torch.Tensor) -> torch.Tensor:
    """tree_mask's tree as bool [batch, drafts, drafts], or [drafts, drafts]: whether a draft sees another one, its own included."""
    if not isinstance(tree, torch.Tensor):
        raise wrong_tree(type(tree).__name__)
    if tree.dtype == torch.bool and tree.dim() in (2, 3) and tree.shape[-1] == tree.shape[-2]:
        return tree | torch.eye(tree.shape[-1], dtype=torch.bool, device=tree.device)
    if tree.dtype not in (torch.int32, torch.int64) or tree.dim() not in (1, 2):
        raise wrong_tree(f"{tree.dtype} of shape {tuple(tree.shape)}")
    drafts = tree.shape[-1]
    number = torch.arange(drafts, device=tree.device)
    is_parent, itself = tree[..., None] == number, torch.eye(drafts, dtype=torch.bool, device=tree.device)
    # Each product takes in ancestors twice as far away.
    reached = is_parent | itself
    for _ in range(rounds_of(drafts)):
        reached = (reached.float() @ reached.float()) > 0
    if _is_known(tree):
        _check(tree, is_parent, reached & ~itself)
    return reached


def _check(parents, is_parent, above):
    """Refuses parents that no draft has the number of, and a draft that is above itself."""
    drafts = parents.shape[-1]
    wrong = ((parents < -1) | (parents >= drafts)).nonzero()
    if wrong.numel():
        at = wrong[0].tolist()
        raise wrong_parent(at, int(parents[tuple(at)]), drafts)
    # Two drafts of a cycle are above each other.
    wrong = ((is_parent.diagonal(dim1=-2, dim2=-1)) | (above & above.mT).any(-1)).nonzero()
    if wrong.numel():
        raise with_a_cycle(wrong[0].tolist())


def _checked_cached(cached, tree):
    """The numbers of cached keys as int32 [batch], on the tree's device."""
    batch = None if tree.dim() == (2 if tree.dtype == torch.bool else 1) else tree.shape[0]
    is_integers = isinstance(cached, torch.Tensor) and cached.dtype in (torch.int32, torch.int64) and cached.dim() == 1
    if not is_integers or cached.device != tree.device or batch not in (None, cached.shape[0]):
        found = f"{cached.dtype} of shape {tuple(cached.shape)} on {cached.device}" if isinstance(cached, torch.Tensor) else type(cached).__name__
        raise wrong_cached(batch, found, f" on {tree.device}, where tree is")
    return dense_int32("cached", cached, tree, 1, "[batch]")


def _is_known(tensor):
    """Whether its numbers can be read without waiting for a device."""
    return not torch.compiler.is_dynamo_compiling() and tensor.device.type == "cpu" and has_data(tensor)
