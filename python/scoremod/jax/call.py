"""One attention call as a plain value, its problem as JSON, and what the backends say of it."""

import functools
import json
import numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.arguments import finite
from scoremod.attention import Attention, support
from scoremod.errors import EnvironmentError, InvalidArgumentError, UnsupportedError
from scoremod.jax.program import AXES, Program, operand_name

LAYOUTS = ("BSHD", "SBHD", "BHSD")

# JAX's name of a platform -> the backends that can run there, the default first.
_BACKENDS = {"cpu": ("cpu", "reference"), "cuda": ("cudnn",), "gpu": ("cudnn",)}
_DTYPE_NAMES = {
    np.dtype(np.float32): "f32",
    np.dtype(np.float16): "f16",
    jnp.dtype(jnp.bfloat16): "bf16",
    np.dtype(np.int32): "i32",
    np.dtype(np.bool_): "bool",
}


class Call(NamedTuple):
    """Everything about a call but its arrays. Two calls are the same computation exactly when they are equal: the program stands here by
    its structure, so neither the name nor the identity of the user's function matters."""

    program: Program
    layout: str
    scale: float | None
    backend: str | None
    deterministic: bool

    def axis(self, letter):
        """The position of a dimension of q, k, v or o."""
        return self.layout.index(letter)


class Sizes(NamedTuple):
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim_qk: int
    dim_v: int

    def axes(self):
        """axis -> the size of the score along it."""
        return dict(zip(AXES, (self.batch, self.heads_q, self.seq_q, self.seq_kv)))


def sizes_of(layout, q, k, v):
    """The Sizes of arrays (or shapes) in a layout. Raises InvalidArgumentError that names what doesn't fit."""
    if layout not in LAYOUTS:
        raise InvalidArgumentError(f"layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}")
    shapes = {"query": tuple(q.shape), "key": tuple(k.shape), "value": tuple(v.shape)}
    for name, shape in shapes.items():
        if len(shape) != 4:
            raise InvalidArgumentError(f"{name}: expected 4 dimensions in the order {layout}, found shape {shape}")
    size = {name: dict(zip(layout, shape)) for name, shape in shapes.items()}
    for letter, first, second, what in (
        ("B", "query", "key", "batch"),
        ("B", "query", "value", "batch"),
        ("H", "key", "value", "number of heads"),
        ("S", "key", "value", "length"),
        ("D", "query", "key", "head dim"),
    ):
        if size[first][letter] != size[second][letter]:
            raise InvalidArgumentError(
                f"{second}: expected the {what} of {first}, {size[first][letter]}, found {size[second][letter]} in shape "
                f"{shapes[second]} ({layout})"
            )
    if 0 in shapes["query"] or 0 in shapes["key"] or 0 in shapes["value"]:
        raise InvalidArgumentError(f"expected arrays that are not empty, found shapes {', '.join(map(str, shapes.values()))}")
    if size["query"]["H"] % size["key"]["H"]:
        raise InvalidArgumentError(
            f"query: expected a number of heads that is a multiple of key's {size['key']['H']}, found {size['query']['H']}"
        )
    return Sizes(
        *(size["query"][letter] for letter in "BH"),
        size["key"]["H"],
        size["query"]["S"],
        size["key"]["S"],
        size["query"]["D"],
        size["value"]["D"],
    )


def check_known(sizes):
    """Raises UnsupportedError for sizes that jax.export left open."""
    if any(not isinstance(size, numbers.Integral) for size in sizes):
        raise UnsupportedError(
            f"expected sizes that are numbers, found {', '.join(f'{name} {size}' for name, size in sizes._asdict().items())}: an attention is "
            'compiled for its sizes. Export one program for each, or use backend="xla"'
        )


def dtype_of(q, k, v, *, on_xla=False):
    """The dtype of query, key and value. Raises UnsupportedError for float64, which only attention as XLA operations takes."""
    dtypes = {"query": q.dtype, "key": k.dtype, "value": v.dtype}
    if set(dtypes.values()) == {np.dtype(np.float64)}:
        if on_xla:
            return q.dtype
        raise UnsupportedError(
            "expected query, key and value of float32, float16 or bfloat16, found float64, which JAX makes of Python's and NumPy's numbers with "
            "jax_enable_x64: convert them with .astype(jnp.float32), or compute in float64 on XLA with backend=\"xla\""
        )
    if len(set(dtypes.values())) != 1 or _DTYPE_NAMES.get(np.dtype(q.dtype)) not in ("f32", "f16", "bf16"):
        found = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise InvalidArgumentError(f"expected query, key and value of one dtype, float32, float16 or bfloat16; found {found}")
    return q.dtype


