#!/usr/bin/env python3
"""Runs random attention problems, drawn as cuDNN's frontend draws its tests', on a GPU and holds each to dense attention in float64.

usage: sdpa_problems.py COUNT [SEED] [--device cpu] [--longest N] [--widest N] [--seconds N]

Problem i has the seed SEED + i, so that `sdpa_problems.py 1 SEED` repeats one that failed. SEED is random without it, and printed. PYTHONPATH has
the folder python, and SCOREMOD_LIBRARY names the library, as for tools/device/torch.sh. The exit code is 1 where a result is wrong.
"""

import argparse
import collections
import secrets
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "tests/foreign", "tests/foreign/torch", "tests/torch")]

import sdpa_in_torch  # noqa: E402
import sdpa_problems  # noqa: E402
import torch  # noqa: E402
from errors_in_torch import largest_ratio  # noqa: E402

import scoremod  # noqa: E402


def outcome_of(problem, device):
    """("right", the largest ratio), ("refused", the message) or ("wrong", what is wrong)."""
    try:
        return "right", largest_ratio(*sdpa_in_torch.held(problem, device))
    except scoremod.UnsupportedError as refusal:
        return "refused", str(refusal)
    except AssertionError as wrong:
        return "wrong", str(wrong)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=secrets.randbelow(2**31))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--longest", type=int, default=1024, help="the most queries or keys; all scores are in memory in float64")
    parser.add_argument("--widest", type=int, default=256, help="the largest head dim")
    parser.add_argument("--seconds", type=float, default=540, help="begin no problem after so many")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    on = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"seed {options.seed}, on {on}")
    counts, ratios = collections.Counter(), []
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() > end:
            print(f"no time is left for problem {seed} and those after it")
            break
        problem = sdpa_problems.draw(seed, options.longest, options.widest)
        outcome, what = outcome_of(problem, options.device)
        counts[outcome] += 1
        if outcome == "right":
            ratios.append(what)
        else:
            print(f"{outcome}: {problem}\n  {what}", flush=True)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in ("right", "refused", "wrong"))
    print(f"{said}; the largest error by the plain computation's: {max(ratios, default=0):.2f}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
