#!/usr/bin/env bash
# Runs PyTorch's tests and benchmark on a machine with GPUs, and writes what they found.
#
#   usage: tools/device/torch.sh LIBRARIES OUTPUT [small]
#
# LIBRARIES has libscoremod.so and, where the system has none, libhwy.so.1; they may have been built on another machine. OUTPUT is a folder:
# torch_h200.json (the benchmark, which begins no case after BENCH_SECONDS, 200), torch_one_import.json (one_import.py), torch_integrations.json
# (integrations.py), and a log of each step. `small` runs small shapes, on the CPU. PYTHON is the Python with torch and pytest; what needs
# transformers says so where it is missing. STEPS is a list of those to run, all of them without it: the most important first. SECONDS_LEFT is
# how long all of it may take (560): a step that it doesn't reach is named, to be run by another call. SCOREMOD_COMMIT says what was run where there is
# no history. cuDNN is taken from the loader's path or Python's `nvidia` packages. The exit code is 0 when every step passed.
set -uo pipefail

(($# == 2 || $# == 3)) || { sed -n '2,12p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
mkdir -p "$2"
output=$(realpath "$2") size=${3:-full}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}

source tools/device/environment.sh
echo "$machine, commit $commit"
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SCOREMOD_COMMIT=$commit SCOREMOD_LIBRARY=$libraries/libscoremod.so PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1
source tools/device/steps.sh

bench=(--seconds "${BENCH_SECONDS:-200}") import=() integrations=(--machine "$machine")
if [[ $size == small ]]; then
  bench+=(--batch 1 --heads 2 --seq 128 --dim 32 --dtype float32 --device cpu)
  import=(--steps 6) integrations+=(--device cpu)
fi
# One test that hangs must not take the time of the others; -v names each in the log as it ends.
tests=("$python" -m pytest -v -rs -p no:cacheprovider)
"$python" -c 'import pytest_timeout' 2>/dev/null && tests+=(--timeout=120)
"$python" -c 'import torch; print(torch.__version__, torch.cuda.device_count(), "GPUs")'

step torch_gpu_tests 300 "${tests[@]}" tests/device/torch
step torch_one_import 120 "$python" tools/device/one_import.py "$output/torch_one_import.json" "${import[@]}"
step torch_integrations 230 "$python" tools/device/integrations.py "$output/torch_integrations.json" "${integrations[@]}"
step torch_bench 250 "$python" bench/torch/flex_attention.py "$output/torch_h200.json" "${bench[@]}"
step torch_cpu_tests 400 "${tests[@]}" tests/torch

end_steps
