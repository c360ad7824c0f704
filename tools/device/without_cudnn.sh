#!/usr/bin/env bash
# Runs the zoo, forward and backward, on a machine with a GPU whose cuDNN is hidden, and writes what came of it.
#
#   usage: tools/device/without_cudnn.sh FOLDER OUTPUT.json
#
# FOLDER is what pack.sh made, or a build folder. The loader finds an empty file in the place of cuDNN and goes no further. The command checks the
# zoo against the oracle on the device; where PYTHON has jax, tests/device/jax/test_cuda.py runs JAX's modifiers, too. The loader's own log says
# which libraries were initialized: the exit code is 0 when all was right, the CUDA driver was among them and cuDNN was not.
set -uo pipefail

(($# == 2)) || { sed -n '2,9p' "$0" >&2; exit 2; }
folder=$(cd "$1" && pwd) || exit 2
mkdir -p "$(dirname "$2")"
output=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/hidden" "$work/loader"
# By both names: a system's developer's package has the second, which cuDNN's own libraries ask for.
for name in '' _graph _ops _cnn _adv _engines_runtime_compiled _engines_precompiled _heuristic; do
  : >"$work/hidden/libcudnn$name.so.9" >"$work/hidden/libcudnn$name.so"
done
export SCOREMOD_CUDNN_LIBRARIES=$work/hidden SCOREMOD_CACHE_DIR=$work/cache
[[ -n ${SCOREMOD_COMMIT:-} || ! -s $folder/commit ]] || export SCOREMOD_COMMIT=$(<"$folder/commit")
source tools/device/environment.sh
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder/lib

jax="not installed"
# JAX's plugin opens cuDNN by its path in Python's packages, before any other: for JAX's process that folder has the empty files, too.
without_package=()
if [[ -n $packages && -d $packages/cudnn/lib ]]; then
  without_package=(unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' "$work/hidden" "$packages/cudnn/lib")
fi
if "${PYTHON:-python3}" -c 'import jax, pytest' 2>/dev/null; then
  jax=right
  # It asks for cuDNN's version when it starts, unless told otherwise. Its tests run beside the suite, in several processes where pytest can.
  several=()
  ! "${PYTHON:-python3}" -c 'import xdist' 2>/dev/null || several=(-n 6)
  JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 XLA_PYTHON_CLIENT_PREALLOCATE=false SCOREMOD_LIBRARY=$folder/lib/libscoremod.so PYTHONPATH=python \
    LD_DEBUG=files LD_DEBUG_OUTPUT=$work/loader/log timeout "${SCOREMOD_SECONDS:-300}" "${without_package[@]}" "${PYTHON:-python3}" \
    -m pytest -q -p no:cacheprovider "${several[@]}" tests/device/jax/test_cuda.py -k test_output_and_gradients >"$work/jax.log" 2>&1 &
  jax_process=$!
fi

status=0
LD_DEBUG=files LD_DEBUG_OUTPUT=$work/loader/log \
  tools/device/check_suite.sh "$folder/bin/scoremod" "$work/suite.json" --memory cuda --random 0 --filter zoo/ || status=1
if [[ $jax == right ]]; then
  wait "$jax_process" || { jax="not right"; status=1; }
  tail -n 20 "$work/jax.log"
fi

"${PYTHON:-python3}" - "$work" "$machine" "$commit" "$jax" "$output" <<'PYTHON' || status=1
import json
import re
import sys
from collections import Counter
from pathlib import Path

work, machine, commit, jax, output = Path(sys.argv[1]), *sys.argv[2:]
suite = json.loads((work / "suite.json").read_text())
initialized, asked = set(), set()
for log in (work / "loader").iterdir():
    for line in log.read_text(errors="replace").splitlines():
        if found := re.search(r"file=(\S*libcudnn[^/\s]*) \[\d+\];\s+(?:dynamically loaded|needed) by (\S+)", line):
            asked.add(f"{Path(found[2]).name} for {found[1]}")
        if found := re.search(r"calling init: (\S*/)?(lib(?:cuda|cudnn|nvrtc)[^/\s]*)", line):
            initialized.add(found[2])
verdicts = Counter(f"{result['direction']}: {result['verdict']}" for result in suite["results"])
record = {
    "machine": machine,
    "commit": commit,
    "cudnn_loaded": any(name.startswith("libcudnn") for name in initialized),
    "libraries": sorted(initialized),
    "asked_for_cudnn": sorted(asked),
    "suite": dict(sorted(verdicts.items())),
    "refused_by_reason": suite["summary"].get("refused_by_reason", []),
    "jax": jax,
}
Path(output).write_text(json.dumps(record, indent=1) + "\n")
print(json.dumps(record, indent=1))
wrong = [verdict for verdict in verdicts if not verdict.endswith(("right", "refused"))]
assert not record["cudnn_loaded"], "cuDNN was loaded"
assert any(name.startswith("libcuda.so") for name in initialized), "no CUDA driver was loaded: the loader's log shows nothing"
assert not wrong and any(verdict.startswith("backward: right") for verdict in verdicts), verdicts
PYTHON
exit $status
