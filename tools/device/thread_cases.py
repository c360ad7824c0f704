"""Attention calls whose results were computed before, for threads.py to call from many threads."""

import random

import dense_reference as dense
import numpy as np
import torch

import scoremod
from scoremod.torch import flex_attention

# On a GPU: real plans of each engine. No name is the choice that a user gets, which may change from one plan to a faster one.
BACKENDS = {"cuda": ("kernels", "cudnn", None), "cpu": ("cpu", "reference", None)}
DTYPES = {"cuda": (torch.bfloat16, torch.float16, torch.float32), "cpu": (torch.float32, torch.bfloat16)}
DIMS = {"cuda": (64, 128), "cpu": (8, 16)}
LENGTHS = {"cuda": (64, 384), "cpu": (5, 40)}
HEADS = ((4, 2), (2, 2), (3, 1))


def causal(b, h, i, j):
    return i >= j


class Case:
    """One call with its tensors. What its functions read are tensors: a Python number becomes an operand once another call has another one. Then a
    captured tensor's gradient is rounded otherwise, unless calls are deterministic."""

    def __init__(self, number, device):
        choose = random.Random(number)
        self.number, self._device = number, device
        self.backends, self.deterministic = choose.choice(BACKENDS[device]), choose.choice([True, False])
        self._queries, self._keys = (choose.randint(*LENGTHS[device]) for _ in range(2))
        self._form, self._factor = choose.randrange(5), torch.tensor(choose.uniform(0.01, 0.1), device=device)
        (heads, heads_kv), dim = choose.choice(HEADS), choose.choice(DIMS[device])
        self._random = torch.Generator().manual_seed(number)
        dtype, shapes = choose.choice(DTYPES[device]), ((heads, self._queries), (heads_kv, self._keys), (heads_kv, self._keys))
        self._tensors = [torch.randn(2, *shape, dim, generator=self._random).to(dtype).to(device) for shape in shapes]
        learned = {1: (heads,), 3: (self._queries + self._keys,)}.get(self._form)
        self._captured = [torch.rand(learned, generator=self._random).to(device)] if learned else []
        self._ids = torch.randint(0, 3, (2, self._keys), generator=self._random, dtype=torch.int32).to(device)
        self._weights = dense.drawn_weights(self._tensors, self._random)
        # The host's gradients are always the same bits, and a device's where they are asked for.
        self._is_exact = self.deterministic or device == "cpu"

    def prepare(self):
        """Computes what results have to be, and holds that to the oracle. Raises UnsupportedError where no such backend runs the call."""
        self._first = self.results()
        self._truth = dense.expected(self._first, self._tensors, self._captured, self._modifiers, self._weights, self._random)
        dense.assert_close(self._first, *self._truth[:2], dense.NAMES, self._truth[2])
        self._host_tensors = [each[:, :, :16].transpose(1, 2).float().cpu().contiguous().numpy() for each in self._tensors]
        self._host = self._on_host()

    def results(self):
        """[o, LSE, gradients] of the call."""
        attention = dense.with_modifiers(self._attention, self._modifiers, {})
        return dense.results(attention, [*self._tensors, *self._captured], self._weights)

    def outputs(self):
        """[o, LSE] of the call, without gradients."""
        with torch.no_grad():
            return list(self._attention(*self._tensors, *self._modifiers(*self._captured)))

    def refused(self):
        """A mistake of the caller, which has to be refused."""
        q, k, v = self._tensors
        try:
            flex_attention(q, k, v[:, :, :-1], enable_gqa=True)
        except scoremod.InvalidArgumentError:
            return
        raise AssertionError("expected values of another length to be refused")

    def wrong_on_host(self):
        """Names a fault of a call of an attention of NumPy's, made for this call; nothing where its bits are those of the first one."""
        return "" if np.array_equal(self._on_host(), self._host) else f"case {self.number}: an attention of NumPy's has other bits than before"

    def _on_host(self):
        q, k, v = self._host_tensors
        sizes = {"batch": q.shape[0], "heads_q": q.shape[2], "heads_kv": k.shape[2], "seq_q": q.shape[1], "seq_kv": k.shape[1], "dim_qk": q.shape[3]}
        program = f"value = score * {self._factor.item()!r}\nkeep = q_idx >= kv_idx"
        return scoremod.Attention({**sizes, "program": program}, backend="cpu", threads=1).forward(q, k, v)

    def wrong(self, found):
        """Names a fault of results; nothing where they are right."""
        try:
            if self._is_exact:
                for name, one, first in zip((*dense.NAMES, "captured"), found, self._first, strict=False):
                    assert torch.equal(one, first), f"{name} has other bits than before"
            else:
                plain, truth, rounded = self._truth
                count = len(found)
                dense.assert_close(found, plain[:count], truth[:count], dense.NAMES, [each[:count] for each in rounded])
        except AssertionError as error:
            return f"case {self.number}, {self.backends}: {error}"
        return ""

    def _attention(self, q, k, v, score_mod, mask_mod):
        options = {"backends": self.backends, "deterministic": self.deterministic, "return_lse": True, "enable_gqa": True}
        return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, **options)

    def _modifiers(self, *captured):
        """(score_mod, mask_mod), which read a factor of their own."""
        factor, ids, queries = self._factor, self._ids, self._queries
        forms = (
            lambda: (lambda s, b, h, i, j: s - factor * abs(i - j), causal),
            lambda: (lambda s, b, h, i, j: s + captured[0][h] * (j - i) * factor, causal),
            lambda: (lambda s, b, h, i, j: torch.tanh(s * factor) / factor, None),
            lambda: (lambda s, b, h, i, j: s + captured[0][j - i + queries] * factor, None),
            lambda: (lambda s, b, h, i, j: s * (1 + factor), lambda b, h, i, j: (ids[b, j] == 1) | (j < 3)),
        )
        return forms[self._form]()


def prepared(count, first, device):
    """So many cases that are right, from a number on, and how many others were refused."""
    cases, refused, number = [], 0, first
    while len(cases) < count:
        case = Case(number, device)
        number += 1
        try:
            case.prepare()
        except scoremod.UnsupportedError:
            refused += 1
            continue
        cases.append(case)
    return cases, refused
