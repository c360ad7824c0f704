#!/usr/bin/env bash
# Runs the device tests of the generated CUDA kernels on a machine with a GPU and writes what they found.
#
#   usage: tools/device/operand_gradients.sh BINARY OUTPUT.json
#
# BINARY is build/dev/bin/scoremod_device_tests, which may have been built on another machine. The tests run in several processes at
# once, then the times are measured by one alone, then a part of the tests runs under compute-sanitizer's memcheck where that is
# installed. The exit code is 0 when every test passed.
set -euo pipefail

(($# == 2)) || { sed -n '2,9p' "$0" >&2; exit 2; }
binary=$(realpath "$1") output=$2
shards=${SCOREMOD_SHARDS:-12}
# Another seed each time, which the output has.
export SCOREMOD_TEST_SEED=${SCOREMOD_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

start=$SECONDS
pids=()
for ((shard = 0; shard < shards; ++shard)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard SCOREMOD_DEVICE_RESULTS=$work/$shard.jsonl \
    timeout "${SCOREMOD_TEST_SECONDS:-240}" "$binary" --gtest_brief=1 --gtest_filter='-GeneratedKernels.*:CudnnBackend.*:*AttentionKernels*' >"$work/$shard.log" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
echo "tests: status $status after $((SECONDS - start)) s"
((status == 0)) || grep -hv -e '^\[=*\]' -e '^Running main' -e '^Note:' "$work"/*.log | head -n 150 || true

SCOREMOD_DEVICE_TIMES=1 SCOREMOD_DEVICE_RESULTS=$work/times.jsonl timeout 120 "$binary" --gtest_brief=1 \
  --gtest_filter='OperandGradientTimes.*' || status=1

memcheck='not run: compute-sanitizer is not installed'
if command -v compute-sanitizer >/dev/null; then
  start=$SECONDS
  if timeout 150 compute-sanitizer --tool memcheck --error-exitcode 99 "$binary" --gtest_brief=1 \
    --gtest_filter='Sets/AxesGradients*:*RandomComputedNodes*/?:*RandomGradients*/1?' >"$work/memcheck.log" 2>&1; then
    memcheck=clean
  else
    memcheck='not clean' status=1
    tail -n 60 "$work/memcheck.log"
  fi
  echo "memcheck: $memcheck after $((SECONDS - start)) s"
fi

cat "$work"/*.jsonl >"$work/all" || true
mkdir -p "$(dirname "$output")"
python3 - "$work/all" "$output" "$machine" "$commit" "$memcheck" "$SCOREMOD_TEST_SEED" <<'PYTHON'
import collections, json, sys

lines, output, machine, commit, memcheck, seed = sys.argv[1:]
results = [json.loads(line) for line in open(lines, encoding="utf-8")]
head = {"machine": machine, "commit": commit, "seed": int(seed), "memcheck": memcheck}
with open(output, "w", encoding="utf-8") as file:
    file.write(json.dumps(head)[:-1] + ',\n"results": [\n')
    file.write(",\n".join(json.dumps(row) for row in results) + "\n]}\n")
print(collections.Counter((row["kind"], row.get("verdict", "measured")) for row in results))
PYTHON
exit "$status"
