"""Times scoremod beside its peers on one GPU: FlexAttention (Triton and FLASH), FlashAttention-4, PyTorch's scaled_dot_product_attention.

usage: PYTHONPATH=python python bench/peers/measure.py OUTPUT.json [--seconds N] [--cases A,B] [--implementations A,B] [--warm | --list]
           [--batch N] [--heads N] [--seq N] [--dim N] [--dtype NAME] [--device NAME] [--unseen COUNT] [--seed N]

Same process, same tensors, in turns; milliseconds are medians of rounds. cases.py has the cases, their shapes, and who is timed beside scoremod.
Peers' block masks are made before the timing, or in each call where a name ends with _mask_in_call. Ours are part of each call.
Each forward's output is held to the first implementation's: a peer that computes something else is no peer, and is recorded as refused.

An OUTPUT that exists is continued: its cases are not measured again. It has to be of the same GPU, commit, versions and sizes. --warm
compiles everything and times nothing: several processes with a share of the cases each fill the compilers' caches for the one that times. --list
prints the cases that OUTPUT lacks. --unseen takes so many cases that nobody tuned for, drawn by --seed (unseen.py), in place of the table's.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path

import cases
import choices
import implementations
import torch
import torch.utils.deterministic

import scoremod

sys.path.append(str(Path(__file__).resolve().parents[1] / "torch"))
from timing import median_in_turns, warmed

# Beyond this two outputs are not roundings of the same numbers: |x - y| / |x| in the Euclidean norm, for 16-bit and for 32-bit tensors.
MAX_DIFFERENCE = {torch.bfloat16: 2**-6, torch.float16: 2**-8, torch.float32: 2**-15}


def tensors(case, options):
    shape = case.shape
    generator = torch.Generator(options.device).manual_seed(options.seed)

    def one(heads, length, dim):
        flat = torch.randn(shape.batch, length, heads, dim, device=options.device, generator=generator).to(getattr(torch, shape.dtype))
        return flat.transpose(1, 2)

    q, k = one(shape.heads, shape.queries, shape.dim), one(shape.kv_heads, shape.keys, shape.dim)
    return q, k, one(shape.kv_heads, shape.keys, shape.dim_v), one(shape.heads, shape.queries, shape.dim_v)


@contextlib.contextmanager
def determinism(wanted):
    """PyTorch's switch for gradients that are the same bits each time, which scoremod follows, too. Nothing is filled for it."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


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
            if name not in implementations.OURS and name not in case.peers:
                continue
            reason = self._add(name, MAX_DIFFERENCE[self.q.dtype])
            if reason is not None:
                self.rows += [self.row(direction, name, refused=reason) for direction in self.directions_of(name)]
                print(f"{case.name}: {name}: {reason}", flush=True)

    def directions_of(self, name):
        """A mask that is made in each call is made in the forward, and the backward takes it from there."""
        return [each for each in self.case.directions if each == "forward" or not name.endswith(implementations.IN_CALL)]

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
        directions = self.directions_of(name)
        if "forward" in directions:
            self.calls[name, "forward"] = forward
        if "backward" in directions:
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
        answer = implementations.explained(self.case, self.q, self.k, self.v)
        of_gradients = dict.fromkeys(answer.gradient_backends.values()) if self.case.learned else {}
        return {"forward": answer.backend, "backward": " and ".join(of_gradients) or answer.backward_backend}

    def times(self, device):
        engines = self.engines() if any(name == "scoremod" for name, _ in self.calls) else {}
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
    parser.add_argument("--unseen", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", default="")
    parser.add_argument("--implementations", default=",".join(implementations.NAMES))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.dtype = getattr(torch, options.dtype)
    options.implementations = options.implementations.split(",")
    names = cases.names(options)
    options.cases = options.cases.split(",") if options.cases else names
    if unknown := [name for name in options.cases if name not in names]:
        parser.error(f"expected cases of bench/peers/cases.py, found {', '.join(unknown)}")
    return options


def new_report(options):
    return {
        "machine": os.environ.get("SCOREMOD_MACHINE", ""),
        "versions": versions(),
        "commit": os.environ.get("SCOREMOD_COMMIT", ""),
        "shape": {name: getattr(options, name) for name in ("batch", "heads", "seq", "dim")} | {"dtype": str(options.dtype).removeprefix("torch.")},
        **({"unseen": {"cases": options.unseen, "seed": options.seed}} if options.unseen else {}),
        "cases": {},
        "results": [],
        "not_run": cases.names(options),
    }


def comparable(report, packages):
    """The fields that two reports share where their times can stand beside each other."""
    found = {"GPU": report["machine"].split(",")[0], "commit": report["commit"], "shape": report["shape"], "cases": report.get("unseen", "the table's")}
    return found | {package: report["versions"].get(package) for package in packages}


def begun(path, fresh):
    """The report at `path`, to be continued, or `fresh` where there is none. Raises ValueError for one whose times can't stand beside new ones."""
    if not path.is_file():
        return fresh
    report = json.loads(path.read_text(encoding="utf-8"))
    # Programs beside this one add other versions to a report, which don't count here.
    old, new = (comparable(each, fresh["versions"]) for each in (report, fresh))
    for name in new:
        if old[name] != new[name]:
            raise ValueError(f"expected {path} to be of {name} {new[name]!r}, found {old[name]!r}: remove it to begin anew")
    return report


def write(report, options):
    report["not_run"] = [name for name in cases.names(options) if name not in report["cases"]]
    report["regret"] = choices.regret(report)
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def described(case):
    """A case as a record has it."""
    found = {"modifier": case.modifier, "shape": case.shape_name, **case.shape.sizes()}
    if case.plain is not None and case.plain["window"] is not None:
        found["window"] = case.plain["window"]
    return found if case.lengths is None else {**found, "lengths": list(case.lengths)}


def measure(name, options, report):
    """Adds a case to the report; with --warm only compiles what it takes."""
    begin = time.monotonic()
    case = cases.case(name, options)
    with determinism(case.deterministic):
        measured = Measured(case, options)
        if options.warm:
            print(f"{name} compiled in {time.monotonic() - begin:.1f} s", flush=True)
            return
        rows = measured.times(options.device)
    report["cases"][name] = described(case)
    report["results"] += rows
    print(name, {f"{row['implementation']} {row['direction']}": row["ms"] for row in rows if "ms" in row}, f"{time.monotonic() - begin:.1f} s", flush=True)
    # Results are written at once, so that they stay if a later case fails.
    write(report, options)


def main():
    options = parsed()
    deadline = time.monotonic() + options.seconds
    try:
        report = begun(options.output, new_report(options))
    except ValueError as error:
        sys.exit(str(error))
    # In the table's order, which begins with what tells most.
    wanted = [name for name in cases.names(options) if name in options.cases and name not in report["cases"]]
    if options.list:
        print(*wanted)
        return
    for name in wanted:
        if time.monotonic() > deadline:
            print("no time was left for", name, "and what follows it")
            break
        measure(name, options, report)
        implementations.forget()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    faulthandler.enable()  # a crash, of any library in this process, says where Python was
    main()
