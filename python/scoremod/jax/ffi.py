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
# Calls whose batch and lengths jax.export left open have targets of their own.
ANY_SIZE = {target: f"{target}_any_size" for target in (FORWARD, BACKWARD)}
# All custom calls that an exported program may have.
CUSTOM_CALLS = (*ANY_SIZE, *ANY_SIZE.values())

# XLA's name of a platform -> the ending of its handlers' symbols.
_PLATFORMS = {"cpu": "cpu", "CUDA": "cuda"}
# Kind of handlers -> the symbols of their stages on each platform; those of a call of any size have an attention for each.
_STAGES = {
    "": {
        "cpu": {"instantiate": "instantiate", "execute": "{direction}"},
        "cuda": {"instantiate": "instantiate", "initialize": "initialize_{direction}", "execute": "{direction}"},
    },
    "_any_size": {
        "cpu": {"instantiate": "instantiate_any_size", "execute": "{direction}_any_size"},
        "cuda": {"instantiate": "instantiate_any_size", "initialize": "initialize_any_size", "execute": "{direction}_any_size"},
    },
}


def _place():
    """Beside libscoremod.so, wherever that is."""
    if named := os.environ.get("SCOREMOD_JAX_LIBRARY"):
        return Path(named)
    return Path(library.load()._name).with_name(FILE_NAME)


@functools.cache
def register() -> ctypes.CDLL:
    """Loads the library and registers its handlers, once; the library. Raises EnvironmentError. JAX's devices are there from then on, so that
    jax.distributed.initialize() comes before."""
    place = _place()
    jax.local_devices()  # JAX hands a new client the handlers before their types, which XLA refuses
    try:
        handlers = ctypes.CDLL(str(place))
        for platform, ending in _PLATFORMS.items():
            for kind, stages in _STAGES.items():
                _register_handlers(handlers, platform, ending, kind, stages[ending])
    except (OSError, AttributeError) as error:
        raise EnvironmentError(
            f"expected {FILE_NAME} of this version of scoremod at {place}; found: {error}. Run ./dev build, or set SCOREMOD_JAX_LIBRARY to the file"
        ) from None
    return handlers


def use_device(ordinal):
    """Names a CUDA device of this process, by CUDA's ordinal: instantiation makes plans for it."""
    register().scoremod_jax_use_device(ctypes.c_int32(ordinal))


def _register_handlers(handlers, platform, ending, kind, stages):
    state = {part: _address(getattr(handlers, f"scoremod_jax_state{kind}_{part}_{ending}")) for part in ("type_id", "type_info")}
    jax.ffi.register_ffi_type(f"scoremod_attention_state{kind}", state, platform=platform)  # pyright: ignore[reportArgumentType]
    for target, direction in ((FORWARD, "forward"), (BACKWARD, "backward")):
        symbols = {stage: f"scoremod_jax_{name.format(direction=direction)}_{ending}" for stage, name in stages.items()}
        capsules = {stage: jax.ffi.pycapsule(getattr(handlers, symbol)) for stage, symbol in symbols.items()}
        jax.ffi.register_ffi_target(target + kind, capsules, platform=platform)


def _address(function):
    function.restype = ctypes.c_void_p
    return jax.ffi.pycapsule(ctypes.c_void_p(function()))
