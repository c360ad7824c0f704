"""Attention over sequences that are sharded over processes: each holds as many queries and keys as the others, in the order of their ranks.

"ring": the shards of keys and values go around, one step at a time, while attention to the shard that is here is computed. No process holds
more than two shards beside its own. "all_gather": each process gathers all keys and values, and computes in one call.

The program sees global indices. The backward computes each part from the whole row's output and log-sum-exp, so that parts need not be kept.
"""

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch._C._functorch import peek_interpreter_stack

from scoremod.call_spec import CallSpec, Offsets
from scoremod.callback_arguments import Callbacks
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.signatures import Backends, NewSizes
from scoremod.torch.agreement import agree
from scoremod.torch.api import in_autocast_dtype, learned_by_call, part_of_call
from scoremod.torch.attention_ops import compile_backward, compile_forward, with_lse_columns
from scoremod.torch.call import check_places, with_given_deltas
from scoremod.torch.lengths_and_sinks import bounded, checked_sink
from scoremod.torch.saved_tensors import as_saved, save
from scoremod.torch.signatures import Lengths, MaskMod, ScoreMod
from scoremod.shard_distance import DUAL_CHUNK_SWAP, chunks_of
from scoremod.torch.graph_modifier import graph_modifier
from scoremod.torch.packed_tokens import PackedTokens
from scoremod.torch.sequences import SequenceArguments, placed_of
from scoremod.torch.stripes import Step, Stripes, stripe, unstripe

WAYS = ("ring", "all_gather")
_SAVED = ("sink", "output's rest", "query", "key", "value", "output", "log-sum-exp")


