"""Holds what stands on scoremod in PyTorch to float64 on this machine: PyTorch's own attention, the Hub's kernel, vLLM's and SGLang's backends, the serving guide.

usage: integrations.py OUTPUT.json [--device cpu|cuda] [--seed N] [--seconds 200] [--parts NAME,NAME] [--machine TEXT]

OUTPUT is a record of the machine, the versions, the commit, the seed and each case. A case's result is "ok", "error" or "not run", with the reason.
"error" is the norm of the difference from float64 by the norm, and "largest_error" the largest difference by the largest number. "times_allowed" is the
larger of both by what is allowed.

Parts run in processes of their own. A process that ends, hangs or leaves the device unusable costs the case that it was in; another takes the next.
The cases use modules of tests/torch, so the repository travels whole. They need neither pytest nor vLLM nor SGLang. SCOREMOD_LIBRARY names the library, PYTHONPATH
has the folder python, SCOREMOD_COMMIT says the commit where there is no history. The exit code is 0 where no case has an error.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "torch")]
PARTS = ("torch_attention", "vllm_backend", "vllm_times", "sglang_backend", "hub_kernel", "serving_guide", "callbacks")
_CASE_SECONDS = 60


def case_names(part):
    return list(importlib.import_module(f"integration_cases.{part}").CASES)


def run_cases(part, names, device, seed, path):
    """Writes a line of JSON as each case begins, and one as it ends. Ends early where the device is no longer usable."""
    import torch
    from integration_cases.measured import Draw, NotRun

    cases = importlib.import_module(f"integration_cases.{part}").CASES
    with open(path, "a", encoding="utf-8") as lines:

        def write(**line):
            lines.write(json.dumps(line) + "\n")
            lines.flush()

        for name in names:
            write(begun=name)
            start, measured = time.perf_counter(), {}
            try:
                measured = cases[name](Draw.of(device, seed, f"{part} {name}"))
                if device == "cuda":
                    torch.cuda.synchronize()
                result = {"result": "ok", **measured}
            except NotRun as reason:
                result = {"result": "not run", "reason": str(reason)}
            except Exception as error:  # noqa: BLE001 - one case doesn't stop the others
                result = {"result": "error", "reason": f"{type(error).__name__}: {error}"[:600], "at": traceback.format_exc().splitlines()[-4:]}
            write(name=name, part=part, seconds=round(time.perf_counter() - start, 2), **result)
            try:
                if device == "cuda":
                    torch.cuda.synchronize()
            except RuntimeError:
                return  # no call of this process will succeed any more


def results_of(part, names, arguments, deadline):
    """The results of a part's cases, each of which had a process that worked."""
    results = []
    while len(results) < len(names):
        left, seconds = names[len(results) :], deadline - time.monotonic()
        if seconds < 5:
            return results + [{"name": name, "part": part, "result": "not run", "reason": "no time was left"} for name in left]
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as lines:
            process = subprocess.Popen([sys.executable, __file__, lines.name, "--run", part, "--cases", json.dumps(left), *arguments])
            ended, begun = watched(process, lines, deadline)
        results += ended
        if begun is not None:  # the process was in it as it ended
            reason = f"the process ended with {process.returncode}" if time.monotonic() < deadline else "no time was left for its end"
            results.append({"name": begun, "part": part, "result": "error", "reason": reason})
        elif not ended:
            return results + [
                {"name": name, "part": part, "result": "error", "reason": f"the process ended with {process.returncode} before a case"} for name in left
            ]
    return results


def watched(process, lines, deadline):
    """(the results that a process wrote, the case that it was in or None), after it ended or was ended, by the deadline or by one case's."""
    ended, begun, since = [], None, time.monotonic()
    while True:
        is_over = process.poll() is not None
        for line in lines.readlines():
            found, since = json.loads(line), time.monotonic()
            if "begun" in found:
                begun = found["begun"]
            else:
                begun = None
                ended.append(found)
                print(json.dumps({key: each for key, each in found.items() if key != "at"}), flush=True)
        if is_over:
            return ended, begun
        if time.monotonic() > min(deadline, since + _CASE_SECONDS):
            process.kill()
        time.sleep(0.05)


def machine():
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True)
        return f"{found.stdout.splitlines()[0]}, {os.cpu_count()} cores"
    except (OSError, subprocess.CalledProcessError, IndexError):
        return f"no GPU, {os.cpu_count()} cores"


def commit():
    said = os.environ.get("SCOREMOD_COMMIT")
    if said:
        return said
    found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def versions():
    import numpy
    import torch

    import scoremod

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "numpy": numpy.__version__,
        "scoremod": getattr(scoremod, "__version__", ""),
    }


def arguments_of(texts):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("output")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--machine")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--cases", help=argparse.SUPPRESS)
    return parser.parse_args(texts)


def main():
    given = arguments_of(sys.argv[1:])
    if given.run:
        run_cases(given.run, json.loads(given.cases), given.device, given.seed, given.output)
        return 0
    deadline = time.monotonic() + given.seconds
    import torch

    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    seed = int.from_bytes(os.urandom(4), "little") >> 1 if given.seed is None else given.seed
    head = {"machine": given.machine or machine(), "device": device, "versions": versions(), "commit": commit(), "seed": seed}
    print(json.dumps(head), flush=True)
    results = []
    for part in given.parts.split(","):
        results += results_of(part, case_names(part), ["--device", device, "--seed", str(seed)], deadline)
    counts = {kind: sum(each["result"] == kind for each in results) for kind in ("ok", "error", "not run")}
    Path(given.output).write_text(json.dumps({**head, "counts": counts, "cases": results}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(counts))
    return 1 if counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
