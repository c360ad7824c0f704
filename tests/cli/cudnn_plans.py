"""Plans of cuDNN that the command builds without a device."""

import pytest

from built_command import ROOT

DEVICES = ROOT / "src" / "backend" / "cudnn" / "devices"


def skip_without_cudnn(done):
    if done.returncode == 4 and ("no cuDNN" in done.stderr or "no CUDA runtime" in done.stderr):
        pytest.skip(done.stderr)
    if done.returncode == 3 and "built without the cuDNN backend" in done.stderr:
        pytest.skip(done.stderr)


def compile_or_skip(scoremod, *arguments, **options):
    done = scoremod("compile", *arguments, **options)
    skip_without_cudnn(done)
    return done
