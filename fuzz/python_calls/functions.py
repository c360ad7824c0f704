"""Functions of the calls: name -> what makes one of the tensors that it captures. Each serves 0-dim tensors and whole ones that broadcast."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class OwnError(Exception):
    """A user's function raises this."""


class Modifier(NamedTuple):
    """A function and the tensors that it captures: make(*tensors) is the function."""

    make: Callable[..., Any]
    tensors: tuple = ()

    def of(self, replaced):
        """The function of other tensors in place of its own."""
        return self.make(*map(replaced, self.tensors))


class Sizes(NamedTuple):
    """A call's sizes, as functions and other arguments see them."""

    batch: int
    heads: int
    queries: int
    keys: int


def _alibi(slopes):
    return lambda s, b, h, i, j: s + slopes[h] * (j - i)


def _soft_cap(cap):
    return lambda s, b, h, i, j: cap * torch.tanh(s / cap)


def _table(bias):
    return lambda s, b, h, i, j: s + bias[h, torch.clamp(i - j + 4, 0, 8)]


def _whole_bias(bias):
    return lambda s, b, h, i, j: s + bias[b, h, i, j]


def _computed(x, y):
    return lambda s, b, h, i, j: s * (x * y).sum() + x.exp()[h]


def _documents(ids, others):
    return lambda b, h, i, j: ids[b, i] == others[b, j]


def _read_ids(bias, ids):
    return lambda s, b, h, i, j: s + bias[ids[i].clamp(0, bias.shape[0] - 1)]


def _bounded(lengths):
    return lambda b, h, i, j: j < lengths[b]


def _several(slopes, cap):
    def score_mod(s, b, h, i, j):
        s = s + slopes[h] * (i - j).abs()
        s *= 0.5
        return torch.where(i > j, cap * torch.tanh(s / cap), s * 0.25) + (i // 2 % 3) * 0.1

    return score_mod


def _number(number):
    return lambda: lambda s, b, h, i, j: s * number + number


def _plain(function):
    return lambda: function


def _raising(*_):
    raise OwnError("of the function itself")


def _deep(s, b, h, i, j):
    return _deep(s, b, h, i, j)


class _Callable:
    def __call__(self, s, b, h, i, j):
        return s * 2 - 1


# The shapes of the tensors follow from Sizes; "f" stands for a float tensor, "i" for integers below the second number.
RIGHT_SCORE_MODS = (
    (_alibi, lambda n: [("f", (n.heads,))]),
    (_soft_cap, lambda n: [("f", ())]),
    (_table, lambda n: [("f", (n.heads, 9))]),
    (_whole_bias, lambda n: [("f", (n.batch, n.heads, n.queries, n.keys))]),
    (_computed, lambda n: [("f", (n.heads,)), ("f", (n.heads,))]),
    (_read_ids, lambda n: [("f", (5,)), ("i", (n.queries,))]),
    (_several, lambda n: [("f", (n.heads,)), ("f", ())]),
    (_number(0.5), lambda n: []),
    (_number(0.75), lambda n: []),
    (_plain(lambda s, b, h, i, j: torch.where(j <= i + 1, s, -math.inf)), lambda n: []),
    (_plain(lambda s, b, h, i, j: torch.relu(s) + s.sigmoid() * (h % 2)), lambda n: []),
    (_plain(lambda s, b, h, i, j: torch.maximum(s, -s) - torch.log1p(s.abs())), lambda n: []),
    (_plain(lambda s, b, h, i, j: s + (i - j) // 2 * 0.125 - (i * j + b) % 3 * 0.5), lambda n: []),
    (_plain(lambda s, b, h, i, j: i * 0.1), lambda n: []),
    (_plain(_Callable()), lambda n: []),
    (_plain(functools.partial(lambda factor, s, b, h, i, j: s * factor, 0.3)), lambda n: []),
)
WRONG_SCORE_MODS = tuple(
    map(
        _plain,
        (
            _raising,
            _deep,
            lambda s, b, h: s,
            lambda *arguments: None,
            lambda *arguments: arguments,
            lambda s, b, h, i, j: i >= j,
            lambda s, b, h, i, j: 0.0,
            lambda s, b, h, i, j: 1,
            lambda s, b, h, i, j: s.item(),
            lambda s, b, h, i, j: s if i > j else -s,
            lambda s, b, h, i, j: s.reshape(1),
            lambda s, b, h, i, j: s.double() * 2,
            lambda s, b, h, i, j: s.half(),
            lambda s, b, h, i, j: s.detach(),
            lambda s, b, h, i, j: s * 1j,
            lambda s, b, h, i, j: s + torch.rand(()),
            lambda s, b, h, i, j: s + torch.ones(3)[h],
            lambda s, b, h, i, j: s + torch.ones(0)[i],
            lambda s, b, h, i, j: s + 2**40 * i,
            lambda s, b, h, i, j: s / 0,
            lambda s, b, h, i, j: s[0],
            lambda s, b, h, i, j: torch.stack([s, s]).sum(),
            lambda s, b, h, i, j: torch.fft.fft(s.expand(4)).real[0],
            lambda s, b, h, i, j: (s, h).no_such_name,
            lambda s, b, h, i, j: [10, 20][i],
            lambda s, b, h, i, j: s.numpy(),
            lambda s, b, h, i, j: s + float("nan"),
            lambda s, b, h, i, j: s.requires_grad_(),
            lambda s, b, h, i, j: s.mul_(2).add_(h),
            lambda s, b, h, i, j: i.add_(1) * s,
        ),
    )
)
RIGHT_MASK_MODS = (
    (_plain(lambda b, h, i, j: i >= j), lambda n: []),
    (_plain(lambda b, h, i, j: (i - j).abs() <= 1), lambda n: []),
    (_documents, lambda n: [("i", (n.batch, n.queries)), ("i", (n.batch, n.keys))]),
    (_bounded, lambda n: [("i", (n.batch,))]),
    (_plain(lambda b, h, i, j: (i + j + b + h) % 3 != 0), lambda n: []),
    (_plain(lambda b, h, i, j: j < 0), lambda n: []),
    (_plain(lambda b, h, i, j: (i >= j) | (j == 0) & ~(h == 1)), lambda n: []),
)
WRONG_MASK_MODS = tuple(
    map(
        _plain,
        (
            _raising,
            lambda b, h, i: i >= 0,
            lambda *arguments: None,
            lambda b, h, i, j: i,
            lambda b, h, i, j: True,
            lambda b, h, i, j: False,
            lambda b, h, i, j: i * 1.5,
            lambda b, h, i, j: (i >= j).reshape(1, 1),
            lambda b, h, i, j: i >= j and h >= 0,
            lambda b, h, i, j: bool(i >= j),
            lambda b, h, i, j: torch.rand(()) > 0.5,
            lambda b, h, i, j: torch.tensor([True, False])[i],
        ),
    )
)
