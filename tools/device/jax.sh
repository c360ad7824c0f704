#!/usr/bin/env bash
# Runs JAX's tests, examples and benchmark on a machine with GPUs, and writes what they found.
#
#   usage: tools/device/jax.sh LIBRARIES OUTPUT [small]
#
# LIBRARIES has libscoremod.so, libscoremod_jax.so and, where the system has none, libhwy.so.1; they may have been built on another machine.
# OUTPUT is a folder: jax_h200.json (the benchmark), jax_sharding.json (with several GPUs), char_model/, and a log of each step. `small` runs
# small shapes, on the CPU too. PYTHON is the Python with jax (and flax, hypothesis, pytest, matplotlib; what lacks one of them says so).
# STEPS is a list of those to run, all of them without it. SCOREMOD_COMMIT says what was run where there is no history. cuDNN is taken from
# the loader's path or Python's `nvidia` packages. The exit code is 0 when every step passed.
set -uo pipefail

(($# == 2 || $# == 3)) || { sed -n '2,12p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
mkdir -p "$2"
output=$(realpath "$2") size=${3:-full}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}

packages=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
export LD_LIBRARY_PATH=$libraries${packages:+:$packages/cudnn/lib:$packages/cu13/lib}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SCOREMOD_LIBRARY=$libraries/libscoremod.so PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1
# XLA would take most of the device's memory for itself, which several processes share here.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

failed=()
# step NAME SECONDS COMMAND...: with its output in a log, of which the end is shown.
step() {
  local name=$1 seconds=$2 start=$SECONDS status=0
  shift 2
  [[ " ${STEPS:-$name} " == *" $name "* ]] || return 0
  timeout "$seconds" "$@" >"$output/$name.log" 2>&1 || status=$?
  printf '==> %s: exit status %d after %d s\n' "$name" "$status" $((SECONDS - start))
  tail -n 12 "$output/$name.log"
  ((status == 0)) || failed+=("$name")
}

if [[ $size == small ]]; then
  bench=(--batch 1 --heads 2 --seq 128 --dim 32 --dtype float32)
  shards=(--batch 4 --heads 4 --seq 128 --dim 32 --dtype float32)
  text=(--steps 5 --seq 64)
  block=(--features 32 --hidden 64 --seq 64 --window 16)
else
  bench=() shards=()
  text=(--layers 4 --heads 8 --head-dim 64 --seq 1024 --batch 8 --steps 1000 --dtype bfloat16)
  block=(--seq 4096 --window 1024 --dtype bfloat16)
fi

step jax_gpu_tests 500 "$python" -m pytest -q -rs -p no:cacheprovider tests/device/jax
step jax_bench 500 "$python" bench/jax/flex_attention.py "$output/jax_h200.json" "${bench[@]}"
if (($("$python" -c 'import jax; print(jax.device_count())') > 1)); then
  step jax_sharding 400 "$python" bench/jax/sharding.py "$output/jax_sharding.json" "${shards[@]}"
fi
step char_model 400 "$python" examples/jax/char_model.py --out "$output/char_model" "${text[@]}"
step gemma_block 300 "$python" examples/jax/gemma_block.py "${block[@]}"
step jax_cpu_tests 500 "$python" -m pytest -q -p no:cacheprovider tests/jax

if ((${#failed[@]} > 0)); then
  printf 'failed: %s\n' "${failed[*]}"
  exit 1
fi
