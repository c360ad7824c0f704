#!/usr/bin/env bash
# Runs the check suite on a machine with a GPU and writes its report.
#
#   usage: tools/device/check_suite.sh COMMAND REPORT.json [CHECK ARGUMENTS]
#
# COMMAND is build/release/bin/scoremod, which may have been built on another machine; it is built when it is not there. Without
# CHECK ARGUMENTS they are `--backend cudnn --random 500`. cuDNN and the CUDA runtime are taken from the loader's path or, where
# Python has them, from its `nvidia` packages. A log lies beside REPORT.json. The exit code is that of `scoremod check --suite`.
set -euo pipefail

(($# >= 2)) || { sed -n '2,9p' "$0" >&2; exit 2; }
command=$1 report=$2
shift 2
(($# > 0)) || set -- --backend cudnn --random 500

root=$(dirname "${BASH_SOURCE[0]}")/../..
[[ -x $command ]] || "$root/dev" build release

packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [[ -n $packages ]]; then
  export LD_LIBRARY_PATH=$packages/cudnn/lib:$packages/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
machine="${gpu:-no GPU}, $(nproc) cores"
# A copy of the tree without its history says nothing; SCOREMOD_COMMIT does then.
commit=${SCOREMOD_COMMIT:-$(git -C "$root" describe --always --dirty 2>/dev/null || true)}
mkdir -p "$(dirname "$report")"
log=${report%.json}.log
status=0
"$command" check --suite --out "$report" --machine "$machine" --commit "$commit" --verbose "$@" 2>"$log" || status=$?
grep -vE '^(begin|done) ' "$log" >&2 || true
if ((status > 5)); then
  echo "the process ended with status $status; under way were:" >&2
  awk '$1 == "begin" { open[$2] } $1 == "done" { delete open[$2] } END { for (name in open) print "  " name }' "$log" >&2
fi
exit "$status"
