"""libscoremod_jax.so: finding it, and making its handlers known to XLA. Python's part ends there; XLA calls the handlers itself."""

import ctypes
import functools
import os
from pathlib import Path

import jax

from scoremod import library
from scoremod.errors import EnvironmentError

FILE_NAME = "libscoremod_jax.so"
FORWARD = "scoremod_attention_forward"
BACKWARD = "scoremod_attention_backward"

# XLA's name of a platform -> the ending of its handlers' symbols.
_PLATFORMS = {"cpu": "cpu", "CUDA": "cuda"}


def _place():
    """Beside libscoremod.so, wherever that is."""
    if named := os.environ.get("SCOREMOD_JAX_LIBRARY"):
        return Path(named)
    return Path(library.load()._name).with_name(FILE_NAME)


@functools.cache
def register():
    """Loads the library and registers its handlers, once. Raises EnvironmentError."""
    place = _place()
    try:
        handlers = ctypes.CDLL(str(place))
        for platform, ending in _PLATFORMS.items():
            _register_platform(handlers, platform, ending)
    except (OSError, AttributeError) as error:
        raise EnvironmentError(
            f"expected {FILE_NAME} of this version of scoremod at {place}; found: {error}. Run ./dev build, or set "
            "SCOREMOD_JAX_LIBRARY to the file"
        ) from None


def _register_platform(handlers, platform, ending):
    type_id, type_info = handlers.scoremod_jax_state_type_id, handlers.scoremod_jax_state_type_info
    type_id.restype = type_info.restype = ctypes.c_void_p
    jax.ffi.register_ffi_type(
        "scoremod_attention_state",
        {"type_id": _capsule(type_id()), "type_info": _capsule(type_info())},
        platform=platform,
    )
    for target, direction in ((FORWARD, "forward"), (BACKWARD, "backward")):
        stages = {
            "instantiate": jax.ffi.pycapsule(handlers.scoremod_jax_instantiate),
            "execute": jax.ffi.pycapsule(getattr(handlers, f"scoremod_jax_{direction}_{ending}")),
        }
        jax.ffi.register_ffi_target(target, stages, platform=platform)


def _capsule(address):
    return jax.ffi.pycapsule(ctypes.c_void_p(address))
