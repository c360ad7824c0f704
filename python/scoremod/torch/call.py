"""One attention call as a plain value, and the text that stands for it in PyTorch's operators and graphs."""

import functools
import json
from typing import NamedTuple

import torch

from scoremod.attention import Offsets
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.program import Node, OperandDecl, Program

DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.bool: "bool",
}
# PyTorch's name of a kind of device -> scoremod's of its memory.
MEMORY = {"cpu": "host", "cuda": "cuda"}


class Call(NamedTuple):
    """Everything about a call but its tensors. Two calls are the same computation exactly when they are equal."""

    program: Program
    scale: float | None = None
    backends: tuple = ()
    deterministic: bool = False
    offsets: Offsets = Offsets()
    dropout: float = 0.0
    max_scores: bool = False
    given_deltas: bool = False  # whether a backward's o and lse are not, or not only, those of its own forward

    def text(self):
        return json.dumps(self)


@functools.lru_cache(maxsize=1024)
def call_of(text):
    """The Call that text() was made of."""
    program, scale, backends, deterministic, offsets, *others = json.loads(text)
    nodes, operands, value, keep = program
    nodes = tuple(Node(op, type, tuple(args), payload) for op, type, args, payload in nodes)
    operands = tuple(OperandDecl(type, tuple(axes), rank) for type, axes, rank in operands)
    return Call(Program(nodes, operands, value, keep), scale, tuple(backends), deterministic, Offsets(*offsets), *others)


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
            raise UnsupportedError(f"{name}: expected a dense tensor, found layout {tensor.layout}; documents in one sequence are a mask_mod")
    if len({tensor.device for tensor in tensors.values()}) != 1:
        found = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise InvalidArgumentError(f"expected query, key and value on one device; found {found}")
    if query.device.type not in MEMORY:
        raise UnsupportedError(f"expected tensors on {' or '.join(MEMORY)}, found {query.device}")


def check_dtypes(query, key, value):
    """Raises InvalidArgumentError unless query, key and value have one of the dtypes that scoremod computes in."""
    tensors = {"query": query, "key": key, "value": value}
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or DTYPE_NAMES.get(query.dtype) not in ("f32", "f16", "bf16"):
        found = ", ".join(f"{name} {str(tensor.dtype).removeprefix('torch.')}" for name, tensor in tensors.items())
        raise InvalidArgumentError(f"expected query, key and value of one dtype, float32, float16 or bfloat16; found {found}")
