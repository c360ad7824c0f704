"""Compiled attentions in memory, and plans in memory and in files: what there is, how much there may be, and emptying all. `scoremod docs cache`"""

import ctypes
import json
import os
from typing import Any

import numpy as np

from scoremod import library
from scoremod.errors import InvalidArgumentError


def statistics() -> dict[str, Any]:
    """Counts and limits of the process: {"attentions": {"hits", "misses", ..., "limit"}, "compiled": {"problems", "forwards",
    "backwards"}, "plans": {"hits", "builds", ..., "limits"}, "store": {"hits", ..., "directory"}, ...}."""
    return _ask("scoremod_cache_statistics")


def set_limits(*, attentions: int | None = None, plans: int | None = None, plan_bytes: int | None = None, store_bytes: int | None = None) -> None:
    """Limits of the compiled attentions, of the plans in memory, for each backend, and of the files' bytes; what isn't given stays. 0 keeps
    none."""
    attentions = None if attentions is None else _size(attentions, "attentions")
    limits = statistics()["plans"]["limits"]
    plans = limits["plans"] if plans is None else _size(plans, "plans")
    plan_bytes = limits["bytes"] if plan_bytes is None else _size(plan_bytes, "plan_bytes")
    store_bytes = None if store_bytes is None else _size(store_bytes, "store_bytes")
    library.call("scoremod_plan_cache_set_limits", plans, plan_bytes)
    if attentions is not None:
        library.call("scoremod_attention_cache_set_limit", attentions)
    if store_bytes is not None:
        library.call("scoremod_plan_store_set_limit", store_bytes)


def clear() -> None:
    """Drops every compiled attention and every plan from memory; an Attention keeps what it uses. Files stay."""
    library.call("scoremod_attention_cache_clear")
    library.call("scoremod_plan_cache_clear")


def directory() -> str | None:
    """The folder of the files; None when they are off."""
    return statistics()["store"]["directory"] or None


def set_directory(path: str | os.PathLike[str] | None) -> None:
    """Uses this folder for files from now on; None switches files off. It is made when something is written."""
    encoded = b"" if path is None else os.fsencode(path)
    if b"\0" in encoded or (path is not None and not encoded):
        raise InvalidArgumentError(f"path: expected the name of a folder, or None, found {path!r}")
    library.call("scoremod_plan_store_set_directory", encoded)


def files(*, verify: bool = False) -> list[dict[str, Any]]:
    """The files, the last used first: [{"name", "bytes", "last_used", "damage", "kind", ...}]. verify reads them in full, so
    that every damage is found."""
    return _ask("scoremod_plan_store_files", int(bool(verify)))


def prune(max_bytes: int) -> dict[str, int]:
    """Deletes the least recently used files until the rest takes at most max_bytes: {"files": deleted, "bytes": freed}."""
    return _ask("scoremod_plan_store_prune", _size(max_bytes, "max_bytes"))


def remove_damaged() -> dict[str, int]:
    """Deletes the files that are damaged: {"files", "bytes"}."""
    return _ask("scoremod_plan_store_remove_damaged")


def clear_files() -> dict[str, int]:
    """Deletes every file of the store, and no other file of its folder: {"files", "bytes"}."""
    return _ask("scoremod_plan_store_clear")


def _ask(function, *arguments):
    answer = ctypes.c_void_p()
    library.call(function, *arguments, ctypes.byref(answer))
    return json.loads(library.take_text(answer))


def _size(value, name):
    # ctypes would keep the low 64 bits of anything larger, and take -1 for the largest.
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{name}: expected an integer from 0 to 2**64 - 1, found {value!r}")
    return int(value)
