"""Times scoremod beside its peers on one GPU: FlexAttention (Triton and FLASH), FlashAttention-4, PyTorch's scaled_dot_product_attention.

usage: PYTHONPATH=python python bench/peers/measure.py OUTPUT.json [--seconds N] [--cases A,B] [--implementations A,B] [--warm]
           [--batch N] [--heads N] [--seq N] [--dim N] [--dtype NAME] [--device NAME]

Same process, same tensors, in turns; milliseconds are medians of rounds. Peers' block masks are made before the timing, ours are part of each call.
Each forward's output is held to the first implementation's: a peer that computes something else is no peer, and is recorded as refused. --warm
compiles everything and times nothing: several processes with a share of the cases each fill the compilers' caches for the one that times.
"""

import argparse
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path

import cases
import implementations
import torch

import scoremod
import scoremod.torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "torch"))
from timing import median_in_turns, warmed

# Beyond this two outputs are not roundings of the same numbers: |x - y| / |x| in the Euclidean norm, for 16-bit and for 32-bit tensors.
MAX_DIFFERENCE = {torch.bfloat16: 2**-6, torch.float16: 2**-8, torch.float32: 2**-15}


def tensors(case, options):
    batch, heads, groups, queries, keys = case.sizes or (options.batch, options.heads, options.heads, options.seq, options.seq)
    generator = torch.Generator(options.device).manual_seed(options.seed)

    def one(heads, length):
        flat = torch.randn(batch, length, heads, options.dim, device=options.device, generator=generator).to(options.dtype)
        return flat.transpose(1, 2)

    return one(heads, queries), one(groups, keys), one(groups, keys), one(heads, queries)


def difference(x, y):
    x, y = x.detach().float(), y.detach().float()
    return float((x - y).norm() / x.norm())


class Measured:
    """One case's calls, and what has no call."""

    def __init__(self, case, options):
        self.case = case
        self.q, self.k, self.v, self.d_o = tensors(case, options)
        self.calls, self.rows, self.first = {}, [], None
        for name in options.implementations:
            reason = self._add(name, MAX_DIFFERENCE[options.dtype])
            if reason is not None:
                self.rows += [self.row(direction, name, refused=reason) for direction in self.directions]
                print(f"{case.name}: {name}: {reason}", flush=True)

    @property
    def directions(self):
        return ("forward", "backward") if self.case.backward else ("forward",)

    def row(self, direction, name, **what):
        return {"case": self.case.name, "direction": direction, "implementation": name, **what}

    def _add(self, name, max_difference):
        """Adds its calls; or the reason why not."""
        try:
            attention = implementations.build(name, self.case, self.q, self.k)
        except Exception as error:
            return (str(error) or type(error).__name__).splitlines()[0][:200]

        def forward():
            with torch.no_grad():
                return attention(self.q, self.k, self.v)

        reason = warmed(forward)
        if reason is not None:
            return reason
        output = forward()
        self.first = output if self.first is None else self.first
        apart = difference(self.first, output)
        if not apart <= max_difference:
            return f"its output is {apart:.2g} from {self.case.name}'s first"
        self.calls[name, "forward"] = forward
        if self.case.backward:
            self._add_backward(name, attention)
        return None

    def _add_backward(self, name, attention):
        inputs = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        made = []

        def backward():
            if not made:
                made.append(attention(*inputs))
            return torch.autograd.grad(made[0], (*inputs, *self.case.learned), self.d_o, retain_graph=True)

        reason = warmed(backward)
        if reason is None:
            self.calls[name, "backward"] = backward
        else:
            self.rows.append(self.row("backward", name, refused=reason))
            print(f"{self.case.name}: {name}, backward: {reason}", flush=True)

    def engines(self):
        """direction -> the engine that the planner chose for ours; "ENGINE and ENGINE" where several compute what a backward writes."""
        grouped = self.q.shape[1] != self.k.shape[1]
        answer = scoremod.torch.explain(self.q, self.k, self.v, self.case.score_mod, mask_mod=self.case.mask_mod, enable_gqa=grouped)
        of_gradients = dict.fromkeys(answer.gradient_backends.values()) if self.case.learned else {}
        return {"forward": answer.backend, "backward": " and ".join(of_gradients) or answer.backward_backend}

    def times(self, device):
        engines = self.engines() if ("scoremod", "forward") in self.calls else {}
        for (name, direction), ms in median_in_turns(self.calls, device).items():
            engine = {"engine": engines[direction]} if name == "scoremod" else {}
            self.rows.append(self.row(direction, name, ms=ms, **engine))
        return self.rows


def versions():
    found = {"scoremod": scoremod.version(), "torch": torch.__version__}
    for package in ("triton", "nvidia-cudnn-cu13", "flash-attn-4", "nvidia-cutlass-dsl"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return found


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    for name, value in (("batch", 4), ("heads", 16), ("seq", 4096), ("dim", 128), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", default="")
    parser.add_argument("--implementations", default=",".join(implementations.NAMES))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    options.dtype = getattr(torch, options.dtype)
    options.implementations = options.implementations.split(",")
    return options


def main():
    options = parsed()
    deadline = time.monotonic() + options.seconds
    wanted = [case for case in cases.cases(options) if not options.cases or case.name in options.cases.split(",")]
    report = {
        "machine": os.environ.get("SCOREMOD_MACHINE", ""),
        "versions": versions(),
        "commit": os.environ.get("SCOREMOD_COMMIT", ""),
        "shape": {name: getattr(options, name) for name in ("batch", "heads", "seq", "dim")} | {"dtype": str(options.dtype).removeprefix("torch.")},
        "results": [],
        "not_run": [case.name for case in wanted],
    }
    for case in wanted:
        if time.monotonic() > deadline:
            break
        begin = time.monotonic()
        measured = Measured(case, options)
        report["not_run"].remove(case.name)
        if options.warm:
            print(case.name, f"{time.monotonic() - begin:.1f} s", flush=True)
            continue
        rows = measured.times(options.device)
        report["results"] += rows
        print(case.name, {f"{row['implementation']} {row['direction']}": row["ms"] for row in rows if "ms" in row}, flush=True)
        # Results are written at once, so that they stay if a later case fails.
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        del measured
        torch.cuda.empty_cache()
    if report["not_run"]:
        print("no time was left for", *report["not_run"])


if __name__ == "__main__":
    main()