def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: ScoreMod | Callable[..., Any] | None = None,
    *,
    group: Any,
    mask_mod: MaskMod | None = None,
    score_mod_bprop: Callable[..., Any] | None = None,
    score_mod_tensors: Mapping[str, Any] | None = None,
    score_mod_bprop_tensors: Mapping[str, Any] | None = None,
    trust_bprop: bool = False,
    way: Literal["ring", "all_gather"] = "ring",
    striped: bool | int | Literal["dual_chunk_swap"] = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    lengths: Lengths = None,
    q_offsets: torch.Tensor | None = None,
    kv_offsets: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    backends: Backends = None,
    deterministic: bool | None = None,
    new_sizes: NewSizes = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over a sequence of which this process has one shard.

    Indices are those of the whole sequence, and captured tensors, lengths included, belong to it: each process has them whole. Their gradients are this
    process' share, as those of any parameter whose use is spread over processes: add them up over the group (torch.distributed.all_reduce).

    Parameters
    ----------
    query, key, value : Tensor
        [batch, heads, sequence / processes, dim], on each process of `group` alike; [tokens / processes, heads, dim] with q_offsets.
    score_mod, mask_mod, scale, enable_gqa, return_lse, lengths, sink, backends, deterministic, new_sizes
        flex_attention's.
    score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop
        fused_attention's. With any of them, such as empty score_mod_tensors, score_mod is a callback that builds on a graph. The tensors are those of
        the whole sequence, on each process.
    q_offsets, kv_offsets : integer Tensor [batch + 1], optional
        Varlen sequences: this process' tokens are its part of those of all sequences. The offsets count all tokens, and are the same on each process; a
        sequence may lie on several. The functions see b and positions as flex_attention's do, and the LSE is [tokens / processes, heads].
    group : ProcessGroup or DeviceMesh
        A process group of torch.distributed, or a mesh of one dimension. Shards lie along the sequence in the order of its ranks.
    way : {"ring", "all_gather"}
        Whether keys and values go round in a ring, or are gathered.
    striped : bool, int or "dual_chunk_swap"
        Which positions a process has: the next block of them without it. A number of tokens deals them out in stripes of so many, in turn; True is 1.
        With "dual_chunk_swap" process r of n has chunks r and 2 * n - 1 - r of 2 * n. With a causal mask every process then has as much to do. stripe()
        and unstripe() reorder a whole sequence, whose blocks are then the shards.

    Returns
    -------
    Tensor or tuple of Tensor
        This process' shard of the output, and of the log-sum-exp with return_lse.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        As flex_attention, on every process alike.
    """
    group = group.get_group() if hasattr(group, "get_group") else group
    if torch.compiler.is_dynamo_compiling() or peek_interpreter_stack() is not None:  # pyright: ignore[reportUnnecessaryComparison]
        raise UnsupportedError("context_parallel_attention: expected an eager call, found one within torch.compile or torch.func; call it outside")
    check_places(query, key, value)
    callbacks = Callbacks(score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors, trust_bprop)
    is_packed = q_offsets is not None or kv_offsets is not None
    ring, described, call, refusal = _Ring(group, way), {}, (), None
    options = {
        "way": way,
        "striped": striped,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "backends": backends,
        "deterministic": deterministic,
        "new_sizes": new_sizes,
    }
    try:
        query, key, value = in_autocast_dtype(query, key, value)
        if is_packed or callbacks.are_given():
            places = {"q_offsets": q_offsets, "kv_offsets": kv_offsets}
            described = {name: _text_of_offsets(offsets) for name, offsets in places.items()}
            query, key, value, score_mod, mask_mod = _of_tokens(ring, query, key, value, score_mod, mask_mod, callbacks, places, lengths)
            lengths = None if is_packed else lengths
        described |= _described({"query": query, "key": key, "value": value, "sink": sink}, lengths, options)
        call = _call(ring, query, key, value, score_mod, mask_mod, lengths, sink, options)
        described["gradients"] = torch.is_grad_enabled() and any(x.requires_grad for x in call[3:])
    except Exception as error:
        if ring.size == 1:
            raise
        refusal = error
    if ring.size > 1:
        agree(group, query.device, described, refusal)
    o, lse = _Attention.apply(*call)
    if is_packed:
        o, lse = o[0].transpose(0, 1), lse[0].transpose(0, 1)
    return (o, lse) if return_lse else o


def _of_tokens(ring, query, key, value, score_mod, mask_mod, callbacks, places, lengths):
    """(query, key, value, score_mod, mask_mod) of a call whose functions are plain ones of one long sequence for packed sequences."""
    is_packed = any(each is not None for each in places.values())
    dim = 0 if is_packed else 2
    whole = [x if x.dim() <= dim else x.new_empty(1).expand(*x.shape[:dim], ring.size * x.shape[dim], *x.shape[dim + 1 :]) for x in (query, key, value)]
    like_q, like_k, like_v = whole
    placed = placed_of(like_q, like_k, like_v, SequenceArguments(q_offsets=places["q_offsets"], kv_offsets=places["kv_offsets"], lengths=lengths))
    if callbacks.are_given():
        score_mod = graph_modifier(like_q, like_k, like_v, places, score_mod, **callbacks._asdict())
    if placed is None:
        return query, key, value, score_mod, mask_mod
    if lengths is not None:
        mask_mod = bounded(mask_mod, lengths, placed.batch, placed.most)
    functions = PackedTokens(placed, (like_q.shape[0], like_k.shape[0])).functions(score_mod, mask_mod)
    return *(x.transpose(0, 1)[None] for x in (query, key, value)), *functions


def _text_of_offsets(offsets):
    """A description of offsets, with their numbers where no device is waited for."""
    if not isinstance(offsets, torch.Tensor):
        return repr(offsets)
    return f"{offsets.tolist()}" if offsets.device.type == "cpu" else f"{list(offsets.shape)}"


def _described(tensors, lengths, options):
    """Name -> value of everything that must be equal on all processes."""
    described = {name: f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x) for name, x in tensors.items()}
    return described | {"lengths": lengths is not None} | {name: repr(option) for name, option in options.items()}


def _call(ring, query, key, value, score_mod, mask_mod, lengths, sink, options):
    """The arguments of _Attention of a call, whose parts are compiled: what is refused is refused before anything is sent."""
    if options["way"] not in WAYS:
        raise InvalidArgumentError(f"way: expected {' or '.join(map(repr, WAYS))}, found {options['way']!r}")
    if any(tensor.dim() != 4 for tensor in (query, key, value)) or query.shape[2] != key.shape[2]:
        raise InvalidArgumentError(
            f"expected as many keys as queries on each process, [batch, heads, sequence / processes, dim]; found {tuple(query.shape)} and {tuple(key.shape)}"
        )
    length, enable_gqa = query.shape[2], options["enable_gqa"]
    whole = ring.size * length
    if lengths is not None:
        mask_mod = bounded(mask_mod, lengths, query.shape[0], (whole, whole))
    stripes = Stripes.of(ring.size, length, options["striped"])
    ring.chunks = chunks_of(length, options["striped"])
    if ring.size == 1:  # whose call is flex_attention's
        stripes, ring.chunks = None, 1
    spec = CallSpec(offsets=Offsets(), **{name: options[name] for name in ("scale", "backends", "deterministic", "new_sizes")})
    unread = _learned_of_whole(ring, query, key, value, score_mod, mask_mod, enable_gqa, spec)
    queries, here_k, here_v = ring.like_chunks(query, key, value)
    parts = []
    for pair in ring.pairs:
        source, offsets, functions, step = pair.source, ring.offsets(pair, length), (score_mod, mask_mod), None
        if stripes is not None:
            step = Step(stripes, ring.rank, source if ring.way == "ring" else None, query.device)
            offsets, functions = Offsets(), (step.at_positions(score_mod, 3), step.at_positions(mask_mod, 2))
        part, read = part_of_call(queries, here_k, here_v, *functions, enable_gqa, spec._replace(offsets=offsets), step)
        parts.append(part)
        unread = {number: tensor for number, tensor in unread.items() if number not in read}
    for part in parts:
        compile_forward(queries, here_k, here_v, part.operands, part.wanted, part.backward, True, part.text)
    operands = [operand for part in parts for operand in part.operands]
    sink = None if sink is None else checked_sink(sink, query.shape[1]).float()
    return ring, [part._replace(operands=len(part.operands)) for part in parts], sink, query, key, value, *operands, *unread.values()


def _like_whole(ring, shard):
    """A tensor that looks as the whole sequence does, without its memory."""
    return shard.new_empty((1,)).expand(*shard.shape[:2], ring.size * shard.shape[2], shard.shape[3])


def _learned_of_whole(ring, query, key, value, score_mod, mask_mod, enable_gqa, spec):
    """id -> captured tensor, of those with gradients that the functions read somewhere in the whole sequence.

    One shard's scores may read fewer of them, and a captured tensor that is too short may be long enough for one shard. All processes must have
    equal gradients and refusals: a process that has none, or refuses alone, leaves the others waiting for it.
    """
    if ring.size == 1:
        return {}
    query, key, value = (_like_whole(ring, each) for each in (query, key, value))
    return learned_by_call(query, key, value, score_mod, mask_mod, enable_gqa, spec)


class _Pair(NamedTuple):
    """A chunk of this process' queries and one of the keys, which are here at a step."""

    step: int
    source: int  # whose keys they are, or 0 where all are gathered
    queries: int
    keys: int


