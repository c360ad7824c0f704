"""Finds calls of CUDA that wait for, or disturb, more of a device than the library's own streams, and one that versions of CUDA understand otherwise.

usage: whole_device_calls.py [FOLDER]

Other threads of the process may capture CUDA graphs at any time, and others' kernels may run for long. tools/device/capture_probe.cu shows
what each of these calls does to them. Exit code 1 where one is found, each with its place and what to call instead.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "bindings", "bench", "tools/cudnn", "tools/measure", "tools/input", "tools/scoremod", "python")
ENDINGS = {".cpp", ".hpp", ".cuh", ".py"}
# A benchmark in Python is a user of its framework, as other programs are.
SKIPPED = re.compile(r"bench/.*\.py")

MEMORY = "src/backend/cuda/device/memory_pool.cpp"
# A forbidden call, what to do instead, and the one file that may make it.
RULES = (
    (r"\bcu(?:daDevice|daThread|Ctx)Synchronize\b", "wait for a stream: wait_for_own_stream(), MemorySpace::wait()", None),
    (r"\bcudaMem(?:cpy|cpy2D|set|cpyToSymbol)\b", "copy on own_stream(): MemorySpace::copy_in(), copy_out()", None),
    (r"\bcuMemcpy(?:HtoD|DtoH|DtoD)?(?:_v2)?\b", "copy on own_stream(): MemorySpace::copy_in(), copy_out()", None),
    (r"\bcu(?:daMalloc|MemAlloc)\b", "allocate_device_memory() or OwnedMemory", MEMORY),
    (r"\bcu(?:daFree|MemFree)\b(?!\)?\(nullptr\))", "release_device_memory() or OwnedMemory", MEMORY),
    (r"\bcuda(?:MallocHost|HostAlloc|FreeHost|HostRegister|HostUnregister)\b", "plain memory of the host", None),
    (r"\bcuLibraryUnload\b", "cuModuleUnload() by retire(): unloading a library stops other threads' launches", None),
    (r"\bcu(?:blas|dnn)Destroy(?:_v2)?\b", "keep the handle for another thread: thing_of_thread()", None),
    (r"\bcudaGetDeviceProperties\b", "cudaDeviceGetAttribute(): the struct is another in the runtime of CUDA 12", None),
    (r"\bcudaStreamLegacy\b|\bCU_STREAM_LEGACY\b", "own_stream()", None),
    (r"\btorch\.cuda\.synchronize\b", "torch.cuda.current_stream().synchronize()", None),
)


def code_of(text, ending):
    """Comments, and messages of C++, may name what the code must not call. Line breaks stay."""
    if ending == ".py":
        return re.sub(r"#[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", text)


def calls_in(text, name):
    """(line number, call, what to do instead) of each forbidden call in the text of the file `name`."""
    code = code_of(text, Path(name).suffix)
    found = []
    for pattern, instead, allowed in RULES:
        if name != allowed:
            found += [(code.count("\n", 0, match.start()) + 1, match[0], instead) for match in re.finditer(pattern, code)]
    return sorted(found)


def main():
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    status = 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in ENDINGS or SKIPPED.fullmatch(name):
                continue
            for line, call, instead in calls_in(path.read_text(encoding="utf-8"), name):
                print(f"{name}:{line}: {call} waits for the whole device or ends captures of other threads; instead: {instead}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
