"""Attention over NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoremod import library
from scoremod.array_call import ArrayCall, DropoutState, named_outputs
from scoremod.arguments import encode, problem_text
from scoremod.call_spec import NO_OFFSETS, CallSpec, Offsets, check_flags, checked
from scoremod.compile_spec import CompileSpec, compile_options, query_options
from scoremod.empty_problems import nonempty_twin, operands_as_given, write_rows_without_keys, write_zeros
from scoremod.errors import InvalidArgumentError
from scoremod.fork_safety import LazyAttribute
from scoremod.signatures import Backends, Memory, NewSizes, Problem
from scoremod.tensors import array_dtype, operand_specs, tensor_specs
from scoremod.workspace import Workspace, workspace_of


class Gradients(NamedTuple):
    """The gradients that Attention.backward returns, and takes as `out`. Each array has its tensor's layout."""

    dq: NDArray[Any] | None
    dk: NDArray[Any] | None
    dv: NDArray[Any] | None
    d_operands: Mapping[str, NDArray[Any] | None] | None


class PreparedCall(NamedTuple):
    """A call that was checked, and has not run."""

    args: library.ForwardArgs | library.BackwardArgs
    results: Any  # the arrays that it writes to, as the call returns them
    kept: Any  # what the struct points to
    write: Callable[[], None] | None = None  # writes the results of an empty problem, which no backend runs


