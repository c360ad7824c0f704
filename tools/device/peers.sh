#!/usr/bin/env bash
# Times scoremod beside other libraries' fused attention on a machine with a GPU: FlexAttention, FlashAttention-4, PyTorch's own.
#
#   usage: tools/device/peers.sh LIBRARIES REPORT.json [ARGUMENTS]
#
# LIBRARIES has libscoremod.so; it may have been built on another machine. Where ../bin/scoremod_bench lies beside it, as in what pack.sh made, cuDNN by
# hand is timed in the same call (bench.sh, within BY_HAND_SECONDS, 120), and added. REPORT.json, REPORT.log and, where Python has matplotlib, REPORT.png are
# written. ARGUMENTS go to bench/peers/measure.py: --cases causal,documents, say. FA4 is a folder with the unpacked wheels of flash-attn-4 and what it
# needs; without it FlashAttention-4 and FlexAttention's FLASH are recorded as refused. SECONDS_LEFT is how long all may take (500). What compilers
# make is made first, by WARMING processes at once (8), of which each takes a share of the cases.
set -uo pipefail

(($# >= 2)) || { sed -n '2,10p' "$0" >&2; exit 2; }
libraries=$(realpath "$1")
mkdir -p "$(dirname "$2")"
report=$(realpath "$2")
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
deadline=$((SECONDS + ${SECONDS_LEFT:-500}))

source tools/device/environment.sh
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SCOREMOD_LIBRARY=$libraries/libscoremod.so SCOREMOD_MACHINE=$machine SCOREMOD_COMMIT=$commit PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=python${FA4:+:$FA4:$FA4/nvidia_cutlass_dsl/dsl_packages}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton SCOREMOD_CACHE_DIR=$work/plans
# FlashAttention-4 keeps what it compiles on request only.
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=$work/flash QUACK_CACHE_DIR=$work/quack

python=${PYTHON:-python3}
measure=("$python" bench/peers/measure.py)
read -r -a names <<<"$(PYTHONPATH=$PYTHONPATH:bench/peers "$python" -c '
import types, torch, cases
print(*(c.name for c in cases.cases(types.SimpleNamespace(batch=1, heads=2, seq=64, device="cpu", dtype=torch.float32))))')"
start=$SECONDS count=${WARMING:-8}
for ((part = 0; part < count; ++part)); do
  share=()
  for ((i = part; i < ${#names[@]}; i += count)); do share+=("${names[i]}"); done
  ((${#share[@]} > 0)) || continue
  # Compilers of one process each: as many as there are cores would start for every process.
  TORCHINDUCTOR_COMPILE_THREADS=1 timeout $(((deadline - SECONDS) / 2)) "${measure[@]}" "$work/unused.json" "$@" --warm --cases "$(IFS=,; echo "${share[*]}")" >"$work/warm.$part.log" 2>&1 &
done
wait
echo "==> compiled after $((SECONDS - start)) s"
tail -qn 2 "$work"/warm.*.log | cut -c 1-200
export TORCHINDUCTOR_COMPILE_THREADS=1

"${measure[@]}" "$report" --seconds $((deadline - SECONDS)) "$@" 2>&1 | tee "${report%.json}.log"
status=${PIPESTATUS[0]}
if [[ -x $libraries/../bin/scoremod_bench ]]; then
  read -r -a measured <<<"$("$python" -c '
import json, sys
names = {case["name"] for case in json.load(open("bench/gpu_cases.json"))}
print(*dict.fromkeys(row["case"] for row in json.load(open(sys.argv[1]))["results"] if row["case"] in names))' "$report")"
  # Results that it has measured by then are kept; the limit is for one case that takes too long.
  seconds=${BY_HAND_SECONDS:-120}
  REPETITIONS=15 timeout "$seconds" tools/device/bench.sh "$libraries/.." "$work/by_hand.json" --seconds $((seconds - 10)) --only "${measured[@]}" || status=1
  [[ ! -s $work/by_hand.json ]] || "$python" bench/peers/by_hand.py "$report" "$work/by_hand.json" || status=1
fi
"$python" bench/peers/choices.py "$report" | tee -a "${report%.json}.log"
"$python" bench/peers/plot.py "$report" "${report%.json}.png" 2>/dev/null || echo "no picture; where matplotlib is: bench/peers/plot.py"
exit "$status"
