#!/usr/bin/env bash
# Times paged decoding and mixed batches of scoremod beside FlashInfer and FlashAttention-3 on a machine with a GPU.
#
#   usage: tools/device/serving.sh LIBRARIES REPORT.json [SECONDS]
#
# LIBRARIES has libscoremod.so (and libscoremod_jax.so for FlashAttention-3). REPORT.json is written, or continued. It begins nothing after SECONDS
# (300). FLASHINFER is a folder with the unpacked wheels of flashinfer-python and what it needs, and FA3 one with flash-attn3-jax's: without them
# these are refused or left out. FLASHINFER_WORKSPACE_BASE may have what FlashInfer compiled, else it compiles with nvcc while a case waits.
set -uo pipefail

(($# >= 2)) || { sed -n '2,9p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
mkdir -p "$(dirname "$2")"
report=$(realpath "$2") seconds=${3:-300}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/device/environment.sh
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SCOREMOD_LIBRARY=$libraries/libscoremod.so PYTHONDONTWRITEBYTECODE=1 SCOREMOD_NEW_SIZES=wait
python=${PYTHON:-python3}

status=0 end=$((SECONDS + seconds))
PYTHONPATH=python${FLASHINFER:+:$FLASHINFER} timeout $((seconds + 60)) \
  "$python" bench/serving/beside_flashinfer.py "$report" --seconds "$seconds" --machine "$machine" --commit "$commit" || status=1
if [[ -n ${FA3:-} ]] && ((end > SECONDS)); then
  export XLA_PYTHON_CLIENT_PREALLOCATE=false
  PYTHONPATH=python:$FA3 timeout $((end - SECONDS + 60)) "$python" bench/serving/beside_fa3.py "$report" --seconds $((end - SECONDS)) || status=1
fi
exit "$status"