class Attention:
    """A compiled problem: O = softmax(score_mod(scale * Q K^T)) V, over the keys that the mask keeps.

    Several threads may use one Attention at once; it runs without Python's lock. What is compiled is kept for the process and shared by all that
    are made of equal problems and options (scoremod.cache), so making one again is cheap.

    Parameters
    ----------
    problem : dict or str
        The fields of `scoremod docs problem`, or their JSON text.
    backend : str, optional
        "cpu" or "reference"; without it, one of `backends`. "cudnn" and "kernels" compile too, and then take device memory: their calls are not
        for arrays.
    backends : list of str or str, optional
        Names in order, of which the first that supports the problem runs it. A "-" before a name leaves it out. A text has commas between names.
        Without a name the backend that is predicted to be the fastest. Without it, SCOREMOD_BACKENDS.
    memory : {"host", "cuda"}, optional
        The memory of the calls' tensors, if no backend is named.
    max_workspace : int, optional
        Bytes of device memory that a call may need. A backend that needs more is not chosen.
    autotune : bool
        Whether the first use measures what may run on a device, and remembers the fastest.
    new_sizes : {"wait", "serve"}, optional
        "wait" for the fastest backend's plan where it has to be built, or "serve": run a ready backend meanwhile. Without it, SCOREMOD_NEW_SIZES,
        else "serve", but "wait" for a deterministic problem and with autotune.
    threads : int
        CPU threads; 0 means OMP_NUM_THREADS, or one for each core. SCOREMOD_THREADS is the most.
    disabled_passes : iterable of str
        Compiler passes to leave out, by name.
    device : int, optional
        The CUDA device's ordinal; without it, the current one.

    Raises
    ------
    InvalidArgumentError
        For a wrong problem or option.
    UnsupportedError
        For a problem that no backend runs, with each backend's reasons.

    Notes
    -----
    Arrays have the problem's dtype, and its layout's order of dimensions: [batch, seq, heads, dim] by default. bf16 arrays are
    ml_dtypes.bfloat16, or uint16 with its bits. e4m3 and e5m2 are ml_dtypes.float8_e4m3fn and float8_e5m2, or uint8 with their bits.
    Outputs of another dtype than q's are of ml_dtypes where q is. Sizes of 0 but for the head dims are taken, also without queries or keys: a row
    without a key gets output 0 and LSE -inf, and gradients are 0. No array is copied or converted: a wrong dtype, shape or stride raises
    InvalidArgumentError.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        backend: str | None = None,
        backends: Backends = None,
        memory: Memory = None,
        max_workspace: int | None = None,
        autotune: bool = False,
        new_sizes: NewSizes = None,
        threads: int = 0,
        disabled_passes: Iterable[str] = (),
        device: int | None = None,
    ) -> None:
        self._spec = CompileSpec.of(
            backend=backend,
            backends=backends,
            memory=memory,
            max_workspace=max_workspace,
            autotune=autotune,
            new_sizes=new_sizes,
            threads=threads,
            disabled_passes=disabled_passes,
            device=device,
        )
        self._text: str | None = problem_text(problem)
        options = compile_options(self._spec)
        handle = ctypes.c_void_p()
        text, empty = nonempty_twin(self._text)
        library.call("scoremod_attention_get", encode(text, "problem"), options, ctypes.byref(handle))
        self._own(handle, empty)

    @classmethod
    def of_handle(cls, handle: ctypes.c_void_p, spec: CompileSpec) -> Attention:
        """The Attention that a handle of the C interface belongs to from now on. spec: what a copy is compiled with."""
        made = cls.__new__(cls)
        made._text, made._spec = None, spec
        made._own(handle)
        return made

    def without(self, empty: Mapping[str, int]) -> Attention:
        """The Attention of the same problem with sizes of 0, each of which is 1 here. This one is used up. empty: name -> 0."""
        self._empty = empty
        self.__dict__.pop("_problem", None)
        return self

    def _own(self, handle, empty: Mapping[str, int] = MappingProxyType({})):
        """empty: the sizes that are 0, for which the handle's problem has 1."""
        self._handle, self._destroy, self._empty = handle, library.load().scoremod_attention_destroy, empty

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit daemon threads may still be in calls: nothing is freed under them then, and the system takes all of it.
        if not _is_finalizing() and "_destroy" in self.__dict__:
            self._destroy(self._handle)

    # PyTorch makes an Attention of each new size, and asks for none of these.

    @LazyAttribute
    def _problem(self):
        understood = ctypes.c_void_p()
        library.call("scoremod_attention_problem", self._handle, ctypes.byref(understood))
        return {**json.loads(library.take_text(understood)), **self._empty}

    @LazyAttribute
    def _tensors(self):
        return tensor_specs(self._problem)

    @LazyAttribute
    def _operands(self):
        return operand_specs(self._problem)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or what a pickle is made into, has a handle of its own: two objects must not free one.
        return _compile_again, (json.dumps(self._problem) if self._text is None else self._text, self._spec)

    def __repr__(self) -> str:
        p = self._problem
        return (
            f"<scoremod.Attention on {self.backend}: batch {p['batch']}, heads {p['heads_q']}/{p['heads_kv']}, "
            f"seq {p['seq_q']}x{p['seq_kv']}, dim {p['dim_qk']}/{p['dim_v']}, {p['dtype']}>"
        )

    @property
    def problem(self) -> dict[str, Any]:
        """The problem as it was understood, every default filled in; a new dict."""
        return json.loads(json.dumps(self._problem))

    @property
    def is_empty(self) -> bool:
        """Whether a size is 0, so that no backend runs and outputs are those of rows without keys."""
        return bool(self._empty)

    @property
    def backend(self) -> str:
        """The name of the backend that runs it."""
        name = ctypes.c_char_p()
        library.call("scoremod_attention_backend", self._handle, ctypes.byref(name))
        return (name.value or b"").decode()

    @property
    def backward_backend(self) -> str:
        """The name of the backend that runs the backward; "" without one. Raises UnsupportedError, with the reasons, where the problem wants a
        backward and none runs it."""
        name = ctypes.c_char_p()
        library.call("scoremod_attention_backward_backend", self._handle, ctypes.byref(name))
        return (name.value or b"").decode()

    @property
    def forward_workspace_bytes(self) -> int:
        """Bytes of scratch that each forward call allocates and frees."""
        return self._workspace_bytes("forward")

    @property
    def backward_workspace_bytes(self) -> int:
        """Bytes of scratch that each backward call allocates and frees; 0 without a backward."""
        return self._workspace_bytes("backward")

    def forward(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        operands: Mapping[str, ArrayLike] | None = None,
        *,
        return_lse: bool = False,
        return_max_logit: bool = False,
        return_amax_o: bool = False,
        scale: float | None = None,
        offsets: Offsets | tuple[int, ...] = NO_OFFSETS,
        dropout: DropoutState | tuple[int, ...] = DropoutState(),
        out: NDArray[Any] | tuple[NDArray[Any] | None, ...] | None = None,
        workspace: Workspace | None = None,
    ) -> Any:
        """Runs the forward pass.

        Parameters
        ----------
        q, k, v : array
            Arrays of the problem's shapes.
        operands : dict of str to array, optional
            An array for each operand of the program, and for those that fields bring, such as "lengths" (`scoremod docs problem`). "descale_d_o" may be
            left out.
        return_lse : bool
            Whether to return float32 [batch, heads_q, seq_q], or [tokens_q, heads_q] with "tokens_q": the log-sum-exp of each row's modified
            scores (natural log). backward needs it.
        return_max_logit : bool
            Whether to return each row's largest modified score, with lse's shape. The problem must have "max_logit": True.
        return_amax_o : bool
            Whether to return the largest magnitude in the unscaled output, a float32 scalar. The problem must have "amax_o": True.
        scale : float, optional
            Takes the place of the problem's scale.
        offsets : Offsets
            Added to the indices that the program sees.
        dropout : DropoutState
            The random state of a problem with "dropout".
        out : array or tuple of arrays, optional
            The array that the output is written to; where several results are returned, a tuple in their order, with None for one that is to be
            allocated. An array is what the problem says, writable, and overlaps no other array of the call.
        workspace : Workspace, optional
            Memory that the call takes for its scratch instead of allocating it.

        Returns
        -------
        array or tuple of arrays
            The output, or the results that were asked for, in the order of these arguments.

        Raises
        ------
        InvalidArgumentError
            For an array or an argument that isn't what the problem says.
        """
        asked = {"return_lse": return_lse, "return_max_logit": return_max_logit, "return_amax_o": return_amax_o}
        prepared = self._prepare_forward(q, k, v, operands, **asked, scale=scale, offsets=offsets, dropout=dropout, out=out)
        return self._run("forward", prepared, workspace)

    def _prepare_forward(self, q, k, v, operands, *, return_lse, return_max_logit, return_amax_o, scale, offsets, dropout, out):
        """The PreparedCall of a forward with these arguments, which are checked."""
        check_flags(return_lse=return_lse, return_max_logit=return_max_logit, return_amax_o=return_amax_o)
        returned = ["o", *["lse"] * bool(return_lse), *["max_logit"] * bool(return_max_logit), *["amax_o"] * bool(return_amax_o)]
        spec = checked(CallSpec(scale=scale, offsets=offsets))  # pyright: ignore[reportArgumentType]  # a tuple becomes Offsets
        call = ArrayCall(self._tensors, spec, dropout, named_outputs(out, returned))
        args = call.args(library.ForwardArgs, q=q, k=k, v=v)
        specs = operands_as_given(self._operands, operands) if self._empty else self._operands
        args.operands, args.operand_count = call.operands(specs, operands, optional=self._read_by_backward_alone())
        o = call.output(args, "o", "o", self._output_dtype("o", q))
        lse = call.output(args, "lse", "lse", np.float32) if return_lse or self._problem["stats"] else None
        max_logit = None
        if self._problem["max_logit"]:
            max_logit = call.output(args, "max_logit", "lse", np.float32)
        elif return_max_logit:
            raise InvalidArgumentError('return_max_logit: expected a problem with "max_logit": True, found one without')
        amax_o = None
        if self._problem.get("amax_o", False):
            amax_o = call.output(args, "amax_o", "amax_o", np.float32)
        elif return_amax_o:
            raise InvalidArgumentError('return_amax_o: expected a problem with "amax_o": True, found one without')
        arrays = {"o": o, "lse": lse, "max_logit": max_logit, "amax_o": amax_o}
        results = o if len(returned) == 1 else tuple(arrays[name] for name in returned)
        write = functools.partial(write_rows_without_keys, arrays, self._problem, operands) if self._empty else None
        return PreparedCall(args, results, (call, arrays), write)

    def backward(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        o: ArrayLike,
        lse: ArrayLike,
        d_o: ArrayLike,
        operands: Mapping[str, ArrayLike] | None = None,
        *,
        d_operands: Iterable[str] | None = None,
        return_amax_gradients: bool = False,
        scale: float | None = None,
        offsets: Offsets | tuple[int, ...] = NO_OFFSETS,
        dropout: DropoutState | tuple[int, ...] = DropoutState(),
        out: Gradients | None = None,
        workspace: Workspace | None = None,
    ) -> Any:
        """Runs the backward pass. The problem must have "backward": True.

        Parameters
        ----------
        q, k, v, operands : array
            forward's.
        o, lse : array
            The results of forward.
        d_o : array
            The gradient of the output, in o's layout.
        d_operands : iterable of str, optional
            Names of the operands whose gradients are wanted; without it, those of every float operand that has one.
        return_amax_gradients : bool
            Whether to return the largest magnitudes in dq, dk and dv before each is rounded. The problem must have "amax_gradients": True.
        scale, offsets, dropout
            forward's, with the same values.
        out : Gradients, optional
            The arrays that gradients are written to, each as forward's; d_operands is a dict of some of the wanted ones. None, there too, for
            one that is to be allocated.
        workspace : Workspace, optional
            forward's.

        Returns
        -------
        Gradients or tuple
            The Gradients of q, k, v and the wanted operands; with return_amax_gradients a pair of them and (amax_dq, amax_dk, amax_dv), float32 scalars.

        Raises
        ------
        InvalidArgumentError
            For an array or an argument that isn't what the problem says.
        """
        options = {"d_operands": d_operands, "return_amax_gradients": return_amax_gradients}
        options |= {"scale": scale, "offsets": offsets, "dropout": dropout, "out": out}
        prepared = self._prepare_backward(q, k, v, o, lse, d_o, operands, **options)
        return self._run("backward", prepared, workspace)

    def _prepare_backward(self, q, k, v, o, lse, d_o, operands, *, d_operands, return_amax_gradients, scale, offsets, dropout, out):
        """The PreparedCall of a backward with these arguments, which are checked."""
        if out is not None and not (isinstance(out, tuple) and len(out) == len(Gradients._fields)):
            raise InvalidArgumentError(f"out: expected scoremod.Gradients(dq, dk, dv, d_operands) of arrays or None, found {type(out).__name__}")
        dq, dk, dv, of_operands = (None,) * 4 if out is None else out
        check_flags(return_amax_gradients=return_amax_gradients)
        spec = checked(CallSpec(scale=scale, offsets=offsets))
        call = ArrayCall(self._tensors, spec, dropout, {"dq": dq, "dk": dk, "dv": dv})
        args = call.args(library.BackwardArgs, q=q, k=k, v=v, o=o, lse=lse, d_o=d_o)
        specs = operands_as_given(self._operands, operands) if self._empty else self._operands
        args.operands, args.operand_count = call.operands(specs, operands)
        made = {role: call.output(args, f"d{role}", f"d{role}", self._output_dtype(f"d{role}", q)) for role in "qkv"}
        gradients, args.d_operands, args.d_operand_count = call.operand_gradients(specs, operands, d_operands, of_operands)
        amax = ()
        if self._problem.get("amax_gradients", False):
            amax = tuple(call.output(args, name, name, np.float32) for name in ("amax_dq", "amax_dk", "amax_dv"))
        elif return_amax_gradients:
            raise InvalidArgumentError('return_amax_gradients: expected a problem with "amax_gradients": True, found one without')
        results = Gradients(made["q"], made["k"], made["v"], gradients)
        write = functools.partial(write_zeros, (*results[:3], *amax, *gradients.values())) if self._empty else None
        return PreparedCall(args, (results, amax) if return_amax_gradients else results, (call, results, amax), write)

    def _run(self, direction, prepared, workspace):
        with workspace_of(prepared.args, workspace, lambda: self._workspace_bytes(direction)):
            if prepared.write is None:
                library.call(f"scoremod_attention_{direction}", self._handle, prepared.args)
            else:
                prepared.write()
        return prepared.results

    def _output_dtype(self, name, q):
        """The dtype of this output's array."""
        return array_dtype(self._tensors[name].dtype, self._problem["dtype"], np.asarray(q).dtype)

    def _read_by_backward_alone(self):
        is_factor = self._problem["backward"] and self._tensors["d_o"].dtype in ("e4m3", "e5m2")
        return ("descale_d_o",) if is_factor else ()

    def _workspace_bytes(self, direction):
        if self._empty:
            return 0
        size = ctypes.c_size_t()
        library.call(f"scoremod_attention_{direction}_workspace_bytes", self._handle, ctypes.byref(size))
        return size.value