def split_scale(scale):
    """(number, array): the factor of Q K^T as part of the problem, or as an operand."""
    if scale is None:
        return None, None
    if isinstance(scale, numbers.Real):
        number = finite(scale, "scale")
        if abs(number) > np.finfo(np.float32).max:
            raise InvalidArgumentError(f"scale: expected a number that float32 holds, found {scale!r}")
        return number, None
    if not isinstance(scale, (jax.Array, np.ndarray)) or scale.shape != () or not jnp.issubdtype(scale.dtype, jnp.floating):
        raise InvalidArgumentError(f"scale: expected a finite number or a scalar float array, found {scale!r}")
    return 1.0, jnp.asarray(scale, jnp.float32)


def problem_text(call, q, k, v, operands, *, backward, stats, wanted=None):
    """The problem of these arrays (or shapes) as JSON: docs/problem.md. The scale isn't in it: it is bound at each call. `wanted`: the numbers
    of the operands whose gradients may be asked for; None for all."""
    problem = {
        **sizes_of(call.layout, q, k, v)._asdict(),
        "dtype": _DTYPE_NAMES[np.dtype(q.dtype)],
        "layout": call.layout,
        "program": call.program.text(),
        "operands": [
            {
                "name": operand_name(i),
                "dtype": _DTYPE_NAMES[np.dtype(operand.dtype)],
                "shape": list(operand.shape),
                "gradient": wanted is None or i in wanted,
            }
            for i, operand in enumerate(operands)
        ],
        "backward": backward,
        "stats": stats,
        "deterministic": call.deterministic,
    }
    return json.dumps(problem)


def backend_on(platform, backend):
    """The backend that runs on a platform: the named one, or the platform's default."""
    known = _BACKENDS.get(platform, ())
    if not known or (backend is not None and backend not in known):
        found = "no backend" if backend is None else repr(backend)
        raise UnsupportedError(
            f"backend: expected one that runs on the platform {platform!r} ({', '.join(known) or 'none does'}), found {found}; "
            'backend="xla" runs everywhere'
        )
    return backend or known[0]


def platform_of(*arrays):
    """JAX's name of the platform that will run a call of these arrays: where they were put, or JAX's default."""
    for array in arrays:
        if not isinstance(array, jax.core.Tracer) and array.committed:
            return next(iter(array.devices())).platform
    device = jax.config.jax_default_device
    return jax.default_backend() if device is None else getattr(device, "platform", device)


def check_runs(problem, backend, *arrays):
    """The backend (None: the platform's own) that runs a problem where these arrays are. It is compiled for that. Raises UnsupportedError if it
    can't be."""
    platform = platform_of(*arrays)
    backend = backend_on(platform, backend)
    compiled(problem, backend, local_device(platform))
    return backend


def local_device(platform):
    """The CUDA ordinal of a device of this process; None on the CPU. Raises EnvironmentError where there is none."""
    if platform == "cpu":
        return None
    try:
        return jax.local_devices(backend=platform)[0].local_hardware_id
    except RuntimeError as error:
        raise EnvironmentError(
            f"expected a device of the platform {platform!r}, on which attention is to be compiled, in this process; found: {error}. Compile or "
            "export on a machine that has one"
        ) from None


def compiled(problem, backend, device, *, backward=False):
    """The Attention of a problem, which the process compiles once. Raises UnsupportedError with the backend's reasons and the way out; with
    `backward` also where it runs the forward alone."""
    if backend not in _BACKENDS["cpu"] and backend not in _built_backends():  # those of the CPU are in every build
        raise UnsupportedError(f"this build of scoremod has no backend '{backend}'; {_WAY_OUT}")
    try:
        attention = Attention(problem, backend=backend, device=device)
        if backward:
            attention.backward_backend
        return attention
    except UnsupportedError as error:
        raise UnsupportedError(f"the backend '{backend}' can't run this attention: {error}. {_WAY_OUT}") from None


_WAY_OUT = 'backend="xla" runs it as XLA operations, and fallback="xla" does so wherever it is needed'


@functools.cache
def _built_backends():
    """The names of the backends that the library was built with."""
    return [answer["backend"] for answer in support({"batch": 1, "heads_q": 1, "seq_q": 1, "dim_qk": 8}, level="static")]
