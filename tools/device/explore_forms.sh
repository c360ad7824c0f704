#!/usr/bin/env bash
# Runs the form explorer on a machine with a GPU and writes its table.
#
#   usage: tools/device/explore_forms.sh BINARY OUTPUT.json [EXPLORER ARGUMENTS]
#
# BINARY is build/release/bin/scoremod_explore; it may have been built on another machine. cuDNN and the CUDA runtime are taken
# from the loader's path or, where Python has them, from its `nvidia` packages.
set -euo pipefail

(($# >= 2)) || { sed -n '2,8p' "$0" >&2; exit 2; }
binary=$1 output=$2
shift 2

packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [[ -n $packages ]]; then
  export LD_LIBRARY_PATH=$packages/cudnn/lib:$packages/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
machine="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1), $(nproc) cores"
exec "$binary" -o "$output" --machine "$machine" "$@"
