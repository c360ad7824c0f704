"""The C interface (include/scoremod/c_api.h) through ctypes: finding libscoremod, its structs and functions."""

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path

from scoremod.errors import BY_STATUS, BugError, EnvironmentError

FILE_NAME = "libscoremod.so"
SONAME = "libscoremod.so.0"


class Buffer(ctypes.Structure):
    """scoremod_buffer and scoremod_const_buffer."""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


class NamedBuffer(ctypes.Structure):
    """scoremod_operand and scoremod_operand_gradient."""

    _fields_ = [("name", c_char_p), ("buffer", Buffer)]


class SizedStructure(ctypes.Structure):
    """A struct that starts with its own size, so that both sides may have different versions of it."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class CompileOptions(SizedStructure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("disabled_passes", POINTER(c_char_p)),
        ("disabled_pass_count", c_size_t),
        ("threads", c_int32),
        ("has_device", c_int32),
        ("device", c_int32),
        ("memory", c_char_p),
        ("backends", POINTER(c_char_p)),
        ("backend_count", c_size_t),
        ("max_workspace", c_size_t),
        ("autotune", c_int32),
        ("support_level", c_int32),
        ("new_sizes", c_int32),
        ("device_properties", c_char_p),
    ]


class CallOptions(SizedStructure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("stream", c_void_p),
        ("has_scale", c_int32),
        ("scale", c_float),
        ("batch_offset", c_int32),
        ("head_offset", c_int32),
        ("query_offset", c_int32),
        ("key_offset", c_int32),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
    ]


class ForwardArgs(SizedStructure):
    _fields_ = [
        ("struct_size", c_size_t),
        *[(name, Buffer) for name in ("q", "k", "v")],
        ("operands", POINTER(NamedBuffer)),
        ("operand_count", c_size_t),
        *[(name, Buffer) for name in ("o", "lse", "workspace")],
        ("options", POINTER(CallOptions)),
        ("max_logit", Buffer),
        ("amax_o", Buffer),
    ]


class BackwardArgs(SizedStructure):
    _fields_ = [
        ("struct_size", c_size_t),
        *[(name, Buffer) for name in ("q", "k", "v", "o", "lse", "d_o")],
        ("operands", POINTER(NamedBuffer)),
        ("operand_count", c_size_t),
        *[(name, Buffer) for name in ("dq", "dk", "dv")],
        ("d_operands", POINTER(NamedBuffer)),
        ("d_operand_count", c_size_t),
        ("workspace", Buffer),
        ("options", POINTER(CallOptions)),
        *[(name, Buffer) for name in ("amax_dq", "amax_dk", "amax_dv")],
    ]


class PreparedCall(SizedStructure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("attention", c_void_p),
        ("forward", POINTER(ForwardArgs)),
        ("backward", POINTER(BackwardArgs)),
        *[(name, c_void_p) for name in ("buffers", "addresses", "bytes")],
        ("count", c_size_t),
        ("sizes", c_void_p),
    ]


class RequestQueueOptions(SizedStructure):
    _fields_ = [("struct_size", c_size_t), ("capacity", c_size_t), ("refuse_when_full", c_int32), ("threads", c_int32)]


# scoremod_reply: a number for the request, its status, and the message, which is "" where it is done.
QUEUE_REPLY = ctypes.CFUNCTYPE(None, c_size_t, c_int32, c_char_p)

# Texts that scoremod gives away are void pointers here: ctypes would turn a char* into bytes and lose what is to be freed.
_FUNCTIONS = {
    "scoremod_version": (c_char_p, []),
    "scoremod_text_free": (None, [c_void_p]),
    "scoremod_attention_create": (c_int32, [c_char_p, POINTER(CompileOptions), POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_attention_get": (c_int32, [c_char_p, POINTER(CompileOptions), POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_attention_at": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "scoremod_attention_destroy": (None, [c_void_p]),
    "scoremod_attention_problem": (c_int32, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_attention_backend": (c_int32, [c_void_p, POINTER(c_char_p), POINTER(c_void_p)]),
    "scoremod_attention_forward_workspace_bytes": (c_int32, [c_void_p, POINTER(c_size_t), POINTER(c_void_p)]),
    "scoremod_attention_backward_workspace_bytes": (c_int32, [c_void_p, POINTER(c_size_t), POINTER(c_void_p)]),
    "scoremod_attention_forward": (c_int32, [c_void_p, POINTER(ForwardArgs), POINTER(c_void_p)]),
    "scoremod_attention_backward": (c_int32, [c_void_p, POINTER(BackwardArgs), POINTER(c_void_p)]),
    "scoremod_attention_call": (c_int32, [c_void_p, c_void_p]),
    "scoremod_support": (c_int32, [c_char_p, POINTER(CompileOptions), POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_explain": (c_int32, [c_char_p, POINTER(CompileOptions), POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_attention_backward_backend": (c_int32, [c_void_p, POINTER(c_char_p), POINTER(c_void_p)]),
    "scoremod_attention_cache_set_limit": (c_int32, [c_size_t, POINTER(c_void_p)]),
    "scoremod_attention_cache_clear": (c_int32, [POINTER(c_void_p)]),
    "scoremod_request_queue_create": (c_int32, [POINTER(RequestQueueOptions), POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_request_queue_destroy": (None, [c_void_p]),
    "scoremod_request_queue_drain": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "scoremod_request_queue_shut_down": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "scoremod_request_queue_submit_forward": (c_int32, [c_void_p, c_void_p, POINTER(ForwardArgs), QUEUE_REPLY, c_size_t, POINTER(c_void_p)]),
    "scoremod_request_queue_submit_backward": (c_int32, [c_void_p, c_void_p, POINTER(BackwardArgs), QUEUE_REPLY, c_size_t, POINTER(c_void_p)]),
    "scoremod_cache_statistics": (c_int32, [POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_plan_cache_set_limits": (c_int32, [c_size_t, c_size_t, POINTER(c_void_p)]),
    "scoremod_plan_cache_clear": (c_int32, [POINTER(c_void_p)]),
    "scoremod_plan_store_set_directory": (c_int32, [c_char_p, POINTER(c_void_p)]),
    "scoremod_plan_store_set_limit": (c_int32, [c_uint64, POINTER(c_void_p)]),
    "scoremod_plan_store_files": (c_int32, [c_int32, POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_plan_store_prune": (c_int32, [c_uint64, POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_plan_store_remove_damaged": (c_int32, [POINTER(c_void_p), POINTER(c_void_p)]),
    "scoremod_plan_store_clear": (c_int32, [POINTER(c_void_p), POINTER(c_void_p)]),
}


def _candidates():
    """Paths of the library in the order of preference: named, installed beside this package, built in this checkout."""
    if named := os.environ.get("SCOREMOD_LIBRARY"):
        return [Path(named)]
    package = Path(__file__).resolve().parent
    places = [package / FILE_NAME]
    if build := os.environ.get("SCOREMOD_BUILD_DIR"):
        places.append(Path(build) / "lib" / FILE_NAME)
    else:
        places += [package.parents[1] / "build" / preset / "lib" / FILE_NAME for preset in ("release", "dev")]
    return places


@functools.cache
def load():
    """The library, loaded once. Raises EnvironmentError that lists the places it looked at."""
    places = _candidates()
    found = next((place for place in places if place.is_file()), None)
    try:
        # Without any of those files, the system's loader may know an installed one.
        library = ctypes.CDLL(str(found or (places[0] if len(places) == 1 else SONAME)))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        looked = ", ".join(str(place) for place in places)
        raise EnvironmentError(
            f"expected {FILE_NAME} of this version of scoremod at one of {looked}, or known to the system's loader as "
            f"{SONAME}; found: {error}. Install the wheel anew, or run ./dev build in a checkout, or set SCOREMOD_LIBRARY to the file"
        ) from None
    return library


def take_text(pointer):
    """The text that scoremod gave to the caller, who then frees it; empty for a null pointer."""
    if not pointer.value:
        return ""
    try:
        return ctypes.string_at(pointer.value).decode("utf-8", "replace")
    finally:
        load().scoremod_text_free(pointer)


def call(name, *arguments):
    """Calls one function of the C interface and raises what it reports."""
    message = c_void_p()
    status = getattr(load(), name)(*arguments, ctypes.byref(message))
    if status != 0 or message.value:
        raise_error(name, status, message)


def raise_error(name, status, message):
    """Raises what a function of the C interface reported, if it is an error, and frees the message."""
    text = take_text(message)
    if status != 0:
        raise BY_STATUS.get(status, BugError)(text or f"{name} failed with status {status} and had no memory for a message")


@functools.cache
def by_addresses(name, count):
    """A function of the C interface of so many pointers, as one that takes their addresses as numbers, which ctypes has nothing to convert in."""
    function = load()[name]
    function.restype, function.argtypes = c_int32, (c_void_p,) * count
    return function
