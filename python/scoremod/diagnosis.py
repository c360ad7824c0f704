"""scoremod doctor: the parts of this machine that decide what runs, and the backends that would run two common calls."""

import ctypes
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from scoremod import cache, library
from scoremod.attention import Attention, support
from scoremod.compiled_command import library_folders
from scoremod.errors import Error
from scoremod.pages import command_for, text

# The call that most people begin with.
_CAUSAL = "value = score\nkeep = kv_idx <= q_idx"
_PROBLEM = {"batch": 2, "heads_q": 8, "heads_kv": 8, "seq_q": 1024, "seq_kv": 1024, "dim_qk": 64, "dim_v": 64, "program": _CAUSAL, "backward": True}
_DTYPES = {"host": "f32", "cuda": "bf16"}
# Distributions of PyPI whose libraries or functions scoremod uses where they are installed.
_PACKAGES = ("numpy", "torch", "jax", "transformers", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
# Libraries that a GPU's backends open beside the driver: the names that the loader may know them by, as in src/backend.
_LIBRARIES = {"CUDA runtime": ("libcudart.so.13", "libcudart.so.12"), "cuDNN": ("libcudnn.so.9",), "NVRTC": ("libnvrtc.so.13", "libnvrtc.so.12")}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def report(level: str = "verified") -> str:
    """The report as text for people.

    Parameters
    ----------
    level : {"verified", "static"}
        "verified" builds and tries kernels on the device as a first call does, which takes seconds; "static" builds nothing.

    Returns
    -------
    str
        Lines of a name and what was found; for each memory the backend that would run a causal call, and why each other one would not.
    """
    lines = [f"{name}: {found}" for name, found in (*_installed(), *_gpu(), *_gpu_libraries(), *_settings())]
    if _loaded()[0] is None:
        return "\n".join(lines)
    for memory, dtype in _DTYPES.items():
        lines += ["", f"a causal {dtype} call with gradients, tensors in {memory} memory:", *_answers({**_PROBLEM, "dtype": dtype}, memory, level)]
    return "\n".join(lines)


def _loaded() -> tuple[Any, str]:
    """The library; None, and why, where it can't be loaded."""
    try:
        return library.load(), ""
    except Error as error:
        return None, str(error)


def _installed() -> list[tuple[str, str]]:
    loaded, why_not = _loaded()
    found = [
        ("scoremod", why_not if loaded is None else f"{loaded.scoremod_version().decode()}, {loaded._name}"),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
    ]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _gpu() -> list[tuple[str, str]]:
    """The driver and its devices, asked without the library: it may be the library that does not find them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return [("CUDA driver", f"not found ({error}); on a machine with a GPU install NVIDIA's driver")]
    status, version, count = driver.cuInit(0), ctypes.c_int(), ctypes.c_int()
    if status:
        return [("CUDA driver", f"found, but cuInit() gives error {status}; nvidia-smi says more")]
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    found = [("CUDA driver", f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}, {count.value} devices")]
    return found + [(f"device {number}", _device(driver, number)) for number in range(count.value)]


def _device(driver: ctypes.CDLL, number: int) -> str:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    driver.cuDeviceGet(ctypes.byref(device), number)
    driver.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return f"{name.value.decode()}, compute capability {'.'.join(capability)}"


def _gpu_libraries() -> list[tuple[str, str]]:
    return [(library, _loader_finds(names)) for library, names in _LIBRARIES.items()]


def _loader_finds(names: tuple[str, ...]) -> str:
    """The library of these names that this process opens; where it opens none, one that a package of this Python has."""
    reasons = []
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
        else:
            return name
    packaged = [place for folder in library_folders() for name in names if (place := Path(folder) / name).is_file()]
    if packaged:
        return f"{packaged[0]}, found where PyTorch or JAX has loaded it, or LD_LIBRARY_PATH names its folder"
    return f"not found ({'; '.join(reasons)}); {command_for('guide/gpus')} says how to install it"


def _kept_plans() -> str:
    if folder := cache.directory():
        return folder
    if os.environ.get("SCOREMOD_CACHE", "on") != "on":
        return f"memory alone (SCOREMOD_CACHE={os.environ['SCOREMOD_CACHE']})"
    return "memory alone; set SCOREMOD_CACHE_DIR, XDG_CACHE_HOME or HOME to a folder to keep them in files"


def _settings() -> list[tuple[str, str]]:
    found = []
    if _loaded()[0] is not None:
        found.append(("plans are kept in", _kept_plans()))
    page = text("reference/environment")
    for name in sorted(name for name in os.environ if name.startswith("SCOREMOD_") or name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")):
        is_read = not name.startswith("SCOREMOD_") or f"`{name}`" in page
        found.append((name, os.environ[name] if is_read else f"{os.environ[name]} (scoremod reads no such variable: {command_for('reference/environment')})"))
    return found


def _answers(problem: dict[str, Any], memory: str, level: str) -> list[str]:
    try:
        answers = support(problem, memory=memory, level=level)  # pyright: ignore[reportArgumentType]
    except Error as error:  # such as a device that fails
        return [f"  {error}"]
    if not answers:
        return ["  no backend: this build of scoremod has none for this memory"]
    runs = next((answer["backend"] for answer in answers if answer["supported"]), None)
    lines = [f"  runs on {runs}" if runs else "  runs on none of them"]
    if runs and level == "verified":
        try:
            Attention(problem, memory=memory)  # pyright: ignore[reportArgumentType]  # which reads every setting
        except Error as error:
            lines.append(f"  but a call raises: {error}")
    for answer in answers:
        lines += [f"  {answer['backend']}: {reason}" for reason in answer["reasons"]]
    ids = sorted({refusal["id"] for answer in answers for refusal in answer["refusals"]})
    return lines + [f"  ids of these reasons: {', '.join(ids)} ({command_for('reference/unsupported_reasons')} explains them)"] * bool(ids)
