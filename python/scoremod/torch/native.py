"""scoremod_torch.abi3.so: the part of a call that is the same each time, in C++. Here it is found, and told PyTorch's functions."""

import importlib.machinery
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from scoremod import library
from scoremod.environment import settings
from scoremod.errors import EnvironmentError, Error

FILE_NAME = "scoremod_torch.abi3.so"


def _place():
    """Beside libscoremod.so, wherever that is."""
    if named := os.environ.get("SCOREMOD_TORCH_LIBRARY"):
        return Path(named)
    return Path(library.load()._name).with_name(FILE_NAME)


def _load():
    place, expected = _place(), library.load().scoremod_version().decode()
    try:
        loader = importlib.machinery.ExtensionFileLoader("scoremod_torch", str(place))
        spec = importlib.util.spec_from_file_location("scoremod_torch", place, loader=loader)
        assert spec is not None  # of a file with its loader
        found: Any = importlib.util.module_from_spec(spec)
        loader.exec_module(found)
    except ImportError as error:
        raise EnvironmentError(
            f"expected {FILE_NAME} of this version of scoremod at {place}; found: {error}. Install the wheel anew, or run ./dev build, which needs Python's "
            "headers (python3-dev), or set SCOREMOD_TORCH_LIBRARY to the file"
        ) from None
    if expected != found.VERSION:
        raise EnvironmentError(
            f"expected {FILE_NAME} of version {expected}, as the library is; found {found.VERSION} at {place}: build or install both from one source"
        )
    return found


binding: Any = _load()

binding.ask(
    (
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.UntypedStorage.nbytes,
        torch.Tensor.storage_offset,
        getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False),
    )
)
binding.ask_state(
    (
        torch._C._is_any_autocast_enabled,
        torch._C._len_torch_dispatch_stack,
        torch._C._len_torch_function_stack,
        forward_ad,
        Error,
        torch.get_default_dtype,
        torch.is_grad_enabled,
        torch._C._get_deterministic_algorithms,
        torch.get_num_threads,
        settings,
    )
)
