"""One attention call as a plain value, and the text that stands for it in PyTorch's operators and graphs."""

import functools
import json
from typing import Any, NamedTuple

import torch

from scoremod.call_spec import Offsets
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.float8_factors import wrong_dtypes
from scoremod.places import FACTORS, Paged, Ragged, RaggedPaged
from scoremod.program import Node, OperandDecl, Program, operand_name
from scoremod.signatures import Memory
from scoremod.sizes import sizes_of

DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.bool: "bool",
}
# Only query, key, value and the output have these dtypes.
FLOAT8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
TENSOR_DTYPES = {**DTYPE_NAMES, **FLOAT8}
# PyTorch's name of a kind of device -> scoremod's of its memory.
MEMORY: dict[str, Memory] = {"cpu": "host", "cuda": "cuda"}
LAYOUT = "BHSD"
# Stands for offsets that come with each call, in what is kept for all of them.
_OF_EACH_CALL = Offsets(-1, -1, -1, -1)
# The kinds of places of sequences, where the layout doesn't describe them.
RAGGED, PAGED, MIXED = "ragged", "paged", "mixed"
_PLACES = {RAGGED: Ragged, PAGED: Paged, MIXED: RaggedPaged}


class Call(NamedTuple):
    """Everything about a call but its tensors. Two calls are the same computation exactly when they are equal."""

    program: Any  # a Program; None in the options of a call that isn't traced yet
    scale: float | None = None
    backends: tuple = ()
    deterministic: bool = False
    offsets: Offsets = Offsets()
    dropout: float = 0.0
    max_scores: bool = False
    given_deltas: bool = False  # whether a backward's o and lse are not, or not only, those of its own forward
    place: str | None = None  # RAGGED, PAGED or MIXED: where sequences lie, if not as the layout says
    longest: tuple = (None, None)  # the most queries and keys of a ragged sequence; None for all tokens
    lengths: bool = False  # whether keys have a length in each batch
    sink: bool = False  # whether each head has a learned sink
    dtype_o: str | None = None  # of the output, where it isn't query's
    amax_o: bool = False  # whether the largest magnitude in the output is asked for
    factors: int = 0  # the number of FACTORS that a call with FP8 tensors has
    new_sizes: str | None = None  # as Attention's
    q_start: bool = False  # whether the offsets are a q_start alone
    dtype_kv: str | None = None  # of an FP8 KV cache under a query of more bits

    def text(self):
        return json.dumps(self._asdict())

    @property
    def has_offsets(self):
        """Whether index offsets come with the call."""
        return self.q_start or any(self.offsets)

    def structure(self):
        """The call with any index offsets."""
        return self._replace(offsets=_OF_EACH_CALL) if self.has_offsets else self

    @property
    def is_ragged(self):
        """Whether queries lie one sequence after the other."""
        return self.place in (RAGGED, MIXED)

    @property
    def is_paged(self):
        """Whether key and value are a paged KV cache."""
        return self.place in (PAGED, MIXED)

    @property
    def has_backward(self):
        """Whether its problem may have one: neither pages nor FP8 caches have gradients."""
        return not self.is_paged and self.dtype_kv is None

    def limits(self):
        """The axes that may have more indices than any sequence needs."""
        return ("q_idx", "kv_idx") if self.place == RAGGED else ("q_idx",) if self.place == MIXED else ()

    def bound(self):
        """The names of the tensors after the operands (docs/reference/problem.md), in their order."""
        of_place = () if self.place is None else _PLACES[self.place].bound
        return (*of_place, *["lengths_kv"] * self.lengths, *["sink"] * self.sink, *self.factor_names())

    def factor_names(self):
        """The names of the factors. A query of more bits than its keys has none."""
        first = 0 if self.dtype_kv is None else 1
        return FACTORS[first : first + self.factors]

    def output_dtype(self, q):
        """That of the output of a call with this query."""
        return q.dtype if self.dtype_o is None else next(dtype for dtype, name in TENSOR_DTYPES.items() if name == self.dtype_o)

    def names(self):
        """The names of all operands, the program's first."""
        return (*map(operand_name, range(len(self.program.operands))), *self.bound())

    def placed(self, q, k, bound):
        """The Ragged, Paged or RaggedPaged of tensors of such a call; None where they lie as the layout says. bound: the tensors of bound()."""
        if self.place is None:
            return None
        if self.place == PAGED:
            return Paged(bound[0].shape[1])
        sequences = bound[0].shape[0] - 1
        longest = [self.longest_of(side, tokens, sequences) for side, tokens in enumerate((q.shape[0], k.shape[0]))]
        return Ragged(sequences, *longest) if self.place == RAGGED else RaggedPaged(sequences, longest[0], bound[1].shape[1])

    def longest_of(self, side, tokens, sequences):
        """The most queries (side 0) or keys (side 1) of a sequence, or what it takes for all to have room in one: some tokens may be in none."""
        most = self.longest[side]
        return tokens if most is None else max(most, -(-tokens // sequences))

    def sizes(self, q, k, v, bound, *, may_be_empty=False):
        """The Sizes of these tensors. may_be_empty: as sizes_of() has it."""
        placed = self.placed(q, k, bound)
        of = sizes_of if placed is None else placed.sizes
        return of(LAYOUT, q, k, v, may_be_empty=may_be_empty)


@functools.lru_cache(maxsize=1024)
def call_of(text):
    """The Call that text() was made of."""
    given = Call(**json.loads(text))
    nodes, operands, value, keep = given.program
    nodes = tuple(Node(op, type, tuple(args), payload) for op, type, args, payload in nodes)
    operands = tuple(OperandDecl(type, tuple(axes), rank) for type, axes, rank in operands)
    program = Program(nodes, operands, value, keep)
    return given._replace(program=program, backends=tuple(given.backends), offsets=Offsets(*given.offsets), longest=tuple(given.longest))


@functools.lru_cache(maxsize=1024)
def structure_of(text):
    """The text of Call.structure()."""
    return call_of(text).structure().text()


@functools.lru_cache(maxsize=1024)
def of_any_lengths(text):
    """structure_of() without the most tokens of a ragged sequence, which come with a call as its other sizes do."""
    return call_of(text)._replace(longest=(None, None)).text()


@functools.lru_cache(maxsize=1024)
def at_offsets(text, offsets):
    """The text of a call with these offsets, which may be None for none, of that of its structure."""
    return text if offsets is None else call_of(text)._replace(offsets=offsets).text()


@functools.lru_cache(maxsize=1024)
def with_given_deltas(text):
    """The text of the same call, of which a backward takes the rows' sums of o d_o as they are bound."""
    return call_of(text)._replace(given_deltas=True).text()


def check_places(query, key, value):
    """Raises where query, key and value are no dense tensors on one device that scoremod runs on."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(f"{name}: expected a torch.Tensor, found {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout != torch.strided:
            found = "a nested one" if tensor.is_nested else f"layout {tensor.layout}"
            raise UnsupportedError(f"{name}: expected a dense tensor, found {found}; sequences one after the other go with q_offsets=")
    if len({tensor.device for tensor in tensors.values()}) != 1:
        found = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise InvalidArgumentError(f"expected query, key and value on one device; found {found}")
    if query.device.type not in MEMORY:
        raise UnsupportedError(f"expected tensors on {' or '.join(MEMORY)}, found {query.device}")


def check_rank(name, tensor):
    """Raises InvalidArgumentError for a tensor that has neither the dimensions of a batch nor those of sequences one after the other."""
    if tensor.dim() not in (3, 4):
        raise InvalidArgumentError(
            f"{name}: expected 4 dimensions [batch, heads, sequence, dim], or 3, [tokens, heads, dim], with q_offsets, found shape {tuple(tensor.shape)}"
        )


def has_float8_cache(query, key):
    """Whether keys are FP8 and queries are not."""
    return query.dtype not in FLOAT8 and key.dtype in FLOAT8


def check_dtypes(query, key, value):
    """Raises InvalidArgumentError unless query, key and value have one of the dtypes that scoremod computes in. Key and value may be FP8 alone."""
    tensors = {"query": query, "key": key, "value": value}
    is_known = TENSOR_DTYPES.get(query.dtype) in ("f32", "f16", "bf16", *FLOAT8.values())
    if not is_known or key.dtype != value.dtype or (key.dtype != query.dtype and not has_float8_cache(query, key)):
        remedy = "convert them"
        if query.dtype in (torch.float32, torch.float16, torch.bfloat16):
            remedy = f"convert key and value: key.to({query.dtype})"
        raise wrong_dtypes({name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}, remedy)