class _Ring:
    """The processes, and how keys and values come from one to the other."""

    def __init__(self, group, way):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.way = way if self.size > 1 else "ring"  # one process gathers nothing
        self.chunks = 1  # of the sequence, that each process has
        self._pending = []  # transfers that nobody has waited for
        # Whose keys are here at each step: all of them in one step where they are gathered, which start at index 0.
        self.sources = [(self.rank - step) % self.size for step in range(self.size)] if self.way == "ring" else [0]

    @property
    def pairs(self):
        """The pairs of all steps, in their order. Gathered keys are one chunk."""
        of_keys = self.chunks if self.way == "ring" else 1
        return [_Pair(step, source, i, j) for step, source in enumerate(self.sources) for i in range(self.chunks) for j in range(of_keys)]

    def pairs_of(self, step):
        """(number of a pair, pair) of those of a step."""
        return [(number, pair) for number, pair in enumerate(self.pairs) if pair.step == step]

    def offsets(self, pair, length):
        """The Offsets of a pair's indices in the whole sequence."""
        tokens = length // self.chunks
        key = self._chunk(pair.source, pair.keys) if self.way == "ring" else 0
        return Offsets(query=self._chunk(self.rank, pair.queries) * tokens, key=key * tokens)

    def _chunk(self, rank, number):
        """The place in the sequence of a chunk of a process."""
        return self.chunks * self.size - 1 - rank if number else rank

    def split(self, *tensors) -> list[Any]:
        """The chunks of each tensor of queries."""
        return [_split_tokens(tensor, self.chunks) for tensor in tensors]

    def chunks_of_keys(self, *tensors):
        """The chunks of each tensor of keys that are here."""
        return [_split_tokens(tensor, self.chunks if self.way == "ring" else 1) for tensor in tensors]

    def like_chunks(self, query, key, value):
        """(queries, keys, values) that look as those of a pair do, and that nobody has filled."""
        of_keys = self.chunks if self.way == "ring" else 1
        queries = query.new_empty((*query.shape[:2], query.shape[2] // self.chunks, query.shape[3]))
        return queries, *(_split_tokens(self.room_for(each), of_keys)[0] for each in (key, value))

    def start_moving(self, tensors):
        """Sends these to the next process and takes the previous one's: what waits for them. All processes call it in turn."""
        sent = torch.cat([tensor.reshape(-1) for tensor in tensors])
        taken = torch.empty_like(sent)
        following, previous = ((self.rank + step) % self.size for step in (1, -1))
        operations = [
            dist.P2POp(dist.isend, sent, group=self.group, group_peer=following),
            dist.P2POp(dist.irecv, taken, group=self.group, group_peer=previous),
        ]
        pending = dist.batch_isend_irecv(operations), sent  # whose memory must live until then
        self._pending.append(pending)

        def wait():
            self._finish(pending)
            pieces = taken.split([tensor.numel() for tensor in tensors])
            return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors)]

        return wait

    def _finish(self, pending):
        self._pending.remove(pending)
        for transfer in pending[0]:
            transfer.wait()

    @contextlib.contextmanager
    def finished(self):
        """Leaves no transfer half done where something is raised: the group's next collective would meet it."""
        try:
            yield
        except Exception:
            for pending in list(self._pending):
                self._finish(pending)
            raise

    def room_for(self, shard):
        """A new tensor of what a part has of it, which nobody has filled."""
        length = shard.shape[2] * (1 if self.way == "ring" else self.size)
        return shard.new_empty((*shard.shape[:2], length, shard.shape[3]))

    def gathered(self, tensor):
        """All shards of the sequence."""
        shards = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(shards, tensor.contiguous(), group=self.group)
        whole = torch.cat(shards, dim=2)
        return whole if self.chunks == 1 else unstripe(whole, self.size, 2, DUAL_CHUNK_SWAP)

    def scattered_sum(self, tensor):
        """This process' shard of the sum over processes."""
        total = tensor.contiguous()
        dist.all_reduce(total, group=self.group)
        if self.chunks > 1:
            total = stripe(total, self.size, 2, DUAL_CHUNK_SWAP)
        return total.chunk(self.size, dim=2)[self.rank]


