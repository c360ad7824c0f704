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
SCOREMOD_CUDNN=$(mktemp -d)
export SCOREMOD_CUDNN
trap 'rm -rf "$SCOREMOD_CUDNN"' EXIT
python3 -m tarfile -e "$folder/cudnn.tar.xz" "$SCOREMOD_CUDNN"
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
commit=$(cat "$folder/commit" 2>/dev/null || echo unknown)
"$(dirname "${BASH_SOURCE[0]}")/explore_forms.sh" "$folder/bin/scoremod_explore" "$output" --commit "$commit" "$@"
