#!/usr/bin/env bash
# Explores the version of cuDNN that pack_exploration.sh packed, on a machine with a GPU, and writes its table.
#
#   usage: tools/device/explore_version.sh FOLDER OUTPUT.json [EXPLORER ARGUMENTS]
#
# FOLDER is what pack_exploration.sh made.
set -euo pipefail

(($# >= 2)) || { sed -n '2,7p' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd) output=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m tarfile -e "$folder/explorer.tar.xz" "$work"
python3 -m tarfile -e "$folder/cudnn.tar.xz" "$work/cudnn"
export SCOREMOD_CUDNN_LIBRARIES=$work/cudnn LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$(dirname "${BASH_SOURCE[0]}")/explore_patterns.sh" "$work/bin/scoremod_cudnn" "$output" --commit "$(<"$work/commit")" "$@"