class _Attention(torch.autograd.Function):
    """Attention of one shard's queries to all keys.

    operands: those of each part, then captured tensors that no part reads, whose gradient is 0. sink: float32 [heads], or None."""

    @staticmethod
    def forward(ctx, ring, parts, sink, q, k, v, *operands):
        q = q.contiguous()
        with ring.finished():
            total, lse = _joined_parts(ring, parts, q, [k.contiguous(), v.contiguous()], operands)
        if sink is not None:  # as a key whose value is 0, before the output is rounded
            total, lse = _joined(total, lse, torch.zeros((), device=q.device), sink[:, None].expand_as(lse))
        o, rest = total.to(q.dtype), None
        if ctx.needs_input_grad[2] and o.dtype != total.dtype:
            rest = (total - o).to(o.dtype)  # what rounding took: a sink's gradient is the small sum of large numbers
        save(ctx, sink, rest, q, k, v, o, lse, *operands)
        ctx.ring, ctx.parts = ring, parts
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, d_lse):  # pyright: ignore[reportIncompatibleMethodOverride]
        sink, rest, q, k, v, o, lse, *operands = as_saved(ctx, ctx.saved_tensors, _SAVED)
        ring, parts = ctx.ring, ctx.parts
        # Even if nobody asks this process: the others may wait for what it passes on.
        d_o = torch.zeros_like(o) if d_o is None else d_o.contiguous()
        is_whole, given = len(parts) == ring.chunks and sink is None, list(_split(parts, operands))
        queries, like_keys, like_values = ring.like_chunks(q, k, v)
        (rows,), (upstream,) = ([each[0]] for each in ring.split(o, d_o))
        of_lse = None if d_lse is None else _split_tokens(d_lse, ring.chunks)[0]
        like_values, like_o, _ = _with_lse_columns(like_values, rows, upstream, of_lse)
        for part, tensors in zip(parts, given):
            compile_backward(queries, like_keys, like_values, like_o, tensors, part.wanted, _text_of_backward(part, d_lse, is_whole))
        with ring.finished():
            dq, of_keys, gradients = _added_gradients(ring, parts, q, [k.contiguous(), v.contiguous()], o, lse, d_o, d_lse, given, is_whole)
        used = sum(part.operands for part in parts)
        gradients += map(torch.zeros_like, operands[used:])  # read by other processes' parts alone
        if ring.way == "all_gather":
            of_keys = [ring.scattered_sum(each.float()) for each in of_keys]
        d_sink = None if sink is None else _sink_gradient(sink, o if rest is None else _sum(o, rest), lse, d_o, d_lse)
        return None, None, d_sink, dq.to(q.dtype), *(each.to(tensor.dtype) for each, tensor in zip(of_keys, (k, v))), *gradients


