"""A callback that builds on a graph, as a score_mod of flex_attention."""

import contextlib
import threading

import torch

from scoremod.callback_arguments import AtLeast, check_callbacks, check_names, refuse_positions, shape_of_scores
from scoremod.errors import UnsupportedError, WrongTypeError
from scoremod.fork_safety import Lock
from scoremod.multiples import NOT_A_MULTIPLE
from scoremod.query_positions import named
from scoremod.torch.backward_callbacks import check_backward
from scoremod.torch.recorded_graph import Graph, RecordedFunction, constant, is_multiple
from scoremod.torch.sequences import SequenceArguments, placed_of

# A callback may leave what it made on an object that threads share, for its backward to use.
_ONE_AT_A_TIME = Lock(threading.RLock)
_HOW = 'multiply dscore by what hangs on the score, positions and tensors alone; scoremod.jax runs others by backend="xla"'


def graph_modifier(query, key, value, options, score_mod, score_mod_bprop=None, score_mod_tensors=None, score_mod_bprop_tensors=None, trust_bprop=False):
    """The score_mod of flex_attention that fused_attention's callbacks are; None without one. query, key and value are flex_attention's, and options
    its other arguments, of which some say where sequences and pages are."""
    check_callbacks(score_mod, score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop)
    if score_mod is None:
        return None
    if named(options.get("mask_mod"), options.get("q_start"))[1] is not None:
        refuse_positions(True)
    sizes = _sizes(query, key, value, options)
    tensors, numbers = _tensors("score_mod", score_mod_tensors, sizes, query)
    of_bprop, others = _tensors("score_mod_bprop", score_mod_bprop_tensors, sizes, query)
    recording, backward = _recorded(score_mod, tensors, score_mod_bprop, of_bprop)
    if backward is None:
        return RecordedFunction(recording, tensors)
    same = _same(score_mod_tensors or {}, score_mod_bprop_tensors or {})
    if trust_bprop:
        if not is_multiple(backward):
            raise UnsupportedError(f"score_mod_bprop: with trust_bprop=True it is a function {NOT_A_MULTIPLE}; {_HOW}")
        # One operand for each, which the kernels then read once.
        of_bprop |= {name: tensors[other] for name, other in same if other is not None}
        return RecordedFunction(recording, {**tensors, **of_bprop}, backward)
    check_backward(recording, backward, tensors, of_bprop, same, {**numbers, **others}, sizes)
    return RecordedFunction(recording, tensors)


def _sizes(query, key, value, options):
    """(batch, heads, seq_q, seq_kv) of the scores that a callback sees."""
    placed = placed_of(query, key, value, SequenceArguments(**{name: options.get(name) for name in SequenceArguments._fields}))
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
