#!/usr/bin/env bash
# Runs the benchmark on a machine with a GPU.
#
#   usage: tools/device/bench.sh pack BUILD FOLDER               where it was built: BUILD is build/release
#          tools/device/bench.sh run FOLDER REPORT.json [ARGUMENTS]   on the machine with the GPU
#
# `pack` gathers the executable and the libraries that another machine may lack (some MB). `run` first compares every plan of a process
# with an empty store and of one with the store that it left, then times every case beside the same attention by hand with
# cudnn-frontend, prints the table and the promises, and writes the report, REPORT.log, and REPORT.png where Python has matplotlib.
# ARGUMENTS go to the benchmark: --only causal soft_cap, say. cuDNN and the CUDA runtime are taken from the loader's path or, where
# Python has them, from its `nvidia` packages. SCOREMOD_COMMIT says what was measured where there is no history. The exit code is 0 when
# every case was measured and computed what its reference computes, and the filled store left nothing to build.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  sed -n '2,14p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

pack() {
  local build=$1 folder=$2 library
  mkdir -p "$folder"
  cp "$build/bin/scoremod_bench" "$folder/"
  # What is not a part of every system: scoremod's own library and Highway's.
  ldd "$build/bin/scoremod_bench" | awk '$3 ~ /libscoremod|libhwy/ { print $3 }' | while read -r library; do
    cp -L "$library" "$folder/"
  done
  git -C "$root" describe --always --dirty >"$folder/commit" 2>/dev/null || true
  du -sh "$folder"
}

run() {
  local folder report=$2 packages gpu commit status=0
  folder=$(cd "$1" && pwd)
  shift 2
  packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
  if [[ -n $packages ]]; then
    export LD_LIBRARY_PATH=$packages/cudnn/lib:$packages/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
  commit=${SCOREMOD_COMMIT:-$(cat "$folder/commit" 2>/dev/null || true)}
  mkdir -p "$(dirname "$report")"
  "$folder/scoremod_bench" --cases "$root/bench/gpu_cases.json" --backend cudnn --repetitions 15 --output "$report" \
    --machine "${gpu:-no GPU}, $(nproc) cores" --commit "${commit:-unknown}" "$@" 2>&1 | tee "${report%.json}.log" || status=1
  [[ -s $report ]] || return 1
  python3 "$root/bench/plot.py" "$report" "${report%.json}.png" 2>/dev/null ||
    echo "no picture; where matplotlib is: bench/plot.py $report ${report%.json}.png"
  return "$status"
}

(($# >= 3)) || usage
step=$1
shift
case "$step" in
  pack) pack "$@" ;;
  run) run "$@" ;;
  *) usage ;;
esac
