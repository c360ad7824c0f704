"""fused_attention: the score function as a callback that builds on a graph."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from scoremod.errors import InvalidArgumentError
from scoremod.signatures import Layout
from scoremod.torch.api import flex_attention
from scoremod.torch.call import check_places
from scoremod.torch.graph_modifier import graph_modifier


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Callable[..., Any] | None = None,
    score_mod_bprop: Callable[..., Any] | None = None,
    score_mod_tensors: Mapping[str, Any] | None = None,
    score_mod_bprop_tensors: Mapping[str, Any] | None = None,
    trust_bprop: bool = False,
    layout: Layout = "BHSD",
    **options: Any,
) -> Any:
    """flex_attention with a callback that builds on a graph, as cuDNN's callbacks do.

    Parameters
    ----------
    query, key, value : Tensor
        flex_attention's, with dimensions in the order of layout. key and value may have fewer heads, a divisor of query's.
    score_mod : function, optional
        score_mod(graph, score, tensors) returns a tensor of the graph. graph has the methods of cudnn-frontend's graph. score was multiplied by the
        scale. The callback runs at each call, and what it builds is traced once.
    score_mod_bprop : function, optional
        score_mod_bprop(graph, dscore, tensors) returns the derivative. It isn't needed: the backward pass is derived from score_mod. It is called
        after score_mod on the same graph, so it may use tensors that score_mod made. It is compared with the derived one at random scores, and
        refused if it differs.
    score_mod_tensors : dict of str to Tensor or number, optional
        Tensors that broadcast against [batch, heads, seq_q, seq_kv], or numbers. score_mod gets them as tensors of the graph, under their names.
        Gradients flow to float tensors. With q_offsets or page_table the batch is that of the sequences, and a tensor has as many positions as the
        longest of them or more.
    score_mod_bprop_tensors : dict of str to Tensor or number, optional
        Likewise score_mod_bprop's.
    trust_bprop : bool
        Takes score_mod_bprop for the derivative by the score whatever score_mod computes, as for a straight-through gradient. It must be a multiple of
        dscore, unlike one that clips it. Gradients of the tensors are derived from score_mod as without.
    layout : {"BHSD", "BSHD", "SBHD"}
        The order of dimensions of query, key, value and the output; with page_table, that of query and the output. Pages and the tokens of q_offsets
        lie as flex_attention takes them.
    options
        flex_attention's scale, return_lse, mask_mod, lengths, q_offsets, page_table, backends and so on.

    Returns
    -------
    Tensor or tuple of Tensors
        flex_attention's; the output has the layout.

    Raises
    ------
    InvalidArgumentError
        For arguments that don't fit, and for a score_mod_bprop that isn't score_mod's derivative.
    UnsupportedError
        For a callback that can't be expressed, a trusted one that is no multiple of dscore, and calls that no backend can run.
    """
    if layout not in ("BHSD", "BSHD", "SBHD"):
        raise InvalidArgumentError(f"layout: expected BHSD, BSHD or SBHD, found {layout!r}; tokens of q_offsets need none")
    check_places(query, key, value)
    is_ragged, is_paged = (options.get(name) is not None for name in ("q_offsets", "page_table"))
    order = [layout.index(axis) for axis in "BHSD"]
    moves = layout != "BHSD" and not is_ragged
    if moves and query.dim() == 4:
        query = query.permute(order)
        key, value = (key, value) if is_paged or key.dim() != 4 or value.dim() != 4 else (key.permute(order), value.permute(order))
    modifier = graph_modifier(query, key, value, options, score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop)
    found = flex_attention(query, key, value, modifier, enable_gqa=True, **options)
    if not moves:
        return found
    back = ["BHSD".index(axis) for axis in layout]
    return (found[0].permute(back), *found[1:]) if isinstance(found, tuple) else found.permute(back)
