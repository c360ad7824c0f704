#!/usr/bin/env bash
# Runs the device tests of scoremod's own attention kernels on a machine with a GPU, times them, and writes what was found.
#
#   usage: tools/device/attention_kernels.sh BINARY OUTPUT.json
#
# BINARY is build/release/bin/scoremod_device_tests, which may have been built on another machine. The tests, of both families of kernels
# where the GPU runs both, run in several processes at once while others compile the kernels that are timed; then the times are measured by
# one process alone, with PyTorch's beside them where it is installed. One case runs under compute-sanitizer beside the others. The exit
# code is 0 when every test passed.
set -euo pipefail

(($# == 2)) || { sed -n '2,10p' "$0" >&2; exit 2; }
binary=$(realpath "$1") output=$2
shards=${SCOREMOD_SHARDS:-10} case=${SCOREMOD_SANITIZER_CASE:-3} seconds=${SCOREMOD_TEST_SECONDS:-150}
tests=${SCOREMOD_TESTS:-*AttentionKernels.*} times=${SCOREMOD_TIMES:-*AttentionKernelTimes*}
export SCOREMOD_TEST_SEED=${SCOREMOD_TEST_SEED:-1}

here=$(dirname "${BASH_SOURCE[0]}")
source "$here/environment.sh"
# pack.sh put everything that the tests need there.
export LD_LIBRARY_PATH=$(realpath "$(dirname "$binary")/../lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# The kernels that racecheck names as writing what others read, one for each such instruction.
races_of() { grep -o 'Write access at [a-z_]*+0x[0-9a-f]*' "$1" | sort -u | sed 's/.* at //; s/+.*//'; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SCOREMOD_CACHE_DIR=$work/cache
status=0

start=$SECONDS
pids=()
for ((shard = 0; shard < shards; ++shard)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard SCOREMOD_DEVICE_RESULTS=$work/$shard.jsonl timeout "$seconds" \
    "$binary" --gtest_brief=1 --gtest_filter="$tests" >"$work/$shard.log" 2>&1 &
  pids+=($!)
done
for ((shard = 0; shard < 6; ++shard)); do
  GTEST_TOTAL_SHARDS=6 GTEST_SHARD_INDEX=$shard SCOREMOD_DEVICE_TIMES=build timeout "$seconds" "$binary" --gtest_brief=1 \
    --gtest_filter="$times" >"$work/build.$shard.log" 2>&1 &
  pids+=($!)
done
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    {
      verdict=clean
      timeout "$seconds" compute-sanitizer --tool $tool --error-exitcode 99 "$binary" --gtest_brief=1 \
        --gtest_filter="Cases/AttentionKernels.AreRight/$((3 * case)):Cases/AttentionKernels.AreRight/$((3 * case + 1)):Cases/AttentionKernels.AreRight/$((3 * case + 2))" \
        >"$work/$tool.log" 2>&1 || verdict="not clean ($?)"
      ! grep -q 'PASSED.* 0 tests' "$work/$tool.log" || verdict='no test ran'
      # racecheck does not follow bulk copies to the barriers that they complete: bulk_copy_ring.cu shows it.
      races=$(races_of "$work/$tool.log" | tr '\n' ' ') || true
      if [[ $tool == racecheck && $verdict == 'not clean'* && $races =~ ^(hopper_backward_fused )?(hopper_backward_keys )?$ && -n $races ]]; then
        verdict='clean but for bulk copies'
      fi
      echo "{\"kind\": \"$tool\", \"verdict\": \"$verdict\"}" >"$work/$tool.jsonl"
      [[ $verdict == clean* ]] || tail -n 25 "$work/$tool.log" | cut -c1-200
      [[ $verdict == clean* ]]
    } &
    pids+=($!)
  done
fi
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
cat "$work"/*check.jsonl
echo "tests: status $status after $((SECONDS - start)) s, $(cat "$work"/*.jsonl | wc -l) outputs"
((status == 0)) || grep -hv -e '^\[=*\]' -e '^Running main' -e '^Note:' "$work"/*.log | cut -c1-260 | head -n 90 || true

start=$SECONDS
SCOREMOD_DEVICE_TIMES=1 SCOREMOD_DEVICE_RESULTS=$work/times.jsonl timeout "$seconds" "$binary" --gtest_brief=1 \
  --gtest_filter="$times" || status=1
echo "times after $((SECONDS - start)) s"
timeout 40 "${PYTHON:-python3}" "$here/torch_attention_times.py" | tee "$work/torch.jsonl" || true

mkdir -p "$(dirname "$output")"
cat "$work"/*.jsonl | "${PYTHON:-python3}" -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin if line.startswith("{")]
try:
    import torch
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
except ImportError:
    versions = {}
json.dump({"machine": sys.argv[1], "versions": versions, "commit": sys.argv[2], "results": lines}, open(sys.argv[3], "w"), indent=1)
' "$machine" "$commit" "$output"
exit $status
