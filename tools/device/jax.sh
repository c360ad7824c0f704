#!/usr/bin/env bash
# Runs JAX's tests, examples and benchmark on a machine with GPUs, and writes what they found.
#
#   usage: tools/device/jax.sh LIBRARIES OUTPUT [small]
#
# LIBRARIES has libscoremod.so, libscoremod_jax.so and, where the system has none, libhwy.so.1; they may have been built on another machine.
# OUTPUT is a folder: jax_h200.json (the benchmark), jax_sharding.json (with several GPUs), char_model/, and a log of each step. `small` runs
# small shapes, on the CPU too. PYTHON is the Python with jax (and flax, hypothesis, pytest, matplotlib; what lacks one of them says so).
# STEPS is a list of those to run, all of them without it: the most important first. SECONDS_LEFT is how long all of it may take (560): a
# step that it doesn't reach is named, to be run by another call. SCOREMOD_COMMIT says what was run where there is no history. cuDNN is
# taken from the loader's path or Python's `nvidia` packages. The exit code is 0 when every step passed.
set -uo pipefail

(($# == 2 || $# == 3)) || { sed -n '2,13p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
mkdir -p "$2"
output=$(realpath "$2") size=${3:-full}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}

source tools/device/environment.sh
echo "$machine, commit $commit"
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SCOREMOD_COMMIT=$commit SCOREMOD_LIBRARY=$libraries/libscoremod.so PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1
# XLA would take most of the device's memory for itself, which several processes share here.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# A program that ends while it uses NVLink multicast may leave the GPUs of a shared host unusable.
export NCCL_NVLS_ENABLE=0
source tools/device/steps.sh

if [[ $size == small ]]; then
  bench=(--batch 1 --heads 2 --seq 128 --dim 32 --dtype float32)
  shards=(--batch 4 --heads 4 --seq 128 --dim 32 --dtype float32)
  text=(--steps 5 --seq 64)
  block=(--features 32 --hidden 64 --seq 64 --window 16)
  packed=(--steps 5 --layers 1 --tokens 128)
  paged=(--tokens 10)
else
  bench=() shards=()
  text=(--layers 4 --heads 8 --head-dim 64 --seq 1024 --batch 8 --steps 1000 --dtype bfloat16)
  block=(--seq 4096 --window 1024 --dtype bfloat16)
  packed=(--head-dim 64 --tokens 1024 --dtype bfloat16)
  paged=(--head-dim 64 --dtype bfloat16)
fi

# One test that hangs must not take the time of the others; -v names each in the log as it ends.
tests=("$python" -m pytest -v -rs -p no:cacheprovider)
"$python" -c 'import pytest_timeout' 2>/dev/null && tests+=(--timeout=120)
devices=$("$python" -c 'import jax; print(jax.devices()); print(jax.device_count())' 2>&1) || true
echo "$devices"

step jax_gpu_tests 450 "${tests[@]}" tests/device/jax
step jax_bench 300 "$python" bench/jax/flex_attention.py "$output/jax_h200.json" "${bench[@]}"
step char_model 200 "$python" examples/jax/char_model.py --out "$output/char_model" "${text[@]}"
[[ ${devices##*$'\n'} =~ ^([0-9]+)$ ]] && ((BASH_REMATCH[1] > 1)) &&
  step jax_sharding 300 "$python" bench/jax/sharding.py "$output/jax_sharding.json" "${shards[@]}"
step gemma_block 150 "$python" examples/jax/gemma_block.py "${block[@]}"
step packed_documents 150 "$python" examples/jax/packed_documents.py "${packed[@]}"
step paged_decoding 100 "$python" examples/jax/paged_decoding.py "${paged[@]}"
step jax_cpu_tests 500 "${tests[@]}" tests/jax

end_steps
