#!/usr/bin/env bash
# Runs the benchmark on a machine with a GPU.
#
#   usage: tools/device/bench.sh FOLDER REPORT.json [ARGUMENTS]
#
# FOLDER is what pack.sh made, or a build folder. First every plan of a process with an empty store is compared with that of one with the
# store that it left; then every case is timed beside the same attention by hand with cudnn-frontend. Prints the table and the performance targets, and
# writes the report, REPORT.log, and REPORT.png where Python has matplotlib. ARGUMENTS go to the benchmark: --only causal soft_cap,
# say. REPETITIONS is how often each is timed. The exit code is 0 when every case that was run was measured and computed what its reference computes, and the filled store left nothing to build.
set -euo pipefail

(($# >= 2)) || { sed -n '2,10p' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd) report=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
source "$here/environment.sh"

status=0
mkdir -p "$(dirname "$report")"
"$folder/bin/scoremod_bench" --cases "$here/../../bench/gpu_cases.json" --backend cudnn --repetitions "${REPETITIONS:-41}" --out "$report" \
  --predictions "$here/../../bench/results/prediction.json" \
  --machine "$machine" --commit "${commit:-unknown}" "$@" 2>&1 | tee "${report%.json}.log" || status=1
[[ -s $report ]] || exit 1
python3 "$here/../../bench/plot.py" "$report" "${report%.json}.png" 2>/dev/null ||
  echo "no picture; where matplotlib is: bench/plot.py $report ${report%.json}.png"
exit "$status"
