#!/usr/bin/env bash
# Makes the records of the cudnn backend on a machine with a GPU, all in one call.
#
#   usage: tools/device/record.sh FOLDER OUT [PART...]
#
# FOLDER is what pack.sh made, or a build folder. The records go to the folder OUT:
#   tests       scoremod_device_tests                            -> device_tests.log, device_tests.jsonl, operand_gradients.json
#   verdicts    trial runs of the zoo's lowerings, none stored   -> verdicts.json (for src/backend/cudnn/patterns/verdicts), zoo_check.json
#   suite       the zoo and 500 random problems on cudnn         -> cudnn_check.json (merge.py checks --short makes the record)
#   gpu_suite   the same on the engines that a user would get    -> gpu_check.json
#   bench       beside graphs by hand                            -> h200.json and its picture (for bench/results)
#   patterns    the pattern explorer                             -> patterns.json (merge.py patterns makes a table of it)
#   first_use   building, verifying and planning a new modifier  -> first_use.json (for bench/results)
#   peers       beside other libraries, by PyTorch               -> peers.json and its picture (see peers.sh)
#   jax         JAX's tests, benchmark and examples              -> jax/ (see jax.sh)
# Without PARTs: tests, verdicts and suite. The exit code is 0 when every part ended with 0.
set -uo pipefail

(($# >= 2)) || { sed -n '2,14p' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd) || exit 2
out=$2
shift 2
(($# > 0)) || set -- tests verdicts suite
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$out"
[[ -n ${SCOREMOD_COMMIT:-} || ! -s $folder/commit ]] || export SCOREMOD_COMMIT=$(<"$folder/commit")
source "$here/environment.sh"
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
stores=$(mktemp -d)
trap 'rm -rf "$stores"' EXIT

tests() {
  local status=0
  export SCOREMOD_CACHE_DIR=$stores/tests SCOREMOD_DEVICE_RESULTS=$out/device_tests.jsonl
  "$folder/bin/scoremod_device_tests" --gtest_filter='CudnnBackend.*:GeneratedKernels.*' >"$out/device_tests.log" 2>&1 || status=1
  grep -e '^\[  [A-Z ]*\] [0-9]' -e 'FAILED' "$out/device_tests.log" | sort -u
  "$here/operand_gradients.sh" "$folder/bin/scoremod_device_tests" "$out/operand_gradients.json" || status=1
  return "$status"
}

verdicts() {
  export SCOREMOD_CACHE_DIR=$stores/verdicts
  "$here/check_suite.sh" "$folder/bin/scoremod" "$out/zoo_check.json" --backend cudnn --random 0 &&
    "$folder/bin/scoremod_cudnn" explore --verdicts "$SCOREMOD_CACHE_DIR" --machine "$machine" --commit "$commit" -o "$out/verdicts.json"
}

gpu_suite() {
  export SCOREMOD_CACHE_DIR=$stores/gpu_suite
  "$here/check_suite.sh" "$folder/bin/scoremod" "$out/gpu_check.json" --memory cuda --random 500
}

suite() {
  export SCOREMOD_CACHE_DIR=$stores/suite
  "$here/check_suite.sh" "$folder/bin/scoremod" "$out/cudnn_check.json" --backend cudnn --random 500
}

bench() { SCOREMOD_CACHE_DIR=$stores/bench "$here/bench.sh" "$folder" "$out/h200.json"; }

patterns() { "$here/explore_patterns.sh" "$folder/bin/scoremod_cudnn" "$out/patterns.json" --commit "$commit"; }

first_use() {
  SCOREMOD_LIBRARY=$folder/lib/libscoremod.so PYTHONPATH=$here/../../python python3 "$here/first_use.py" "$out/first_use.json" \
    --machine "$machine" --commit "$commit" | tail -n 1
}

peers() { "$here/peers.sh" "$folder/lib" "$out/peers.json"; }

jax() { "$here/jax.sh" "$folder/lib" "$out/jax"; }

status=0
for part in "$@"; do
  declare -F "$part" >/dev/null || { echo "no part $part: expected tests, verdicts, suite, gpu_suite, bench, patterns, first_use, peers or jax" >&2; exit 2; }
  start=$SECONDS
  code=0
  ("$part") || code=$?
  ((code == 0)) || status=1
  echo "== $part: exit status $code after $((SECONDS - start)) s"
done
exit "$status"
