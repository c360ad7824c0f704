"""Calls with arguments of any kind: each is right in form or refused with an error of scoremod, and nothing else is ever raised."""

import math
import random as pseudo_random
import warnings

import pytest
import torch

import scoremod
from scoremod import Offsets
from scoremod.torch import flex_attention

CALLS = 400
INTEGERS = [0, 1, 2, 3, 7, -1, -5, 2**31, 2**63, -(2**63), 10**30]
FLOATS = [0.0, 1.0, 0.5, -1.0, 1e-40, 1e40, math.nan, math.inf, -math.inf, 2.0**-149]
OTHERS = [None, True, False, "", "causal", "causal_bottom_right", "kausal", b"x", (), [], {}, object(), 1j, lambda *arguments: arguments[0]]
DTYPES = [torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool, torch.float8_e4m3fn]
TENSORS = ("query", "key", "value", "sink", "q_offsets", "kv_offsets", "page_table", "lengths", "q_start", "out", "descale_q")
NUMBERS = ("scale", "dropout_p", "max_length", "q_start", "lengths", "scale_o", "deterministic", "enable_gqa", "return_lse")


def tensor(choose, shape=None, dtype=None):
    """A small tensor that may be empty, of any rank, dtype and strides, with any values."""
    shape = [choose.choice([0, 1, 1, 2, 3, 4, 8]) for _ in range(choose.randint(0, 5))] if shape is None else shape
    dtype = dtype or choose.choice(DTYPES)
    order = choose.sample(range(len(shape)), len(shape)) if choose.random() < 0.3 else range(len(shape))
    gaps = choose.choice([1, 1, 1, 2])
    made = torch.randn([gaps * shape[i] for i in order])[tuple(slice(None, None, gaps) for _ in shape)]
    made = made.permute([list(order).index(i) for i in range(len(shape))])
    if choose.random() < 0.1 and made.numel():
        made[(0,) * made.dim()] = torch.tensor(choose.choice(FLOATS))
    made = made.to(dtype)
    return made.requires_grad_() if dtype.is_floating_point and dtype.itemsize > 1 and choose.random() < 0.2 else made


def right_tensors(choose):
    batch, heads, heads_kv = choose.choice([1, 2]), choose.choice([1, 2, 4]), 1
    queries, keys, dim = choose.choice([0, 1, 3, 5]), choose.choice([0, 1, 4, 6]), choose.choice([1, 8, 16])
    heads_kv = choose.choice([heads, heads, 1])
    dtype = choose.choice([torch.float32, torch.float32, torch.bfloat16])
    shapes = [(batch, heads, queries, dim), (batch, heads_kv, keys, dim), (batch, heads_kv, keys, dim)]
    return dict(zip(("query", "key", "value"), (tensor(choose, list(shape), dtype) for shape in shapes)))


def functions(choose):
    bias, ids = torch.randn(3), torch.tensor([0, 1, 5])
    return choose.choice(
        [
            None,
            lambda s, b, h, i, j: s + bias[h],
            lambda s, b, h, i, j: s * (i - j) / (i - j),
            lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
            lambda s, b, h, i, j: s + bias[ids[i]],
            lambda s, b, h, i, j: s if i > j else -s,
            lambda s, b, h: s,
            lambda s, b, h, i, j: None,
            lambda s, b, h, i, j: i >= j,
            lambda s, b, h, i, j: bias,
            lambda s, b, h, i, j: 1 / 0,
            3,
        ]
    )


def value_of(choose, name):
    kind = choose.random()
    if name in TENSORS and kind < 0.7:
        return tensor(choose, dtype=choose.choice([torch.int32, torch.int64, None]) if name not in ("query", "key", "value") else None)
    if name in NUMBERS and kind < 0.7:
        return choose.choice(INTEGERS + FLOATS)
    if name in ("score_mod", "mask_mod") and kind < 0.8:
        return functions(choose)
    if name == "offsets" and kind < 0.7:
        return Offsets(*[choose.choice(INTEGERS[:5]) for _ in range(choose.randint(0, 4))])
    if name == "backends" and kind < 0.7:
        return choose.choice(["cpu", "reference", "cudnn", "-cpu", ["cpu", "reference"], "none", ["-cpu", "-reference"]])
    return choose.choice([*INTEGERS, *FLOATS, *OTHERS, tensor(choose)])


NAMES = (
    *TENSORS, *NUMBERS, "score_mod", "score_mod", "mask_mod", "mask_mod", "block_mask", "kernel_options", "return_aux", "return_amax_o", "backends",
    "new_sizes", "offsets", "out_dtype", "causal", "is_causal", "attn_mask",
)  # fmt: skip


def drawn(seed):
    choose = pseudo_random.Random(seed)
    torch.manual_seed(seed)
    arguments = right_tensors(choose)
    for _ in range(choose.choice([0, 1, 1, 2, 3])):
        name = choose.choice(NAMES)
        arguments[name] = value_of(choose, name)
    return arguments


def shown(arguments):
    return {
        name: (tuple(each.shape), each.stride(), each.dtype, each.requires_grad) if isinstance(each, torch.Tensor) else each for name, each in arguments.items()
    }


def held(arguments):
    """Runs a call, and the backward where there is one. Whether it was taken."""
    try:
        found = flex_attention(**arguments)
    except scoremod.Error as error:
        assert not isinstance(error, scoremod.BugError), error
        assert len(str(error)) > 10, error
        return False
    except ZeroDivisionError:  # a function's own
        return False
    o = found[0] if isinstance(found, tuple) else found
    query, value = arguments["query"], arguments["value"]
    assert o.shape == (*query.shape[:-1], value.shape[-1]), (o.shape, query.shape)
    if o.requires_grad:
        try:
            o.float().sum().backward()
        except scoremod.Error as error:
            assert not isinstance(error, scoremod.BugError), error
    return True


@pytest.mark.filterwarnings("ignore")
def test_calls_of_any_kind(seed):
    taken = 0
    for number in range(CALLS):
        arguments = drawn(seed + number)
        try:
            taken += held(arguments)
        except BaseException:
            print("draw", seed + number, shown(arguments))
            raise
    warnings.resetwarnings()
    assert CALLS / 10 < taken < CALLS
