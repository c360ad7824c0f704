#!/usr/bin/env bash
# usage: tools/cudnn/accept.sh [--newest | --cudnn VERSION] [ARGUMENTS of scoremod_cudnn accept, such as --update]
# Asks cuDNN which plans it builds on five architectures, without a device, and compares with the committed table: docs/reference/plans.md.
# --newest and --cudnn fetch cuDNN from PyPI and use it instead of the installed one: nvidia-cudnn-jit-cu13 (75 MB) where it has the
# version, and otherwise, as for the newest, nvidia-cudnn-cu13 (520 MB).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

command=
for preset in release dev; do
  if [[ -z "$command" && -x build/$preset/bin/scoremod_cudnn ]]; then command=build/$preset/bin/scoremod_cudnn; fi
done
if [[ -z "$command" ]]; then
  echo "tools/cudnn/accept.sh: scoremod_cudnn is not built: run ./dev build" >&2
  exit 4
fi

packages=()
case "${1:-}" in
  --newest) packages=(nvidia-cudnn-cu13) && shift ;;
  --cudnn)
    version=${2:?a version, such as 9.19.0.56}
    packages=("nvidia-cudnn-jit-cu13==$version" "nvidia-cudnn-cu13==$version")
    shift 2
    ;;
esac
if ((${#packages[@]} > 0)); then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  for package in "${packages[@]}"; do
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$package" && break
  done
  export LD_LIBRARY_PATH="$folder/nvidia/cudnn_jit/lib:$folder/nvidia/cudnn/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
"$command" accept --devices src/backend/cudnn/devices --tables tests/golden/cudnn_acceptance "$@"
