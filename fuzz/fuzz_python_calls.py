#!/usr/bin/env python3
"""Calls of scoremod.torch.flex_attention on the CPU, with arguments of any kind (python_calls). Python's coverage of the package leads the way.

usage: fuzz_python_calls.py [libFuzzer's options] [FOLDERS]; a file in place of folders is run once. A call that fails is printed.
"""

import sys
import warnings
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "fuzz"), str(ROOT / "python")]

import torch  # noqa: E402

with atheris.instrument_imports(include=["scoremod"]):
    import scoremod.torch  # noqa: F401

from python_calls.drawn_call import draw  # noqa: E402
from python_calls.held import hold  # noqa: E402


def run(data):
    call = draw(data)
    torch.manual_seed(call.seed)
    try:
        hold(call)
    except BaseException:
        print(f"scoremod fuzz: this call fails:\n{call.shown()}", file=sys.stderr, flush=True)
        raise


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # An input decides no more than so many things. Later options take the place of these.
    atheris.Setup([sys.argv[0], "-max_len=128", "-len_control=0", *sys.argv[1:]], run)
    atheris.Fuzz()
