#!/usr/bin/env bash
# Runs the check suite on a machine with a GPU, shared by several processes, and writes its report.
#
#   usage: tools/device/check_suite.sh COMMAND REPORT.json [CHECK ARGUMENTS]
#
# COMMAND is build/release/bin/scoremod, which may have been built on another machine; it is built when it is not there. Without
# CHECK ARGUMENTS they are `--backend cudnn --random 500`. cuDNN builds one plan at a time in a process, so that processes, not threads, share
# the suite: SCOREMOD_PROCESSES of them (the number of cores). REPORT.log says which problems began and were done, and which were
# under way in a process that crashed. The exit code is 0 when nothing was wrong and no process failed.
set -euo pipefail

(($# >= 2)) || { sed -n '2,11p' "$0" >&2; exit 2; }
command=$1 report=$2
shift 2
(($# > 0)) || set -- --backend cudnn --random 500

root=$(dirname "${BASH_SOURCE[0]}")/../..
[[ -x $command ]] || "$root/dev" build release

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cudnn=$(python3 -c 'import importlib.metadata as m; print(", cuDNN", m.version("nvidia-cudnn-cu13"))' 2>/dev/null || true)
machine="${gpu:-no GPU}$cudnn, $(nproc) cores"
# All parts draw their problems from one seed: a new one for each run.
[[ " $* " == *" --seed"* ]] || set -- "$@" --seed "$((RANDOM * 32768 + RANDOM))"
parts=${SCOREMOD_PROCESSES:-$(nproc)}
mkdir -p "$(dirname "$report")"
log=${report%.json}.log
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

status=0 pids=()
for ((part = 0; part < parts; ++part)); do
  "$command" check --suite --parts "$parts" --part "$part" --threads 1 --out "$work/$part.json" --machine "$machine" \
    --commit "$commit" --verbose "$@" >/dev/null 2>"$work/$part.log" &
  pids+=($!)
done
for ((part = 0; part < parts; ++part)); do
  code=0
  wait "${pids[part]}" || code=$?
  if ((code > 5)); then
    status=1
    echo "process $part ended with status $code; under way was:"
    awk '$1 == "begin" { open[$2] } $1 == "done" { delete open[$2] } END { for (name in open) print "  " name }' "$work/$part.log"
    [[ -s $work/$part.json ]] || tail -n 3 "$work/$part.log"
  fi
done
cat "$work"/*.log >"$log"
python3 "$(dirname "${BASH_SOURCE[0]}")/merge_check_reports.py" "$report" "$work"/*.json || status=1
exit "$status"
