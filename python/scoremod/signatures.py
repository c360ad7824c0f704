"""Types of arguments that several public functions have."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

# A problem of `scoremod docs problem`: its fields, or their JSON text.
Problem: TypeAlias = str | Mapping[str, Any]
# Names in order, with a "-" before those to leave out, or a text with commas.
Backends: TypeAlias = str | Iterable[str] | None
Layout: TypeAlias = Literal["BSHD", "SBHD", "BHSD"]
Memory: TypeAlias = Literal["host", "cuda"] | None
NewSizes: TypeAlias = Literal["wait", "serve"] | None
# Masks that have a name.
MaskName: TypeAlias = Literal["causal", "causal_bottom_right"]
# A function of one score and its indices, or of the indices alone, of whichever framework.
Modifier: TypeAlias = Callable[..., Any]
