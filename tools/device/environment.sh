# Sourced by the scripts of this folder. Lets the loader find cuDNN, NVRTC and cuBLAS where Python has them as packages, and says in
# `gpu`, `machine` and `commit` what is measured where. SCOREMOD_COMMIT says the commit where there is no history;
# SCOREMOD_CUDNN_LIBRARIES is a folder of cuDNN's libraries to use before any other.

# A crash of Python leaves its stacks in the log.
export PYTHONFAULTHANDLER=1

packages=$("${PYTHON:-python3}" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [[ -n $packages ]]; then
  export LD_LIBRARY_PATH=$packages/cudnn/lib:$packages/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
[[ -z ${SCOREMOD_CUDNN_LIBRARIES:-} ]] || export LD_LIBRARY_PATH=$SCOREMOD_CUDNN_LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
machine="${gpu:-no GPU}, $(nproc) cores"
commit=${SCOREMOD_COMMIT:-$(git -C "$(dirname "${BASH_SOURCE[0]}")" describe --always --dirty 2>/dev/null || true)}
