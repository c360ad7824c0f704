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

# XLA's name of a platform -> the ending of its handlers' symbols, and the names of its stages before a call runs.
_PLATFORMS = {
    "cpu": ("cpu", {"instantiate": "instantiate"}),
    "CUDA": ("cuda", {"instantiate": "instantiate", "initialize": "initialize_{direction}"}),
}


def _place():
    """Beside libscoremod.so, wherever that is."""
    if named := os.environ.get("SCOREMOD_JAX_LIBRARY"):
        return Path(named)
    return Path(library.load()._name).with_name(FILE_NAME)


@functools.cache
def register():
    """Loads the library and registers its handlers, once; the library. Raises EnvironmentError."""
    place = _place()
    try:
        handlers = ctypes.CDLL(str(place))
        for platform, (ending, stages) in _PLATFORMS.items():
            _register_platform(handlers, platform, ending, stages)
    except (OSError, AttributeError) as error:
        raise EnvironmentError(
            f"expected {FILE_NAME} of this version of scoremod at {place}; found: {error}. Run ./dev build, or set "
            "SCOREMOD_JAX_LIBRARY to the file"
        ) from None
    return handlers


def use_device(ordinal):
    """Names a CUDA device of this process, by CUDA's ordinal: instantiation makes plans for it."""
    register().scoremod_jax_use_device(ctypes.c_int32(ordinal))


def _register_platform(handlers, platform, ending, stages_before):
    state = {part: _address(getattr(handlers, f"scoremod_jax_state_{part}_{ending}")) for part in ("type_id", "type_info")}
    jax.ffi.register_ffi_type("scoremod_attention_state", state, platform=platform)
    for target, direction in ((FORWARD, "forward"), (BACKWARD, "backward")):
        stages = {
            stage: jax.ffi.pycapsule(getattr(handlers, f"scoremod_jax_{name.format(direction=direction)}_{ending}"))
            for stage, name in {**stages_before, "execute": "{direction}"}.items()
        }
        jax.ffi.register_ffi_target(target, stages, platform=platform)


def _address(function):
    function.restype = ctypes.c_void_p
    return jax.ffi.pycapsule(ctypes.c_void_p(function()))
