#!/usr/bin/env bash
# Holds the persistent decode kernel to the oracle on a machine with a GPU, and times it beside the kernels that split the longest possible
# length, in turns, for sequences of different lengths over pages.
#
#   usage: tools/device/decode_lengths.sh BINARY OUTPUT.json
#
# BINARY is build/release/bin/scoremod_device_tests, which may have been built on another machine. Kernels are compiled by several processes at
# once, beside the tests, and the times are measured by one process alone; sampled rows of what is timed are held to float64. The table says
# milliseconds, and the part of the rate of a copy, which is measured with each case. Without a GPU small cases run on the emulated device
# alone. The exit code is 0 when every test passed. SCOREMOD_TIMES is GoogleTest's filter for the timed cases.
set -euo pipefail

(($# == 2)) || { sed -n '2,12p' "$0" >&2; exit 2; }
binary=$(realpath "$1") output=$2
shards=${SCOREMOD_SHARDS:-8} seconds=${SCOREMOD_TEST_SECONDS:-240} times=${SCOREMOD_TIMES:-*DecodeLengthsTimes*}
export SCOREMOD_TEST_SEED=${SCOREMOD_TEST_SEED:-1}

here=$(dirname "${BASH_SOURCE[0]}")
source "$here/environment.sh"
export LD_LIBRARY_PATH=$(realpath "$(dirname "$binary")/../lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SCOREMOD_CACHE_DIR=$work/cache
status=0 pids=()

if [[ -z $gpu ]]; then
  echo 'no GPU: the timed cases, at a part of their size, on the emulated device'
  exec "$binary" --gtest_filter='DecodeLengths.*'
fi

start=$SECONDS
for ((shard = 0; shard < shards; ++shard)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout "$seconds" "$binary" --gtest_brief=1 \
    --gtest_filter='*PersistentSplitKvAttentionKernels.*' >"$work/$shard.log" 2>&1 &
  pids+=($!)
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard SCOREMOD_DEVICE_TIMES=build timeout "$seconds" "$binary" --gtest_brief=1 \
    --gtest_filter="$times" >"$work/build.$shard.log" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
echo "tests: status $status after $((SECONDS - start)) s"
((status == 0)) || grep -hv -e '^\[=*\]' -e '^Running main' "$work"/*.log | cut -c1-260 | head -n 60 || true

start=$SECONDS
SCOREMOD_DEVICE_TIMES=1 SCOREMOD_DEVICE_RESULTS=$work/times.jsonl timeout "$seconds" "$binary" --gtest_brief=1 \
  --gtest_filter="$times" >"$work/times.log" 2>&1 || { status=1; tail -n 20 "$work/times.log" | cut -c1-260; }
echo "times after $((SECONDS - start)) s"
mkdir -p "$(dirname "$output")"
"${PYTHON:-python3}" -c '
import json, sys
results = [json.loads(line) for line in open(sys.argv[4])]
json.dump({"machine": sys.argv[1], "commit": sys.argv[2], "results": results}, open(sys.argv[3], "w"), indent=1)
for case in dict.fromkeys(row["case"] for row in results):
    rows = [row for row in results if row["case"] == case]
    print(f"{case}: " + "; ".join("{shape} {ms:.4f} ms, {of_copy:.0%} of a copy, error {error:.4f}".format(**row) for row in rows))
' "$machine" "$commit" "$output" "$work/times.jsonl"
exit $status
