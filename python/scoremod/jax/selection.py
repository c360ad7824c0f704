"""Which backends may run a call, where, and the attention that the planner makes of it: what is said here is passed on, nothing is chosen."""

from typing import Literal

import jax
import jax.core

from scoremod.attention import Attention, support
from scoremod.call_spec import backend_names, check_backend, wrong
from scoremod.errors import EnvironmentError, InvalidArgumentError, UnsupportedError
from scoremod.jax.open_sizes import with_some_sizes

XLA = "xla"
# The backends of a call that runs as XLA operations.
ON_XLA = (XLA,)

# JAX's name of a platform -> where its arrays lie, as scoremod calls it.
_MEMORIES: dict[str, Literal["host", "cuda"]] = {"cpu": "host", "cuda": "cuda", "gpu": "cuda"}
WAY_OUT = 'backend="xla" runs it as XLA operations, and fallback="xla" does so wherever it is needed'


def chosen_backends(backend, backends):
    """The names among which flex_attention's two arguments choose; ON_XLA for backend="xla", which runs without scoremod's backends."""
    check_backend(backend, backends)
    if backend == XLA:
        return ON_XLA
    names = backend_names(backends) if backend is None else (backend,)
    if XLA in [name.removeprefix("-") for name in names]:
        raise InvalidArgumentError(
            f'backends: expected backends of scoremod, found "xla", which runs an attention without them: give backend="xla", or fallback="xla" '
            f"for what {'the others' if len(names) > 1 else 'they'} can't run"
        )
    return names


def check_fallback(fallback):
    """Raises unless flex_attention's argument is "xla" or None."""
    if fallback is not None and (not isinstance(fallback, str) or fallback != XLA):
        raise wrong("fallback", '"xla" or None', fallback, is_type=not isinstance(fallback, str))


def platform_of(*arrays):
    """JAX's name of the platform that will run a call of these arrays: where they were put, or JAX's default."""
    for array in arrays:
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and array.committed:
            return next(iter(array.devices())).platform
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.default_backend() if device is None else getattr(device, "platform", device)


def memory_of(platform) -> Literal["host", "cuda"]:
    """The memory that a platform's arrays are in: "host" or "cuda". Raises UnsupportedError."""
    if platform not in _MEMORIES:
        raise UnsupportedError(f'expected one of the platforms {", ".join(_MEMORIES)}, found {platform!r}; backend="xla" runs everywhere')
    return _MEMORIES[platform]


def device_of(platform):
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


def compiled(problem, call, platform, *, backward=False):
    """The Attention of a Call's problem on a platform, which the process compiles once. Raises UnsupportedError with the backends' reasons and the way
    out; with `backward` also where they run the forward alone. Raises InvalidArgumentError for names that no backend has."""
    memory, device = memory_of(platform), device_of(platform)
    try:
        attention = Attention(problem, backends=call.backends, new_sizes=call.new_sizes, memory=memory, device=device)
        if backward:
            attention.backward_backend
        return attention
    except UnsupportedError as error:
        raise _none_runs(platform, error) from None


def check_runs(problem, call, platform, is_open, *, backward=False):
    """Raises UnsupportedError where compiled() does. is_open: whether the problem has open sizes; then nothing is compiled."""
    if not is_open:
        compiled(problem, call, platform, backward=backward)
        return
    answers = support(with_some_sizes(problem), backends=call.backends, memory=memory_of(platform), device=device_of(platform), level="static")
    if not any(answer["supported" if backward else "forward_supported"] for answer in answers):
        raise _none_runs(platform, "; ".join(f"{answer['backend']}: {reason}" for answer in answers for reason in answer["reasons"]))


def _none_runs(platform, reasons):
    return UnsupportedError(f"no backend on the platform '{platform}' can run this attention: {reasons}. {WAY_OUT}")
