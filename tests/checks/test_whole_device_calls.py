"""The check of calls that wait for the whole device finds each kind of them, and nothing where there is none."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import whole_device_calls  # noqa: E402

FORBIDDEN = [
    ("src/a.cpp", 'check(SCOREMOD_CUDART(cudaDeviceSynchronize)(), "wait");'),
    ("src/a.cpp", "SCOREMOD_DRIVER(cuCtxSynchronize)();"),
    ("src/a.cpp", "SCOREMOD_CUDART(cudaMemcpy)(to, from, bytes, cudaMemcpyHostToDevice);"),
    ("src/a.cpp", "SCOREMOD_CUDART(cudaMemset)(to, 0, bytes);"),
    ("src/a.cpp", "SCOREMOD_CUDART(cudaMalloc)(&data, bytes);"),
    ("src/a.cpp", "SCOREMOD_CUDART(cudaFree)(data);"),
    ("src/a.cpp", "cudaHostAlloc(&data, bytes, 0);"),
    ("src/a.cpp", "SCOREMOD_DRIVER(cuLibraryUnload)(library);"),
    ("src/a.cpp", "find(found.destroy, name); cublasDestroy_v2(handle);"),
    ("src/a.cpp", "cudnnDestroy(handle);"),
    ("src/a.cpp", "SCOREMOD_CUDART(cudaGetDeviceProperties)(&properties, 0);"),
    ("python/scoremod/a.py", "torch.cuda.synchronize()"),
]
ALLOWED = [
    ("src/a.cpp", "SCOREMOD_CUDART(cudaMemcpyAsync)(to, from, bytes, cudaMemcpyHostToDevice, stream);"),
    ("src/a.cpp", 'check(SCOREMOD_CUDART(cudaFree)(nullptr), "cudaFree");  // not cudaFree(data)'),
    ("src/a.cpp", "/* cudaDeviceSynchronize() would end\n captures */ wait();"),
    ("src/a.cpp", "SCOREMOD_CUDART(cudaMallocFromPoolAsync)(&data, bytes, pool, stream); SCOREMOD_CUDART(cudaFreeAsync)(data, stream);"),
    ("src/backend/cuda/device/memory_pool.cpp", "SCOREMOD_CUDART(cudaMalloc)(&data, bytes);"),
    ("python/scoremod/a.py", "torch.cuda.current_stream().synchronize()  # not torch.cuda.synchronize()"),
]


@pytest.mark.parametrize(("name", "text"), FORBIDDEN)
def test_finds(name, text):
    assert [line for line, _, _ in whole_device_calls.calls_in("\n" + text, name)] == [2]


@pytest.mark.parametrize(("name", "text"), ALLOWED)
def test_lets_pass(name, text):
    assert whole_device_calls.calls_in(text, name) == []


def test_the_sources_have_none(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["whole_device_calls.py"])
    assert whole_device_calls.main() == 0, capsys.readouterr().out
