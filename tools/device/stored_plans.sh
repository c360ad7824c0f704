#!/usr/bin/env bash
# usage: tools/device/stored_plans.sh build BIN STORE       on any machine, with cuDNN and without a device
#        tools/device/stored_plans.sh compare BIN STORE ... on a machine with an NVIDIA H200; prints the report
# Shows that plans which were built without a device load and run on it as those built there. BIN is a build's bin folder; what follows
# STORE goes to `scoremod_cudnn compare`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
problems=("$here"/stored_plans/*.json)
step=${1:?build or compare} bin=${2:?the folder of the binaries} store=${3:?the folder of the plan store}
shift 3
case "$step" in
  build) exec "$bin/scoremod" compile --device "$here/../../src/backend/cudnn/devices/h200.json" "${problems[@]}" -o "$store" ;;
  compare) exec "$bin/scoremod_cudnn" compare "$store" "${problems[@]}" "$@" ;;
  *)
    echo "expected build or compare, found $step" >&2
    exit 2
    ;;
esac
