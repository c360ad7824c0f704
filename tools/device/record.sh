#!/usr/bin/env bash
# Makes the records of the cudnn backend on a machine with a GPU, all in one call.
#
#   usage: tools/device/record.sh BUILD OUT [PART...]
#
# BUILD is a build folder such as build/release, which may have been built on another machine. The records go to the folder OUT:
#   tests       scoremod_device_tests                            -> device_tests.log
#   admissions  trial runs of the zoo's lowerings, none stored   -> admitted.json (for src/backend/cudnn/admitted), zoo_check.json
#   suite       the zoo and 500 random problems                  -> cudnn_check.json (for bench/results)
#   forms       the form explorer                                -> forms.json (for src/backend/cudnn/forms)
# Without PARTs: tests, admissions and suite. The exit code is 0 when every part ended with 0.
set -uo pipefail

(($# >= 2)) || { sed -n '2,12p' "$0" >&2; exit 2; }
build=$1 out=$2
shift 2
(($# > 0)) || set -- tests admissions suite
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$out"

packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [[ -n $packages ]]; then
  export LD_LIBRARY_PATH=$packages/cudnn/lib:$packages/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
machine="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1), $(nproc) cores"
commit=${SCOREMOD_COMMIT:-$(git -C "$here" describe --always --dirty 2>/dev/null || true)}
stores=$(mktemp -d)
trap 'rm -rf "$stores"' EXIT

tests() { SCOREMOD_CACHE_DIR=$stores/tests "$build/bin/scoremod_device_tests" >"$out/device_tests.log" 2>&1; }

admissions() {
  export SCOREMOD_CACHE_DIR=$stores/admissions
  "$here/check_suite.sh" "$build/bin/scoremod" "$out/zoo_check.json" --backend cudnn --random 0 &&
    "$build/bin/scoremod_explore" --admissions "$SCOREMOD_CACHE_DIR" --machine "$machine" --commit "$commit" -o "$out/admitted.json"
}

suite() {
  export SCOREMOD_CACHE_DIR=$stores/suite
  "$here/check_suite.sh" "$build/bin/scoremod" "$out/cudnn_check.json" --backend cudnn --random 500
}

forms() { "$here/explore_forms.sh" "$build/bin/scoremod_explore" "$out/forms.json" --commit "$commit"; }

status=0
for part in "$@"; do
  declare -F "$part" >/dev/null || { echo "no part $part: expected tests, admissions, suite or forms" >&2; exit 2; }
  start=$SECONDS
  code=0
  ("$part") || code=$?
  ((code == 0)) || status=1
  echo "== $part: exit status $code after $((SECONDS - start)) s"
done
exit "$status"
