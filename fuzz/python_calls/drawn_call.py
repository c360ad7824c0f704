"""A call of flex_attention that an input's bytes describe: a right one, and up to three mistakes in it."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

from python_calls.choices import Choices
from python_calls.functions import RIGHT_MASK_MODS, RIGHT_SCORE_MODS, WRONG_MASK_MODS, WRONG_SCORE_MODS, Modifier, Sizes
from python_calls.truth import FLOAT8, FLOATS
from scoremod import Offsets
from scoremod.float8_factors import scale_extents

DTYPES = (*FLOATS, *FLOAT8, torch.float64, torch.int32, torch.int64, torch.int8, torch.bool, torch.complex64)
NUMBERS = (0, 1, -1, 2, 7, 2**31, -(2**63), 10**30, 0.5, -1.5, 1e-40, 1e39, math.nan, math.inf, -math.inf)
OTHERS = (None, True, False, "", "causal", "causal_bottom_right", "bottom_right", "cpu", b"x", (), [], {}, 1j, [1, 2], (None, None), object, len, torch.float32)
NAMES = (
    "query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa", "return_lse", "kernel_options", "return_aux", "return_amax_o", "mask_mod",
    "lengths", "q_offsets", "kv_offsets", "page_table", "max_length", "sink", "backends", "deterministic", "new_sizes", "q_start", "token_list", "offsets",
    "dropout_p", "descale_q", "descale_k", "descale_v", "scale_o", "out_dtype", "out", "is_causal",
)  # fmt: skip
CONTEXTS = ("plain", "no_grad", "inference_mode", "autocast", "deterministic", "float64 by default")
PLACES = ("dense", "varlen", "paged", "mixed", "listed")


class Call(NamedTuple):
    """arguments: name -> argument, in which a Modifier stands for a function. context: one of CONTEXTS. mistakes: the names of wrong arguments."""

    arguments: dict[str, Any]
    context: str
    mistakes: list[str]
    seed: int
    times: int  # how often it is called: what was seen before may be known

    def given(self, replaced=lambda tensor: tensor):
        """The arguments, with other tensors in place of those that can have gradients."""
        return {name: self._given(each, replaced) for name, each in self.arguments.items()}

    def _given(self, argument, replaced):
        if isinstance(argument, Modifier):
            return argument.of(replaced)
        return replaced(argument) if isinstance(argument, torch.Tensor) else argument

    def tensors(self):
        """All tensors of the call, each once."""
        found = {}
        for each in self.arguments.values():
            parts = each.tensors if isinstance(each, Modifier) else each if isinstance(each, (tuple, list)) else (each,)
            found |= {id(part): part for part in parts if isinstance(part, torch.Tensor)}
        return list(found.values())

    def shown(self):
        """A text for people."""
        texts = {name: _text(each) for name, each in self.arguments.items()}
        return "\n".join([f"context: {self.context}, mistakes: {self.mistakes}, times: {self.times}", *(f"{name}={text}" for name, text in texts.items())])


def _text(argument):
    if isinstance(argument, torch.Tensor):
        kind = f"{type(argument).__name__} {argument.dtype} {tuple(argument.shape)} strides {argument.stride() if argument.layout == torch.strided else None}"
        small = argument.detach().tolist() if argument.device.type == "cpu" and argument.layout == torch.strided and argument.numel() < 9 else "..."
        return f"{kind} {small}{' with gradient' if argument.requires_grad else ''}"
    if isinstance(argument, Modifier):
        function = argument.make(*argument.tensors)
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", "?")
        return f"{getattr(function, '__qualname__', function)!r} of line {line} of functions.py, with {', '.join(map(_text, argument.tensors)) or 'no tensors'}"
    return f"({', '.join(map(_text, argument))})" if isinstance(argument, (tuple, list)) else _short(argument)


def _short(argument):
    try:
        return f"{argument!r:.200}"
    except Exception:  # PyTorch's own, for a BlockMask of sizes of 0
        return type(argument).__name__


class _Drawing:
    def __init__(self, data):
        self.choices = Choices(data)
        self.seed = self.choices.byte()
        self.random = torch.Generator().manual_seed(self.seed)

    def tensor(self, shape, dtype=torch.float32, below=None, has_gradient=False):
        """A tensor of random numbers in any strides; of integers from 0 on, if `below` is given."""
        if below is not None:
            made = torch.randint(0, max(below, 1), shape, generator=self.random, dtype=torch.int64).to(dtype)
        else:
            made = torch.randn(shape, generator=self.random, dtype=torch.float32)
            special = self.choices.right_or(None, 0.0, 1e-40, 30.0, 1e30, math.nan, math.inf, -math.inf)
            if special is not None and made.numel():
                made[(0,) * made.dim()] = special
            made = made.to(dtype)
        made = _laid(made, self.choices.byte())
        return made.requires_grad_() if has_gradient and made.is_floating_point() and dtype.itemsize > 1 and not made.is_inference() else made

    def modifier(self, right, wrong, sizes, has_gradients):
        """One of these functions, or None."""
        number = self.choices.byte()
        if number == 0 or number > len(right) + len(wrong):
            return None
        if number > len(right):
            return Modifier(wrong[number - len(right) - 1])
        make, shapes = right[number - 1]
        return Modifier(make, tuple(self._captured(*each, has_gradients) for each in shapes(sizes)))

    def _captured(self, kind, shape, has_gradient):
        shape = list(shape)
        if shape:  # a size off by one, or a dimension too many or too few
            change = self.choices.right_or(None, 1, -1, "less", "more")
            shape = shape[1:] if change == "less" else [1, *shape] if change == "more" else [max(0, shape[0] + (change or 0)), *shape[1:]]
        if kind == "i":
            return self.tensor(shape, self.choices.right_or(torch.int32, torch.int64, torch.uint8, torch.int16, torch.bool), 3)
        dtype = self.choices.right_or(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.complex64, torch.float8_e4m3fn)
        return self.tensor(shape, dtype, has_gradient=has_gradient)


def _laid(made, layout):
    """The tensor in one of several layouts of memory."""
    last = made.dim() - 1
    if layout == 1 and last > 1:
        return made.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == 2 and last >= 0:
        return torch.stack([made, made], -1)[..., 0]
    if layout == 3 and last >= 0:
        return made[:1].expand(made.shape) if made.shape[0] else made
    if layout == 4 and last >= 0:
        return made[..., :1].expand(made.shape) if made.shape[-1] else made
    if layout == 5:
        return torch.cat([made.reshape(-1)[:1], made.reshape(-1)])[made.numel() and 1 :].view(made.shape)
    if layout == 6 and last > 0:
        return made.permute(*range(last, -1, -1)).contiguous().permute(*range(last, -1, -1))
    if layout == 7 and last >= 0:
        return torch.cat([made, made[..., :1]], -1)[..., : made.shape[-1]]
    if layout == 8 and made.is_floating_point():
        return torch.nn.Parameter(made, requires_grad=False)
    if layout == 9 and made.dtype == torch.float32:
        return torch.complex(made, -made).conj().imag
    if layout == 10:
        with torch.inference_mode():
            return made.clone()
    return made


def draw(data):
    """The Call of an input."""
    drawing = _Drawing(data)
    choices = drawing.choices
    place = choices.right_or(*PLACES)
    context = choices.right_or(*CONTEXTS)
    times = choices.right_or(1, 2, 3)
    if place in ("varlen", "mixed"):
        arguments, sizes = _of_sequences(drawing, place == "mixed")
    else:
        arguments, sizes = _of_batches(drawing, place)
    gradients = choices.flags()
    arguments["score_mod"] = drawing.modifier(RIGHT_SCORE_MODS, WRONG_SCORE_MODS, sizes, gradients[0])
    arguments["mask_mod"] = drawing.modifier(RIGHT_MASK_MODS, WRONG_MASK_MODS, sizes, False)
    if choices.right_or(False, True):
        arguments["sink"] = drawing.tensor((choices.right_or(sizes.heads, 1),), choices.right_or(torch.float32, *FLOATS[1:]), has_gradient=gradients[1])
    _add_positions(drawing, arguments, sizes, place)
    _add_options(drawing, arguments, sizes)
    mistakes = [choices.among(*NAMES) for _ in range(choices.right_or(0, 1, 1, 2, 3))]
    for name in mistakes:
        arguments[name] = _wrong(drawing, arguments.get(name))
    for name, has_gradient in zip(("query", "key", "value"), gradients[2:]):
        tensor = arguments[name]
        if has_gradient and isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dtype not in FLOAT8 and not tensor.is_inference():
            arguments[name] = tensor.detach().requires_grad_()
    first = ("query", "key", "value")
    return Call({name: each for name, each in arguments.items() if each is not None or name in first}, context, mistakes, drawing.seed, times)


def _heads_and_dims(choices):
    """(query heads, KV heads, dim of query and key, dim of value, dtype of query, dtype of key and value)."""
    heads_kv, group = choices.among(1, 2, 1, 0), choices.among(1, 2, 3)
    dim = choices.among(8, 4, 16, 1, 3, 12, 64)
    dtype = choices.right_or(torch.float32, *DTYPES[1:])
    return heads_kv * group, heads_kv, dim, choices.right_or(dim, 8, 1, 5, 0), dtype, choices.right_or(dtype, *FLOAT8)


def _of_batches(drawing, place):
    choices = drawing.choices
    batch, queries, keys = choices.among(2, 1, 3, 0), choices.among(3, 1, 2, 5, 0, 17), choices.among(4, 1, 3, 6, 0, 33)
    heads, heads_kv, dim, dim_v, dtype, dtype_kv = _heads_and_dims(choices)
    arguments: dict[str, Any] = {"query": drawing.tensor((batch, heads, queries, dim), dtype), "enable_gqa": heads != heads_kv or None}
    if place == "paged":
        pages = _add_pages(drawing, arguments, batch, heads_kv, (dim, dim_v), dtype_kv)
        return arguments, Sizes(batch, heads, queries, pages)
    of_keys = choices.right_or(batch, 1)
    for name, size in (("key", dim), ("value", dim_v)):
        arguments[name] = drawing.tensor((of_keys, heads_kv, keys, size), dtype_kv)
    if place == "listed":
        entries = choices.among(3, 1, 0, 5)
        listed = drawing.tensor((choices.right_or(batch, 1), queries, entries), torch.int64, keys + 1) - 1
        arguments["token_list"] = listed.to(choices.right_or(torch.int32, torch.int64, torch.int8))
    return arguments, Sizes(batch, heads, queries, keys)


def _of_sequences(drawing, is_mixed):
    choices = drawing.choices
    counts = [[choices.among(2, 1, 3, 0, 5) for _ in range(choices.among(2, 1, 3))]]
    counts.append([choices.among(3, 1, 2, 0, 6) for _ in counts[0]])
    before, after = choices.right_or(0, 1, 2), choices.right_or(0, 1, 2)
    of_queries, of_keys = ([before + sum(each[:n]) for n in range(len(each) + 1)] for each in counts)
    heads, heads_kv, dim, dim_v, dtype, dtype_kv = _heads_and_dims(choices)
    kind = choices.right_or(torch.int32, torch.int64)
    arguments = {
        "query": drawing.tensor((of_queries[-1] + after, heads, dim), dtype),
        "enable_gqa": heads != heads_kv or None,
        "q_offsets": torch.tensor(of_queries, dtype=kind),
    }
    if is_mixed:
        pages = _add_pages(drawing, arguments, len(counts[0]), heads_kv, (dim, dim_v), dtype_kv)
        return arguments, Sizes(len(counts[0]), heads, max(counts[0]), pages)
    is_same = choices.right_or(False, True)  # whether queries' offsets are those of the keys
    for name, size in (("key", dim), ("value", dim_v)):
        arguments[name] = drawing.tensor(((of_queries if is_same else of_keys)[-1] + after, heads_kv, size), dtype_kv)
    arguments["kv_offsets"] = None if is_same else torch.tensor(of_keys, dtype=kind)
    arguments["max_length"] = choices.right_or(None, 6, (5, 6), (None, 7), 40)
    return arguments, Sizes(len(counts[0]), heads, max(counts[0]), max(counts[0] if is_same else counts[1]))


def _add_pages(drawing, arguments, batch, heads_kv, dims, dtype):
    """Adds a paged KV cache. Returns how many keys a sequence may have."""
    choices = drawing.choices
    size, columns = choices.among(2, 1, 3), choices.among(2, 1, 3)
    pages = batch * columns + 1
    for name, dim in zip(("key", "value"), dims):
        arguments[name] = drawing.tensor((pages, heads_kv, size, dim), dtype)
    table = drawing.tensor((batch, columns), choices.right_or(torch.int32, torch.int64), pages)
    arguments["page_table"] = choices.right_or(table, (table, table.flip(0)))
    arguments["lengths"] = drawing.tensor((batch,), choices.right_or(torch.int32, torch.int64), columns * size + 1)
    return columns * size


def _add_positions(drawing, arguments, sizes, place):
    choices = drawing.choices
    kind = choices.right_or(None, "number", "tensor", "bottom_right")
    if kind is not None:
        starts = drawing.tensor((sizes.batch,), choices.right_or(torch.int32, torch.int64), 5)
        arguments["q_start"] = {"number": choices.among(1, 0, 4, 40), "tensor": starts}.get(kind, kind)
    if place not in ("paged", "mixed") and choices.right_or(False, True):
        of_keys, of_queries = drawing.tensor((sizes.batch,), torch.int32, sizes.keys + 1), drawing.tensor((sizes.batch,), torch.int64, sizes.queries + 1)
        arguments["lengths"] = choices.right_or(of_keys, (of_queries, of_keys), (None, of_keys), (of_queries, None), [of_queries, of_keys])
    if choices.right_or(False, True):
        arguments["offsets"] = Offsets(choices.among(0, 1), choices.among(0, 1), choices.among(0, 2), choices.among(0, 3))
    number = choices.byte()
    if 0 < number <= len(RIGHT_MASK_MODS):
        mask = arguments["mask_mod"] or Modifier(RIGHT_MASK_MODS[0][0])
        of_heads = choices.among(None, sizes.heads, 2)
        try:
            made = create_block_mask(
                mask.of(lambda each: each), choices.among(None, sizes.batch), of_heads, sizes.queries, sizes.keys, "cpu", choices.among(128, 4)
            )
        except Exception:  # PyTorch's own, of sizes of 0 and of wrong functions
            return
        arguments["block_mask"], arguments["mask_mod"] = made, None


def _add_options(drawing, arguments, sizes):
    choices = drawing.choices
    arguments["scale"] = choices.right_or(None, 0.5, 1, -0.25, 0.0, np.float32(0.3), 8.0)
    arguments["return_lse"] = choices.right_or(None, True)
    if not arguments["return_lse"]:
        arguments["return_aux"] = choices.right_or(None, AuxRequest(lse=True), AuxRequest(lse=True, max_scores=True), AuxRequest(max_scores=True), AuxRequest())
    arguments["backends"] = choices.right_or(None, "cpu", "reference", "-reference", ["reference", "cpu"], "none")
    arguments["deterministic"] = choices.right_or(None, True, False)
    arguments["new_sizes"] = choices.right_or(None, "wait", "serve")
    arguments["dropout_p"] = choices.right_or(None, 0, 0.5, 0.0, 1e-9)
    is_float8, of_keys = (isinstance(arguments[name], torch.Tensor) and arguments[name].dtype in FLOAT8 for name in ("query", "key"))
    if is_float8:
        arguments["descale_q"] = choices.right_or(None, 0.5, 2, _block_scales(drawing, arguments["query"]))
        arguments["out_dtype"] = choices.right_or(None, *FLOATS, *FLOAT8)
        arguments["scale_o"] = choices.right_or(None, 0.5, torch.tensor(2.0))
        arguments["return_amax_o"] = choices.right_or(None, True)
    if is_float8 or of_keys:
        for name in ("descale_k", "descale_v"):
            right = None if is_float8 else 1.0
            blocks = _block_scales(drawing, arguments["key" if name == "descale_k" else "value"])
            arguments[name] = choices.right_or(right, 0.5, torch.tensor(2.0), torch.tensor([0.25]), torch.full(arguments["key"].shape[1:2], 0.5), blocks)
    if choices.right_or(False, True):
        like = arguments["query"]
        dtype = arguments.get("out_dtype") or (torch.bfloat16 if is_float8 else like.dtype)
        arguments["out"] = _laid(torch.zeros(*like.shape[:-1], arguments["value"].shape[-1], dtype=dtype), choices.byte())


def _block_scales(drawing, scaled):
    """Block scales of an FP8 tensor, of any extents that fit. Where it is none, they fit nothing."""
    choices = drawing.choices
    if not isinstance(scaled, torch.Tensor) or scaled.dim() not in (3, 4):
        return torch.ones(2, 3)
    extents = [choices.among(*scale_extents(letter, size)) for letter, size in zip("THD" if scaled.dim() == 3 else "BHSD", scaled.shape)]
    return torch.exp2(drawing.tensor(extents, torch.float32, 6) - 3).to(choices.right_or(torch.float32, torch.float8_e8m0fnu, torch.float16))


def _wrong(drawing, right):
    """Something in place of an argument."""
    choices = drawing.choices
    kind = choices.among("other", "number", "tensor", "changed")
    if kind == "other":
        return choices.among(*OTHERS)
    if kind == "number":
        number = choices.among(*NUMBERS)
        return choices.right_or(number, torch.tensor(number if abs(number) < 2**62 else 0), np.asarray(float(number)), (number, number), [number], str(number))
    if kind == "changed" and isinstance(right, torch.Tensor) and right.layout == torch.strided:
        return _changed(choices, right)
    if kind == "changed" and isinstance(right, (tuple, list)) and right and type(right) in (tuple, list):
        return choices.among(right[:1], (*right, *right), right[::-1], list(right))
    shape = [choices.among(2, 1, 0, 3, 4) for _ in range(choices.among(1, 0, 2, 3, 4, 5))]
    made = drawing.tensor(shape, choices.among(*DTYPES), has_gradient=choices.right_or(False, True))
    return choices.right_or(made, made.to("meta"), made.detach().to_sparse() if made.dim() and made.dtype not in FLOAT8 else made, made.tolist(), [made, made])


def _changed(choices, right):
    """A tensor made of the right one."""
    change = choices.among("dtype", "more", "less", "rank", "flat", "numbers", "meta", "array", "conjugate")
    if change == "dtype":
        return right.to(choices.among(*DTYPES))
    if change == "more" and right.dim():
        return torch.cat([right, right], choices.byte() % right.dim())
    if change == "less" and right.dim():
        dim = choices.byte() % right.dim()
        return right.narrow(dim, 0, right.shape[dim] // 2)
    if change == "rank":
        return choices.among(right[None], right[..., None], right.sum(0) if right.dim() and right.dtype not in FLOAT8 else right)
    if change == "numbers" and not right.is_complex() and right.dtype not in FLOAT8:
        return (right.double() * choices.among(-1, 100, 0, 2**29, math.nan)).nan_to_num(7).to(right.dtype)
    if change in ("meta", "array"):
        return right.to("meta") if change == "meta" or right.is_meta else right.detach().float().numpy()
    return right.to(torch.complex64).conj() if change == "conjugate" else right.reshape(-1)
