#!/usr/bin/env bash
# Times scoremod beside other libraries' fused attention on a machine with a GPU: FlexAttention, FlashAttention-4, PyTorch's own, FlashAttention-3.
#
#   usage: tools/device/peers.sh LIBRARIES REPORT.json [ARGUMENTS]
#
# LIBRARIES has libscoremod.so; it may have been built on another machine. REPORT.json, REPORT.log and, where Python has matplotlib, REPORT.png are
# written. A REPORT.json that exists is continued: cases that it has are not measured again. ARGUMENTS go to bench/peers/measure.py: --cases
# causal,documents, say. SECONDS_LEFT is how long all may take (470).
#
# FA4 is a folder with the unpacked wheels of flash-attn-4 and what it needs, and FA3 one with flash-attn3-jax's; without them FlashAttention-4 and
# FlexAttention's FLASH are recorded as refused, and FlashAttention-3 isn't timed. FA3_SECONDS (90) are its own. Where ../bin/scoremod_bench lies beside
# LIBRARIES, as in what pack.sh made, cuDNN by hand is timed in the same call (bench.sh) with BY_HAND_SECONDS (0: it isn't), and added.
# What compilers make is made first, by WARMING processes at once (12), of which each takes a share of the cases, for at most WARMING_SECONDS (a third
# of the time). CACHES is a folder that keeps it for a later call on the same machine.
set -uo pipefail

(($# >= 2)) || { sed -n '2,17p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
mkdir -p "$(dirname "$2")"
report=$(realpath "$2")
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deadline=$((SECONDS + ${SECONDS_LEFT:-470}))

source tools/device/environment.sh
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# What is timed is the plan that calls come to, and not one that serves until it is built.
export SCOREMOD_NEW_SIZES=wait
export SCOREMOD_LIBRARY=$libraries/libscoremod.so SCOREMOD_MACHINE=$machine SCOREMOD_COMMIT=$commit PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=python${FA4:+:$FA4:$FA4/nvidia_cutlass_dsl/dsl_packages}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
caches=${CACHES:-$work}
mkdir -p "$caches"
export TORCHINDUCTOR_CACHE_DIR=$caches/inductor TRITON_CACHE_DIR=$caches/triton SCOREMOD_CACHE_DIR=$caches/plans
# FlashAttention-4 keeps what it compiles on request only.
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=$caches/flash QUACK_CACHE_DIR=$caches/quack

python=${PYTHON:-python3}
measure=("$python" bench/peers/measure.py)
listed=$("${measure[@]}" "$report" "$@" --list) || exit 2
read -r -a names <<<"${listed##*$'\n'}"
by_hand=${BY_HAND_SECONDS:-0}
fa3=0
[[ -z ${FA3:-} ]] || fa3=${FA3_SECONDS:-90}
measured_by=$((deadline - by_hand - fa3))
echo "==> $machine, commit $commit: ${#names[@]} cases to measure"

start=$SECONDS count=${WARMING:-12} seconds=${WARMING_SECONDS:-$(((measured_by - SECONDS) / 3))}
for ((part = 0; part < count; ++part)); do
  share=()
  for ((i = part; i < ${#names[@]}; i += count)); do share+=("${names[i]}"); done
  ((${#share[@]} > 0)) || continue
  # Compilers of one process each: as many as there are cores would start for every process.
  TORCHINDUCTOR_COMPILE_THREADS=1 timeout "$seconds" "${measure[@]}" "$work/unused.json" "$@" --warm --cases "$(IFS=,; echo "${share[*]}")" >"$work/warm.$part.log" 2>&1 &
done
wait
compiled=$(cat "$work"/warm.*.log 2>/dev/null | awk '$2 == "compiled" { print $1 }' | paste -sd,)
echo "==> compiled $(tr ',' '\n' <<<"$compiled" | grep -c .) of ${#names[@]} cases after $((SECONDS - start)) s"
tail -qn 2 "$work"/warm.*.log 2>/dev/null | cut -c 1-200
export TORCHINDUCTOR_COMPILE_THREADS=1

# Cases that compilers were not ready with come last: what is compiled in the process that measures takes the time of many others.
status=0
: >"${report%.json}.log"
for cases in "$compiled" "$(IFS=,; echo "${names[*]}")"; do
  [[ -n $cases ]] && ((measured_by - SECONDS > 5)) || continue
  # The limit is for one case that takes too long.
  left=$((measured_by - SECONDS))
  timeout --kill-after=5 $((left + 10)) "${measure[@]}" "$report" --seconds "$left" "$@" --cases "$cases" 2>&1 | tee -a "${report%.json}.log" || status=1
done
[[ -s $report ]] || { echo "no case was measured" >&2; exit 1; }

if ((fa3 > 0)); then
  ((deadline - by_hand - SECONDS > fa3)) && fa3=$((deadline - by_hand - SECONDS))
  PYTHONPATH=python:$FA3 XLA_PYTHON_CLIENT_PREALLOCATE=false timeout --kill-after=5 $((fa3 + 15)) \
    "$python" bench/peers/fa3.py "$report" --seconds "$fa3" 2>&1 | tee -a "${report%.json}.log" || status=1
fi
if ((by_hand > 0)) && [[ -x $libraries/../bin/scoremod_bench ]]; then
  read -r -a measured <<<"$("$python" bench/peers/by_hand.py --names "$report")"
  # Results that it has measured by then are kept; the limit is for one case that takes too long.
  REPETITIONS=15 timeout "$by_hand" tools/device/bench.sh "$libraries/.." "$work/by_hand.json" --seconds $((by_hand - 10)) --only "${measured[@]}" || status=1
  [[ ! -s $work/by_hand.json ]] || "$python" bench/peers/by_hand.py "$report" "$work/by_hand.json" || status=1
fi
"$python" bench/peers/choices.py "$report" | tee -a "${report%.json}.log"
"$python" bench/peers/plot.py "$report" "${report%.json}.png" 2>/dev/null || echo "no picture; where matplotlib is: bench/peers/plot.py"
exit "$status"
