#!/usr/bin/env bash
# Runs commands at once on a machine with several GPUs, each on a GPU and on processor cores of its own, so that their times can be recorded.
#
#   usage: tools/device/side_by_side.sh OUT NAME:CORES:COMMAND...
#
# Parts of record.sh, say, as "bench:8:tools/device/record.sh FOLDER OUT bench". The first command gets the first GPU and so many of the first cores, the next the next ones; NAME:CORES:GPUS:COMMAND gets several GPUs. What a
# command prints goes to OUT/NAME.log, of which the end is shown. The exit code is 0 when every command ended with 0.
set -uo pipefail

(($# >= 2)) || { sed -n '2,8p' "$0" >&2; exit 2; }
out=$1
shift
mkdir -p "$out"
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) cores=$(nproc)
names=() pids=() gpu=0 core=0
for job in "$@"; do
  IFS=: read -r name share count command <<<"$job"
  [[ $count =~ ^[0-9]+$ ]] || { command=${job#*:*:} count=1; }
  if ((gpu + count > gpus || core + share > cores)); then
    echo "$name: expected $count GPUs and $share cores to be left, found $((gpus - gpu)) of $gpus and $((cores - core)) of $cores" >&2
    exit 2
  fi
  devices=$(seq -s, "$gpu" $((gpu + count - 1)))
  (start=$SECONDS status=0
   CUDA_VISIBLE_DEVICES=$devices taskset -c "$core-$((core + share - 1))" bash -c "$command" >"$out/$name.log" 2>&1 || status=$?
   echo "== $name on GPU $devices with $share cores: exit status $status after $((SECONDS - start)) s" | tee -a "$out/$name.log"
   exit "$status") &
  names+=("$name") pids+=($!)
  gpu=$((gpu + count)) core=$((core + share))
done
status=0
for i in "${!pids[@]}"; do
  wait "${pids[i]}" || status=1
  tail -n 12 "$out/${names[i]}.log" | cut -c1-250
done
exit "$status"
