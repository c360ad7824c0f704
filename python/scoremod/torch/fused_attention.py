"""fused_attention: the score function as a callback that builds on a graph."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scoremod.callback_arguments import AtLeast, check_callbacks, check_names, refuse_positions, shape_of_scores
from scoremod.errors import InvalidArgumentError, WrongTypeError
from scoremod.query_positions import named
from scoremod.signatures import Layout
from scoremod.torch.api import flex_attention
from scoremod.torch.backward_callbacks import check_backward
from scoremod.torch.call import check_places
from scoremod.torch.recorded_graph import Graph, RecordedFunction, constant
from scoremod.torch.sequences import placed_of

# A callback may leave what it made on an object that threads share, for its backward to use.
_ONE_AT_A_TIME = threading.RLock()


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Callable[..., Any] | None = None,
    score_mod_bprop: Callable[..., Any] | None = None,
    score_mod_tensors: Mapping[str, Any] | None = None,
    score_mod_bprop_tensors: Mapping[str, Any] | None = None,
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
        For a callback that can't be expressed, and for calls that no backend can run.
    """
    if layout not in ("BHSD", "BSHD", "SBHD"):
        raise InvalidArgumentError(f"layout: expected BHSD, BSHD or SBHD, found {layout!r}; tokens of q_offsets need none")
    check_callbacks(score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors)
    check_places(query, key, value)
    is_ragged, is_paged = (options.get(name) is not None for name in ("q_offsets", "page_table"))
    order = [layout.index(axis) for axis in "BHSD"]
    moves = layout != "BHSD" and not is_ragged
    if moves and query.dim() == 4:
        query = query.permute(order)
        key, value = (key, value) if is_paged or key.dim() != 4 or value.dim() != 4 else (key.permute(order), value.permute(order))
    modifier = None
    if score_mod is not None:
        if named(options.get("mask_mod"), options.get("q_start"))[1] is not None:
            refuse_positions(True)
        sizes = _sizes(query, key, value, options)
        tensors, numbers = _tensors("score_mod", score_mod_tensors, sizes, query)
        of_bprop, others = _tensors("score_mod_bprop", score_mod_bprop_tensors, sizes, query)
        recording, backward = _recorded(score_mod, tensors, score_mod_bprop, of_bprop)
        if backward is not None:
            same = _same(score_mod_tensors or {}, score_mod_bprop_tensors or {})
            check_backward(recording, backward, tensors, of_bprop, same, {**numbers, **others}, sizes)
        modifier = RecordedFunction(recording, tensors)
    found = flex_attention(query, key, value, modifier, enable_gqa=True, **options)
    if not moves:
        return found
    back = ["BHSD".index(axis) for axis in layout]
    return (found[0].permute(back), *found[1:]) if isinstance(found, tuple) else found.permute(back)


def _sizes(query, key, value, options):
    """(batch, heads, seq_q, seq_kv) of the scores that a callback sees."""
    placed = placed_of(query, key, value, *(options.get(name) for name in ("q_offsets", "kv_offsets", "page_table", "max_length", "lengths")))
    if placed is None:
        return query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    queries, keys = placed.most
    return placed.batch, query.shape[1], AtLeast(queries) if options.get("q_offsets") is not None else queries, AtLeast(keys)


def _recorded(score_mod, tensors, score_mod_bprop, bprop_tensors):
    """(recording, that of score_mod_bprop or None)."""
    with contextlib.nullcontext() if torch.compiler.is_dynamo_compiling() else _ONE_AT_A_TIME:
        graph = Graph()
        recording = graph.run(score_mod, "score_mod", "score", tensors)
        return recording, None if score_mod_bprop is None else graph.run(score_mod_bprop, "score_mod_bprop", "d_score", bprop_tensors)


def _same(tensors, bprop_tensors):
    """Pairs of the name of a tensor of score_mod_bprop, and that of score_mod for the same one or None, as _tensors() has them."""
    pairs = [(name, [other for other, each in tensors.items() if each is tensor]) for name, tensor in bprop_tensors.items()]
    return tuple([(f"score_mod_bprop.{name}", f"score_mod.{others[0]}" if others else None) for name, others in pairs])


def _tensors(of, given, sizes, query):
    """(name -> tensor of rank 4 or 0, name -> number). Numbers are tensors, too, where query is: another number compiles nothing. of: the callback, whose
    name stands before that of each tensor."""
    check_names(f"{of}_tensors", given)
    tensors, numbers = {}, {}
    for name, each in (given or {}).items():
        what = f"{of}_tensors[{name!r}]"
        if not isinstance(each, (torch.Tensor, bool, int, float)):
            raise WrongTypeError(f"{what}: expected a tensor or a number, found {each!r:.100}")
        tensor = each if isinstance(each, torch.Tensor) else constant(each, query.device)
        shape = shape_of_scores(what, tuple(tensor.shape), sizes)
        tensors[f"{of}.{name}"] = tensor if tensor.dim() == len(shape) else tensor.reshape(shape)
        if tensor is not each:
            numbers[f"{of}.{name}"] = each
    return tensors, numbers
