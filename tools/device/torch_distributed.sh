#!/usr/bin/env bash
# Holds attention that is sharded over several GPUs of one machine, through NCCL, to that of one: by ring, by gathering, over batch and heads.
#
#   usage: tools/device/torch_distributed.sh LIBRARIES [GPUS]
#
# LIBRARIES has libscoremod.so; it may have been built on another machine. GPUS: 2 without it. PYTHON is the Python with torch. Each case prints a line
# for each GPU; the exit code is 0 when all are right.
set -euo pipefail

(($# == 1 || $# == 2)) || { sed -n '2,7p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

source tools/device/environment.sh
echo "$machine, commit $commit"
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SCOREMOD_LIBRARY=$libraries/libscoremod.so PYTHONPATH=python
export SCOREMOD_TEST_SEED=${SCOREMOD_TEST_SEED:-$RANDOM} PYTHONDONTWRITEBYTECODE=1
echo "SCOREMOD_TEST_SEED=$SCOREMOD_TEST_SEED"
"${PYTHON:-python3}" -m torch.distributed.run --standalone --nproc-per-node "${2:-2}" tests/torch/distributed_processes.py