def support(
    problem: Problem,
    *,
    backend: str | None = None,
    backends: Backends = None,
    memory: Memory = None,
    device: int | None = None,
    level: Literal["verified", "static"] = "verified",
    device_properties: str | None = None,
) -> list[dict[str, Any]]:
    """Asks every backend whether it runs a problem.

    Parameters
    ----------
    problem, backend, backends, memory, device
        Attention's.
    level : {"verified", "static"}
        "verified" builds and verifies as compiling does; "static" builds nothing and needs no device.
    device_properties : str, optional
        The text that `scoremod device` prints on a machine with a device, for which a device's backends answer then. It need not be here: their
        plans are built, and nothing is verified.

    Returns
    -------
    list of dict
        An answer for each backend, in the order of preference: {"backend", "supported", "reasons", "notes", "memory", "forward_supported",
        "refusals"}. `refusals` has each reason's id, direction, text and remedy.

    Raises
    ------
    InvalidArgumentError
        For a wrong problem or option.
    """
    spec = CompileSpec.of(backend=backend, backends=backends, memory=memory, device=device)
    return _ask("scoremod_support", problem, query_options(spec, level=level, device_properties=device_properties))


def explain(
    problem: Problem,
    *,
    backend: str | None = None,
    backends: Backends = None,
    memory: Memory = None,
    device: int | None = None,
    disabled_passes: Iterable[str] = (),
    device_properties: str | None = None,
) -> dict[str, Any]:
    """Explains how a problem is compiled.

    Parameters
    ----------
    problem, backend, backends, memory, device, disabled_passes
        Attention's.
    device_properties : str, optional
        support()'s. What is chosen is then for calls on that device.

    Returns
    -------
    dict
        The fields of `scoremod explain --json`: the mask's class, the program before and after the passes, its derivative and FLOPs. It also has
        every backend's answer with its workspace, which of them Attention takes with the same arguments, and who made that choice.

    Raises
    ------
    InvalidArgumentError
        For a wrong problem or option.
    """
    spec = CompileSpec.of(backend=backend, backends=backends, memory=memory, device=device, disabled_passes=disabled_passes)
    return _ask("scoremod_explain", problem, query_options(spec, device_properties=device_properties))


def _ask(function, problem, options):
    answer = ctypes.c_void_p()
    library.call(function, encode(problem_text(problem), "problem"), options, ctypes.byref(answer))
    return json.loads(library.take_text(answer))


def _compile_again(problem, spec):
    return Attention(problem, **spec._asdict())
