"""Attention over sequences that are sharded over processes: each holds as many queries and keys as the others, in the order of their ranks.

"ring": the shards of keys and values go around, one step at a time, while attention to the shard that is here is computed. No process holds
more than two shards beside its own. "all_gather": each process gathers all keys and values, and computes in one call.

The program sees global indices. The backward computes each part from the whole row's output and log-sum-exp, so that parts need not be kept.
"""

import contextlib
import itertools
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._functorch import peek_interpreter_stack

from scoremod.attention import Offsets
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.signatures import Backends, NewSizes
from scoremod.torch.agreement import agree
from scoremod.torch.api import in_autocast_dtype, learned_by_call, part_of_call
from scoremod.torch.call_options import CallSpec
from scoremod.torch.attention_ops import compile_backward, compile_forward, with_lse_columns
from scoremod.torch.call import check_places, with_given_deltas
from scoremod.torch.lengths_and_sinks import bounded, checked_sink
from scoremod.torch.saved_tensors import as_saved, save
from scoremod.torch.signatures import Lengths, MaskMod, ScoreMod
from scoremod.torch.stripes import Step, Stripes

WAYS = ("ring", "all_gather")
_SAVED = ("sink", "output's rest", "query", "key", "value", "output", "log-sum-exp")


def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: ScoreMod | None = None,
    *,
    group: Any,
    mask_mod: MaskMod | None = None,
    way: Literal["ring", "all_gather"] = "ring",
    striped: bool | int = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    lengths: Lengths = None,
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
        [batch, heads, sequence / processes, dim], on each process of `group` alike.
    score_mod, mask_mod, scale, enable_gqa, return_lse, lengths, sink, backends, deterministic, new_sizes
        flex_attention's.
    group : ProcessGroup or DeviceMesh
        A process group of torch.distributed, or a mesh of one dimension. Shards lie along the sequence in the order of its ranks.
    way : {"ring", "all_gather"}
        Whether keys and values go round in a ring, or are gathered.
    striped : bool or int
        Which positions a process has: the next block of them without it. A number of tokens deals them out in stripes of so many, in turn; True is 1.
        With a causal mask every process then has as much to do. stripe() and unstripe() reorder a whole sequence, whose blocks are then the shards.

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
    if torch.compiler.is_dynamo_compiling() or peek_interpreter_stack() is not None:
        raise UnsupportedError("context_parallel_attention: expected an eager call, found one within torch.compile or torch.func; call it outside")
    check_places(query, key, value)
    ring, described, refusal = _Ring(group, way), {}, None
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
        described = _described({"query": query, "key": key, "value": value, "sink": sink}, lengths, options)
        call = _call(ring, query, key, value, score_mod, mask_mod, lengths, sink, options)
        described["gradients"] = torch.is_grad_enabled() and any(x.requires_grad for x in call[3:])
    except Exception as error:
        if ring.size == 1:
            raise
        refusal = error
    if ring.size > 1:
        agree(group, query.device, described, refusal)
    o, lse = _Attention.apply(*call)
    return (o, lse) if return_lse else o


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
    if ring.size == 1:  # whose call is flex_attention's
        stripes = None
    spec = CallSpec(options["scale"], options["backends"], options["deterministic"], Offsets(), options["new_sizes"])
    unread = _learned_of_whole(ring, query, key, value, score_mod, mask_mod, enable_gqa, spec)
    parts = []
    for source in ring.sources:
        offsets, functions, step = Offsets(query=ring.rank * length, key=source * length), (score_mod, mask_mod), None
        if stripes is not None:
            step = Step(stripes, ring.rank, source if ring.way == "ring" else None, query.device)
            offsets, functions = Offsets(), (step.at_positions(score_mod, 3), step.at_positions(mask_mod, 2))
        like_keys, like_values = (key, value) if ring.way == "ring" else (_like_whole(ring, each) for each in (key, value))
        part, read = part_of_call(query, like_keys, like_values, *functions, enable_gqa, spec._replace(offsets=offsets), step)
        parts.append(part)
        unread = {number: tensor for number, tensor in unread.items() if number not in read}
    here_k, here_v = (ring.room_for(each) for each in (key, value))
    for part in parts:
        compile_forward(query.contiguous(), here_k, here_v, part.operands, part.wanted, part.backward, True, part.text)
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


class _Ring:
    """The processes, and how keys and values come from one to the other."""

    def __init__(self, group, way):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.way = way if self.size > 1 else "ring"  # one process gathers nothing
        self._pending = []  # transfers that nobody has waited for
        # Whose keys are here at each step: all of them in one step where they are gathered, which start at index 0.
        self.sources = [(self.rank - step) % self.size for step in range(self.size)] if self.way == "ring" else [0]

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
        return torch.cat(shards, dim=2)

    def scattered_sum(self, tensor):
        """This process' shard of the sum over processes."""
        total = tensor.contiguous()
        dist.all_reduce(total, group=self.group)
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
    def backward(ctx, d_o, d_lse):
        sink, rest, q, k, v, o, lse, *operands = as_saved(ctx, ctx.saved_tensors, _SAVED)
        ring, parts = ctx.ring, ctx.parts
        # Even if nobody asks this process: the others may wait for what it passes on.
        d_o = torch.zeros_like(o) if d_o is None else d_o.contiguous()
        is_whole, given = len(parts) == 1 and sink is None, list(_split(parts, operands))
        like_keys, (like_values, like_o, _) = ring.room_for(k), _with_lse_columns(ring.room_for(v), o, d_o, d_lse)
        for part, tensors in zip(parts, given):
            compile_backward(q, like_keys, like_values, like_o, tensors, part.wanted, _text_of_backward(part, d_lse, is_whole))
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
    total: Any = None
    lse: Any = None
    for number, (part, tensors) in enumerate(zip(parts, _split(parts, operands))):
        wait = ring.start_moving(here) if number + 1 < len(parts) else None
        o, part_lse, *_ = torch.ops.scoremod.attention_forward(q, *here, tensors, None, part.wanted, part.backward, True, part.text)
        total, lse = _joined(total, lse, o, part_lse)
        if wait is not None:
            here = wait()
    return total, lse


def _added_gradients(ring, parts, q, own, o, lse, d_o, d_lse, given, is_whole):
    """(dq, gradients of the own keys and values, gradients of all parts' operands)."""
    if ring.way == "all_gather":
        own = [ring.gathered(each) for each in own]
    gradients = [[None] * part.operands for part in parts]
    dq: Any = None
    traveling: Any = None
    # The gradients of a shard of keys go around with it, a step behind: what was added up so far comes while the next part is computed. The own part
    # comes last: its gradients stay here, and those that the other processes have added up come home meanwhile.
    following = ring.start_moving(own) if len(parts) > 1 else None
    for number in [*range(1, len(parts)), 0]:
        here = own if number == 0 or following is None else following()
        following = ring.start_moving(here) if 0 < number < len(parts) - 1 else None
        arriving = None if traveling is None else ring.start_moving(traveling)
        d_q, *d_here, d_operands = _part_gradients(q, *here, o, lse, d_o, d_lse, given[number], parts[number], is_whole)
        dq = d_q if dq is None else _sum(dq, d_q)
        traveling = d_here if arriving is None else list(map(_sum, arriving(), d_here))
        for i, gradient in zip(parts[number].wanted, d_operands):
            gradients[number][i] = gradient
    return dq, traveling, list(itertools.chain(*gradients))


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
