"""The options with which a problem is compiled, as the C interface takes them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from scoremod import library
from scoremod.arguments import encode, int32
from scoremod.call_spec import NEW_SIZES, CallSpec, check_backend, check_flags, checked
from scoremod.errors import InvalidArgumentError
from scoremod.signatures import Memory, NewSizes

LEVELS = ("verified", "static")


class CompileSpec(NamedTuple):
    """Attention's arguments beside the problem, by their names."""

    backend: str | None = None
    backends: tuple[str, ...] = ()
    memory: Memory = None
    max_workspace: int | None = None
    autotune: bool = False
    new_sizes: NewSizes = None
    threads: int = 0
    disabled_passes: tuple[str, ...] = ()
    device: int | None = None

    @classmethod
    def of(cls, **given: Any) -> CompileSpec:
        """The spec of what a caller gave. Raises InvalidArgumentError for wrong options of calls; compile_options() checks the others."""
        spec = cls(**given)
        check_flags(autotune=spec.autotune)
        check_backend(spec.backend, spec.backends)
        call = checked(CallSpec(backends=spec.backends, new_sizes=spec.new_sizes))
        return spec._replace(backends=call.backends, new_sizes=call.new_sizes, autotune=bool(spec.autotune), disabled_passes=tuple(spec.disabled_passes))


def compile_options(spec: CompileSpec) -> library.CompileOptions:
    """The options of what is compiled."""
    usual = spec.backend, spec.memory, spec.max_workspace, spec.new_sizes, spec.threads, spec.device
    if not spec.disabled_passes and not spec.backends and not spec.autotune and all(type(each) in _HASHED for each in usual):
        return _usual_options(spec)
    return _options(spec)


def query_options(spec: CompileSpec, *, level: Any = "verified", device_properties: Any = None) -> library.CompileOptions:
    """The options of a question about a problem. device_properties: the text of a device elsewhere."""
    if level not in LEVELS:
        raise InvalidArgumentError(f"level: expected {' or '.join(map(repr, LEVELS))}, found {level!r}")
    if device_properties is not None and spec.device is not None:
        raise InvalidArgumentError(f"device: expected None beside device_properties, which say of what device the answers are; found {spec.device!r}")
    options = _options(spec)
    options.support_level = LEVELS.index(level)
    options.device_properties = None if device_properties is None else encode(device_properties, "device_properties")
    return options


# Such values are equal only where the options are.
_HASHED = (str, int, type(None))


@functools.lru_cache(maxsize=256)
def _usual_options(spec):
    """The options that PyTorch passes for each new size; nobody writes into them."""
    return _options(spec)


def _options(spec):
    passes = [encode(name, "disabled_passes") for name in spec.disabled_passes]
    chosen = [encode(name, "backends") for name in spec.backends]
    most = spec.max_workspace
    if most is not None and not (isinstance(most, (int, np.integer)) and 0 < most < 2**63):
        raise InvalidArgumentError(f"max_workspace: expected a positive number of bytes, found {most!r}")
    return library.CompileOptions(
        backend=None if spec.backend is None else encode(spec.backend, "backend"),
        disabled_passes=(ctypes.c_char_p * len(passes))(*passes),
        disabled_pass_count=len(passes),
        threads=int32(spec.threads, "threads"),
        has_device=spec.device is not None,
        device=0 if spec.device is None else int32(spec.device, "device"),
        memory=None if spec.memory is None else encode(spec.memory, "memory"),
        backends=(ctypes.c_char_p * len(chosen))(*chosen),
        backend_count=len(chosen),
        max_workspace=0 if most is None else int(most),
        autotune=spec.autotune,
        new_sizes=NEW_SIZES.index(spec.new_sizes),
    )