def _joined_parts(ring, parts, q, here, operands):
    """(o, lse) over the keys of all processes, before a sink. here: this process' keys and values."""
    if ring.way == "all_gather":
        here = [ring.gathered(each) for each in here]
    (queries,), given = ring.split(q), list(_split(parts, operands))
    results: list[Any] = [(None, None)] * ring.chunks
    steps = len(ring.sources)
    for step in range(steps):
        wait = ring.start_moving(here) if step + 1 < steps else None
        keys, values = ring.chunks_of_keys(*here)
        for number, pair in ring.pairs_of(step):
            part, tensors = parts[number], (queries[pair.queries], keys[pair.keys], values[pair.keys])
            o, part_lse, *_ = torch.ops.scoremod.attention_forward(*tensors, given[number], None, part.wanted, part.backward, True, part.text)
            total, lse = results[pair.queries]
            results[pair.queries] = _joined(total, lse, o, part_lse)
        if wait is not None:
            here = wait()
    return results[0] if ring.chunks == 1 else tuple(torch.cat(each, dim=2) for each in zip(*results))


def _added_gradients(ring, parts, q, own, o, lse, d_o, d_lse, given, is_whole):
    """(dq, gradients of the own keys and values, gradients of all parts' operands)."""
    if ring.way == "all_gather":
        own = [ring.gathered(each) for each in own]
    gradients = [[None] * part.operands for part in parts]
    steps = len(ring.sources)
    rows = list(zip(*ring.split(q, o, lse, d_o), [None] * ring.chunks if d_lse is None else _split_tokens(d_lse, ring.chunks)))
    dq: list[Any] = [None] * ring.chunks
    traveling: Any = None
    # The gradients of a shard of keys go around with it, a step behind: what was added up so far comes while the next part is computed. The own part
    # comes last: its gradients stay here, and those that the other processes have added up come home meanwhile.
    following = ring.start_moving(own) if steps > 1 else None
    for step in [*range(1, steps), 0]:
        here = own if step == 0 or following is None else following()
        following = ring.start_moving(here) if 0 < step < steps - 1 else None
        arriving = None if traveling is None else ring.start_moving(traveling)
        of_keys = list(zip(*ring.chunks_of_keys(*here)))
        d_here: list[Any] = [None] * len(of_keys)
        for number, pair in ring.pairs_of(step):
            (q, o, lse, d_o, d_lse), (k, v) = rows[pair.queries], of_keys[pair.keys]
            d_q, *d_keys, d_operands = _part_gradients(q, k, v, o, lse, d_o, d_lse, given[number], parts[number], is_whole)
            dq[pair.queries] = _sum_of(dq[pair.queries], d_q)
            d_here[pair.keys] = d_keys if d_here[pair.keys] is None else list(map(_sum, d_here[pair.keys], d_keys))
            for i, gradient in zip(parts[number].wanted, d_operands):
                gradients[number][i] = gradient
        joined = list(map(_as_one, zip(*d_here)))
        traveling = joined if arriving is None else list(map(_sum, arriving(), joined))
    return _as_one(dq), traveling, list(itertools.chain(*gradients))


