#!/usr/bin/env bash
# Runs the check suite on a machine with a GPU, shared by several processes, and writes its report.
#
#   usage: tools/device/check_suite.sh COMMAND REPORT.json [CHECK ARGUMENTS]
#
# COMMAND is build/release/bin/scoremod, which may have been built on another machine; it is built when it is not there. Without
# CHECK ARGUMENTS they are `--backend cudnn --random 500`. cuDNN builds one plan at a time in a process, so that processes, not threads, share
# the suite: SCOREMOD_PROCESSES of them (the number of cores), for SCOREMOD_SECONDS at most (no limit). REPORT.log says which problems began and were done, and which were
# under way in a process that crashed. The exit code is 0 when nothing was wrong and no process failed.
set -euo pipefail

(($# >= 2)) || { sed -n '2,11p' "$0" >&2; exit 2; }
command=$1 report=$2
shift 2
(($# > 0)) || set -- --backend cudnn --random 500

root=$(dirname "${BASH_SOURCE[0]}")/../..
[[ -x $command ]] || "$root/dev" build release

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# pack.sh put everything that the command needs there.
export LD_LIBRARY_PATH=$(realpath "$(dirname "$command")/../lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
cudnn=$(python3 -c 'import importlib.metadata as m; print(", cuDNN", m.version("nvidia-cudnn-cu13"))' 2>/dev/null || true)
machine="${gpu:-no GPU}$cudnn, $(nproc) cores"
# All parts draw their problems from one seed: a new one for each run.
[[ " $* " == *" --seed"* ]] || set -- "$@" --seed "$((RANDOM * 32768 + RANDOM))"
# More parts than processes: what takes long keeps one core from its share, and not all from the end.
processes=${SCOREMOD_PROCESSES:-$(nproc)}
parts=$((4 * processes))
mkdir -p "$(dirname "$report")"
log=${report%.json}.log
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deadline=$((SECONDS + ${SCOREMOD_SECONDS:-1000000}))

status=0 unreached=0
declare -A part_of=()
# Waits for one process, and says what became of its part.
end_one() {
  local code=0 pid
  wait -n -p pid "${!part_of[@]}" || code=$?
  local part=${part_of[$pid]}
  unset "part_of[$pid]"
  ((code > 5)) || return 0
  if ((code == 124)); then
    unreached=$((unreached + 1))
    echo "part $part was not done in time; under way was:"
  else
    status=1
    echo "process $part ended with status $code; under way was:"
  fi
  awk '$1 == "begin" { open[$2] } $1 == "done" { delete open[$2] } END { for (name in open) print "  " name }' "$work/$part.log"
  [[ -s $work/$part.json ]] || tail -n 3 "$work/$part.log"
}
for ((part = 0; part < parts; ++part)); do
  ((${#part_of[@]} < processes)) || end_one
  if ((deadline - SECONDS < 5)); then
    unreached=$((unreached + parts - part))
    break
  fi
  timeout $((deadline - SECONDS)) "$command" check --suite --parts "$parts" --part "$part" --threads 1 --out "$work/$part.json" --machine "$machine" \
    --commit "$commit" --verbose "$@" >/dev/null 2>"$work/$part.log" &
  part_of[$!]=$part
done
while ((${#part_of[@]} > 0)); do end_one; done
((unreached == 0)) || echo "$unreached of $parts parts were not done in time (SCOREMOD_SECONDS): the report is of the others"
cat "$work"/*.log >"$log"
((unreached < parts)) || exit 1
python3 "$(dirname "${BASH_SOURCE[0]}")/merge.py" checks "$report" "$work"/*.json --parts "$parts" || status=1
exit "$status"
