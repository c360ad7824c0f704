#!/usr/bin/env bash
# usage: tools/acceptance.sh [--newest | --cudnn VERSION] [ARGUMENTS of scoremod_acceptance, such as --update]
# Asks cuDNN which plans it builds on five architectures, without a device, and compares with the committed table: docs/plans.md.
# --newest and --cudnn fetch nvidia-cudnn-jit-cu13 from PyPI (75 MB) and use it instead of the installed cuDNN.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command=
for preset in release dev; do
  if [[ -z "$command" && -x build/$preset/bin/scoremod_acceptance ]]; then command=build/$preset/bin/scoremod_acceptance; fi
done
if [[ -z "$command" ]]; then
  echo "tools/acceptance.sh: scoremod_acceptance is not built: run ./dev build" >&2
  exit 4
fi

package=
case "${1:-}" in
  --newest) package=nvidia-cudnn-jit-cu13 && shift ;;
  --cudnn) package="nvidia-cudnn-jit-cu13==${2:?a version, such as 9.19.0.56}" && shift 2 ;;
esac
if [[ -n "$package" ]]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$package"
  export LD_LIBRARY_PATH="$folder/nvidia/cudnn_jit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
"$command" --devices src/backend/cudnn/devices --tables tests/golden/cudnn_acceptance "$@"
