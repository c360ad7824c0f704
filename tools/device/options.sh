#!/usr/bin/env bash
# Runs the cells of docs/options.md that a device decides, and adds what it finds to the record.
#
#   usage: tools/device/options.sh FOLDER RECORD.json [SECONDS]
#
# FOLDER is what pack.sh made, or a build folder. It ends after SECONDS (60) and the cells then begun; cells that it did not come to keep what
# the record had of them. Afterwards tests/conformance/options_page_test.cpp writes the page, with SCOREMOD_UPDATE_GOLDEN=1. The exit code is 0
# when no cell was wrong.
set -uo pipefail

(($# >= 2)) || { sed -n '2,8p' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd) || exit 2
record=$2
here=$(dirname "${BASH_SOURCE[0]}")
[[ -n ${SCOREMOD_COMMIT:-} || ! -s $folder/commit ]] || export SCOREMOD_COMMIT=$(<"$folder/commit")
source "$here/environment.sh"
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

seconds=${3:-60}
SCOREMOD_CACHE_DIR=$work/store SCOREMOD_OPTIONS_SECONDS=$seconds SCOREMOD_OPTIONS_RESULTS=$work/cells.jsonl \
  timeout "$((seconds + 60))" "$folder/bin/scoremod_device_tests" --gtest_brief=1 --gtest_filter='DeviceOptions.*'
status=$?
python3 "$here/merge_options.py" "$record" "$work/cells.jsonl" "$machine" "$commit" || status=1
exit "$status"
