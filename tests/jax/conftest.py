"""Eight CPU devices for the tests of sharding, and the bindings importable without PYTHONPATH."""

import inspect
import os
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
# Read when JAX starts its CPU backend.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        # The dense computations are small: most of the tests' time would be spent on optimizing them.
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
)
# JAX then checks what its interpreters are given, as those do who develop JAX; it takes no time that can be measured.
os.environ.setdefault("JAX_ENABLE_CHECKS", "1")
# Equal programs are compiled once for all tests, pytest's workers and the processes that they start. ./dev test names a folder that is kept
# for the next run; without one, nothing outlives the tests.
if not os.environ.get("SCOREMOD_TEST_CACHE"):
    _COMPILED = tempfile.TemporaryDirectory(prefix="scoremod_jax_tests_")
    os.environ["SCOREMOD_TEST_CACHE"] = _COMPILED.name
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(os.environ["SCOREMOD_TEST_CACHE"]) / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# After what they read.
import jax  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def compiled_anew(request):
    """Programs of several devices are not taken from the folder of compiled ones: XLA loads them wrongly (tools/loaded_collectives.py)."""
    if "mesh" not in inspect.getsource(request.module).lower():
        yield
        return
    for enabled in (False, True):
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()
        if not enabled:
            yield
