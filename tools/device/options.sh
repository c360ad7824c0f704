#!/usr/bin/env bash
# Runs the cells of docs/reference/options.md that a device decides, and adds what it finds to the record.
#
#   usage: tools/device/options.sh FOLDER RECORD.json [SECONDS [new]]
#
# FOLDER is what pack.sh made, or a build folder. Cells that the record has of this commit are left out (with `new` those that it has of any),
# and those that it has not at all, or that were wrong, come first. It ends after SECONDS (60) and the cells then begun; cells that it did not come to keep what the record had of them. Every few seconds
# the record gets what was found until then, and a line says how much. cuDNN builds one plan at a time in a process, so that several processes
# share the cells: SCOREMOD_PROCESSES of them (one for four cores). Afterwards tests/conformance/options_page_test.cpp writes the page, with
# SCOREMOD_UPDATE_GOLDEN=1. The exit code is 0 when no cell was wrong.
set -uo pipefail

(($# >= 2)) || { sed -n '2,12p' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd) || exit 2
record=$2
here=$(dirname "${BASH_SOURCE[0]}")
[[ -n ${SCOREMOD_COMMIT:-} || ! -s $folder/commit ]] || export SCOREMOD_COMMIT=$(<"$folder/commit")
source "$here/environment.sh"
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

seconds=${3:-60}
cores=$(nproc)
processes=${SCOREMOD_PROCESSES:-$(((cores + 3) / 4))}
# All processes share out one order of the cells, which are those that the record did not have when they began.
[[ ! -s $record ]] || cp "$record" "$work/before.json"
export SCOREMOD_TEST_SEED=${SCOREMOD_TEST_SEED:-$((RANDOM * 32768 + RANDOM))} SCOREMOD_OPTIONS_COMMIT=$commit
[[ ${4:-} != new ]] || SCOREMOD_OPTIONS_COMMIT=any
export SCOREMOD_OPTIONS_RECORD=$work/before.json SCOREMOD_OPTIONS_SECONDS=$seconds SCOREMOD_CACHE_DIR=$work/store
export SCOREMOD_OPTIONS_THREADS=$((cores / processes + 1))
children=()
for ((part = 0; part < processes; ++part)); do
  : >"$work/cells.$part"
  SCOREMOD_OPTIONS_PART="$part $processes" SCOREMOD_OPTIONS_RESULTS=$work/cells.$part timeout "$((seconds + 60))" \
    "$folder/bin/scoremod_device_tests" --gtest_brief=1 --gtest_filter='DeviceOptions.*' >"$work/log.$part" 2>&1 &
  children+=($!)
done

merge() {
  # A line that is being written has no end yet.
  grep -h '}$' "$work"/cells.[0-9]* >"$work/found"
  python3 "$here/merge.py" options "$record" "$work/found" "$machine" "$commit"
}

while [[ -n $(jobs -pr) ]]; do
  for ((second = 0; second < 10; ++second)); do
    [[ -z $(jobs -pr) ]] || sleep 1
  done
  echo "$SECONDS s: $(merge)"
done
status=0
for ((part = 0; part < processes; ++part)); do
  wait "${children[part]}" || status=1
  # The wrong cells, and the number of all.
  grep -v -e '^Running main' -e '^Note: ' "$work/log.$part" | head -n 40
done
merge || status=1
exit "$status"