def _split_tokens(tensor, chunks):
    return [tensor] if chunks == 1 else [each.contiguous() for each in tensor.chunk(chunks, dim=2)]


def _as_one(chunks):
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)


def _sum_of(total, part):
    return part if total is None else _sum(total, part)


def _with_lse_columns(v, o, d_o, d_lse):
    return (v, o, d_o) if d_lse is None else with_lse_columns(v, o, d_o, d_lse, by_row_sum=False)


def _text_of_backward(part, d_lse, is_whole):
    """The call's text. is_whole: the part's keys are all that there are."""
    return part.text if is_whole and d_lse is None else with_given_deltas(part.text)


def _part_gradients(q, k, v, o, lse, d_o, d_lse, operands, part, is_whole):
    """(dq, dk, dv, gradients of the wanted operands) of the queries' attention to some keys, from the whole row's o and lse."""
    dim, text = v.shape[-1], _text_of_backward(part, d_lse, is_whole)
    v, o, d_o = _with_lse_columns(v, o, d_o, d_lse)
    dq, dk, dv, gradients = torch.ops.scoremod.attention_backward(q, k, v, o, lse, d_o, operands, None, part.wanted, text)
    return dq, dk, dv[..., :dim], gradients


def _sink_gradient(sink, o, lse, d_o, d_lse):
    """That of the sink of each head, whose term each row's sum has."""
    of_rows = sink[:, None]
    weights = torch.exp(of_rows - lse).nan_to_num_(nan=0.0)  # -inf - -inf: neither a key nor a sink
    weights = weights.masked_fill_(torch.isposinf(of_rows), 1)
    of_scores = -(d_o.float() * o.float()).sum(dim=-1)
    return (weights * (of_scores if d_lse is None else of_scores + d_lse)).sum(dim=(0, 2))


def _sum(x, y):
    return x.float() + y.float()


def _split(parts, operands):
    first = 0
    for part in parts:
        yield list(operands[first : first + part.operands])
        first += part.operands


def _joined(total, lse, o, part_lse):
    """(o, lse) of the softmax over both sets of keys, o in float32 unless it is of one set. A row without a key in one has LSE -inf there."""
    if total is None:
        return o, part_lse
    joined = torch.logaddexp(lse, part_lse)
    # -inf - -inf: no key in either.
    weights = (torch.exp(each - joined).nan_to_num_(nan=0.0)[..., None] for each in (lse, part_lse))
    return total * next(weights) + o * next(weights), joined
