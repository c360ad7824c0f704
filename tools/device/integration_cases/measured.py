"""Draws, comparison with float64 and times, for the cases."""

import random as pseudo_random
import statistics
import time
from typing import NamedTuple

import dense_reference as dense
import torch

_ROUNDS = 21
# Longer than a host takes to ask for a call, in cycles of the device's clock.
_HEAD_START = 4_000_000


class NotRun(Exception):
    """Says why a case has nothing to run on here."""


class Draw(NamedTuple):
    """A case's own random numbers, and where it runs."""

    device: str
    seed: int
    choose: pseudo_random.Random
    generator: torch.Generator

    @staticmethod
    def of(device, seed, name):
        own = pseudo_random.Random(f"{seed} {name}").randrange(2**31)
        return Draw(device, own, pseudo_random.Random(own), torch.Generator().manual_seed(own))

    def normal(self, *shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=self.generator).to(self.device, dtype)

    def integers(self, numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def needs_gpu(self, what):
        if self.device != "cuda":
            raise NotRun(f"{what} needs a GPU")

    @property
    def is_small(self):
        return self.device != "cuda"


def _relative(x, t):
    """(error of the norm, largest error by the largest number)."""
    size, most = t.norm().item(), t.abs().max().item()
    return (x - t).norm().item() / max(size, 1e-30), (x - t).abs().max().item() / max(most, 1e-30)


def held(found, plain, truth, names):
    """The largest errors of tensors from float64, by the norm and by the largest number.

    Twice the errors of plain attention in the tensor's own dtype are allowed. A unit in the last place of the norm (8 in float32), and 8 of the largest
    number, come on top.
    """
    worst = {"error": 0.0, "largest_error": 0.0, "times_allowed": 0.0}
    for name, x, p, t in zip(names, found, plain, truth, strict=True):
        if x.shape != t.shape:
            raise AssertionError(f"{name}: expected shape {tuple(t.shape)}, found {tuple(x.shape)}")
        ulp = torch.finfo(x.dtype).eps
        x, p, t = (each.detach().double().cpu() for each in (x, p, t))
        if not torch.equal(x.isneginf(), t.isneginf()):
            raise AssertionError(f"{name}: -inf stands elsewhere")
        x, p, t = (each[~t.isneginf()] for each in (x, p, t))
        if not t.numel():
            continue
        errors, plain_errors = _relative(x, t), _relative(p, t)
        allowed = 2 * plain_errors[0] + (8 if ulp < 1e-5 else 1) * ulp, 2 * plain_errors[1] + dense.ROUNDING_BAND * ulp
        times = max(error / most for error, most in zip(errors, allowed))
        if not all(error <= most for error, most in zip(errors, allowed)):  # NaN is no number that is allowed
            raise AssertionError(f"{name}: errors {errors[0]:.3g} and {errors[1]:.3g} from float64, allowed {allowed[0]:.3g} and {allowed[1]:.3g}")
        found_here = {"error": errors[0], "largest_error": errors[1], "times_allowed": times}
        worst = {key: max(worst[key], found_here[key]) for key in worst}
    return worst


def sizes_of_errors(found, plain, truth):
    """The largest errors of tensors that dense_reference.check() found right; beside them those of plain attention in the same dtype."""
    worst = {}
    for x, p, t in zip(found, plain, truth, strict=True):
        keep = ~t.isneginf()
        x, p, t = (each.detach().double()[keep] for each in (x, p, t))
        for key, each in (("error", x), ("plain_error", p)):
            worst[key] = max(worst.get(key, 0.0), _relative(each, t)[0])
    return worst


def worse(*measured):
    """The largest of each error."""
    return {key: max(each[key] for each in measured) for key in measured[0]} | {"compared": len(measured)}


def with_gradients(attention, tensors, weight):
    """[output, gradients of tensors] of a loss that weighs each element of the output."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    o = attention(*tensors)
    return [o.detach(), *torch.autograd.grad((o * weight.to(o.dtype)).sum(), tensors)]


def sequence(q, k, v, *, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, s_aux=None, scale=None):
    """(o [queries, heads, dim], lse [heads, queries]) of one sequence by dense attention, whose last query stands at its last key."""
    shift = k.shape[0] - q.shape[0]
    left, right = (10**6 if bound is None or bound < 0 else bound for bound in window_size)
    right = 0 if causal else right

    def score_mod(s, b, h, i, j):
        s = softcap * torch.tanh(s / softcap) if softcap else s
        return s if alibi_slopes is None else s - alibi_slopes.to(s.dtype)[h] * (i + shift - j).abs()

    def mask_mod(b, h, i, j):
        return (j - i - shift <= right) & (i + shift - j <= left)

    o, lse = dense.attention_and_lse(*(x.transpose(0, 1)[None] for x in (q, k, v)), score_mod, mask_mod, scale=scale, sink=s_aux)
    return o[0].transpose(0, 1), lse[0]


def of_pages(pool, pages, length):
    """The first keys of a sequence, [length, KV heads, dim], of a pool [pages, page size, KV heads, dim]."""
    return pool[pages.long()].flatten(0, 1)[:length]


def host_us(call):
    """The median microseconds until a call returns, with an idle device before each."""
    times = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return round(statistics.median(times) * 1e6, 1)


def device_ms(**calls):
    """name -> the median milliseconds of the device for a call. Calls go in turns, and each waits for nothing of the host."""
    times = {name: [] for name in calls}
    for round_number in range(_ROUNDS + 3):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(_HEAD_START)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if round_number >= 3:
                times[name].append(begin.elapsed_time(end))
    return {name: round(statistics.median(each), 4) for name, each in times.items()}
