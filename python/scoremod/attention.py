"""Attention over NumPy arrays."""

import ctypes
import functools
import json
import sys
from typing import NamedTuple

import numpy as np

from scoremod import library
from scoremod.array_call import ArrayCall, DropoutState, Offsets, named_outputs
from scoremod.arguments import backend_names, compile_options, encode, problem_text
from scoremod.errors import InvalidArgumentError
from scoremod.tensors import array_dtype, operand_specs, tensor_specs
from scoremod.workspace import workspace_of


class Gradients(NamedTuple):
    """What Attention.backward returns, and takes as `out`. Each lies as its tensor does."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    d_operands: dict


class Attention:
    """A compiled problem: O = softmax(score_mod(scale * Q K^T)) V, over the keys that the mask keeps.

    problem: a dict, or JSON text, with the fields of docs/problem.md.
    backend: "cpu" or "reference"; without it, one of `backends`. "cudnn" and "kernels" compile too, and then take device memory:
        their calls are not for arrays.
    backends: names in order, of which the first that supports the problem runs it, and names to leave out, with a "-" before them; a list,
        or a text with commas. Without a name the backend that is predicted to be the fastest. Without it, what SCOREMOD_BACKENDS says.
    memory: "host" or "cuda": where the calls' tensors lie, if no backend is named.
    max_workspace: bytes of device memory that a call may need; what needs more is not chosen.
    autotune: measure what may run on a device at the first use, and remember the fastest.
    new_sizes: "wait" for the fastest backend's plan where it has to be built, or "serve": run what is at hand meanwhile. Without it, what
        SCOREMOD_NEW_SIZES says, else "serve", but "wait" for a deterministic problem and with autotune.
    threads: CPU threads; 0 means OMP_NUM_THREADS, or one for each core. SCOREMOD_THREADS is the most.
    device: the CUDA device's ordinal; without it, the current one.
    disabled_passes: compiler passes to leave out, by name.

    Raises InvalidArgumentError for a wrong problem and UnsupportedError, with each backend's reasons, for one that none runs.
    Several threads may use one Attention at once; it runs without Python's lock. What is compiled is kept for the process and shared by
    all that are made of equal problems and options (scoremod.cache), so making one again is cheap.

    Arrays have the order of dimensions that the problem's layout names, [batch, seq, heads, dim] unless it says otherwise, and
    the problem's dtype; bf16 is ml_dtypes.bfloat16, or uint16 that holds its bits, and e4m3 and e5m2 are ml_dtypes.float8_e4m3fn and
    float8_e5m2, or uint8 likewise. Outputs of another dtype than q's are of ml_dtypes where q is. No array is copied or converted: one that
    isn't what the problem says raises InvalidArgumentError.
    """

    def __init__(
        self, problem, *, backend=None, backends=None, memory=None, max_workspace=None, autotune=False, new_sizes=None, threads=0, disabled_passes=(),
        device=None
    ):
        selection = {"backends": backend_names(backends), "memory": memory, "max_workspace": max_workspace, "autotune": autotune, "new_sizes": new_sizes}
        self._arguments = (problem_text(problem), backend, threads, tuple(disabled_passes), device, selection)
        options = compile_options(*self._arguments[1:5], **selection)
        handle = ctypes.c_void_p()
        text = encode(self._arguments[0], "problem")
        library.call("scoremod_attention_get", text, options, ctypes.byref(handle))
        self._own(handle)

    @classmethod
    def of_handle(cls, handle, arguments):
        """The Attention that a handle of the C interface belongs to from now on. arguments: its options, as a copy is compiled with."""
        made = cls.__new__(cls)
        made._arguments = (None, *arguments)
        made._own(handle)
        return made

    def _own(self, handle):
        self._handle, self._destroy = handle, library.load().scoremod_attention_destroy

    def __del__(self, _is_finalizing=sys.is_finalizing):
        # At exit daemon threads may still be in calls: nothing is freed under them then, and the system takes all of it.
        if not _is_finalizing() and "_destroy" in self.__dict__:
            self._destroy(self._handle)

    # PyTorch makes an Attention of each new size, and asks for none of these.

    @functools.cached_property
    def _problem(self):
        understood = ctypes.c_void_p()
        library.call("scoremod_attention_problem", self._handle, ctypes.byref(understood))
        return json.loads(library.take_text(understood))

    @functools.cached_property
    def _tensors(self):
        return tensor_specs(self._problem)

    @functools.cached_property
    def _operands(self):
        return operand_specs(self._problem)

    def __reduce__(self):
        # A copy, or what a pickle is made into, has a handle of its own: two objects must not free one.
        text, *options = self._arguments
        return _compile_again, (json.dumps(self._problem) if text is None else text, *options)

    def __repr__(self):
        p = self._problem
        return (
            f"<scoremod.Attention on {self.backend}: batch {p['batch']}, heads {p['heads_q']}/{p['heads_kv']}, "
            f"seq {p['seq_q']}x{p['seq_kv']}, dim {p['dim_qk']}/{p['dim_v']}, {p['dtype']}>"
        )

    @property
    def problem(self):
        """The problem as it was understood, every default filled in; a new dict."""
        return json.loads(json.dumps(self._problem))

    @property
    def backend(self):
        """The name of the backend that runs it."""
        name = ctypes.c_char_p()
        library.call("scoremod_attention_backend", self._handle, ctypes.byref(name))
        return name.value.decode()

    @property
    def backward_backend(self):
        """The name of the backend that runs the backward; "" without one. Raises UnsupportedError, with the reasons, where the problem wants a
        backward and none runs it."""
        name = ctypes.c_char_p()
        library.call("scoremod_attention_backward_backend", self._handle, ctypes.byref(name))
        return name.value.decode()

    @property
    def forward_workspace_bytes(self):
        """Bytes of scratch that each forward call allocates and frees."""
        return self._workspace_bytes("forward")

    @property
    def backward_workspace_bytes(self):
        return self._workspace_bytes("backward")

    def forward(
        self, q, k, v, operands=None, *, return_lse=False, return_max_logit=False, return_amax_o=False, scale=None, offsets=Offsets(),
        dropout=DropoutState(), out=None, workspace=None,
    ):
        """The output, or (output, lse) with return_lse: lse is float32 [batch, heads_q, seq_q] ([tokens_q, heads_q] with "tokens_q"), the natural log of each row's
        sum of exp of the modified scores, which backward needs. With return_max_logit each row's largest modified score comes last, likewise
        float32 of that shape; the problem must have "max_logit": True. With return_amax_o the largest magnitude in the output, before its
        scale, comes after all, float32 without a dimension; the problem must have "amax_o": True.

        operands: name -> array, one for each operand of the program, and for what fields bring, such as "lengths" (docs/problem.md); that of
            "descale_d_o" may be left out.
        scale: takes the place of the problem's.
        dropout: a DropoutState(seed, offset), which decides what a problem with "dropout" drops.
        out: the array that the output is written to and that is returned; where several are returned, a tuple of arrays in their order, with None
            for one that is to be allocated. An array is what the problem says, writable, and overlaps no other array of the call.
        workspace: a scoremod.Workspace, whose memory the call takes for its scratch instead of allocating it.
        """
        returned = ["o", *["lse"] * bool(return_lse), *["max_logit"] * bool(return_max_logit), *["amax_o"] * bool(return_amax_o)]
        call = ArrayCall(self._tensors, scale, offsets, dropout, named_outputs(out, returned))
        args = call.args(library.ForwardArgs, q=q, k=k, v=v)
        args.operands, args.operand_count = call.operands(self._operands, operands, optional=self._read_by_backward_alone())
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
        with workspace_of(args, workspace, lambda: self.forward_workspace_bytes):
            library.call("scoremod_attention_forward", self._handle, args)
        results = {"o": o, "lse": lse, "max_logit": max_logit, "amax_o": amax_o}
        return o if len(returned) == 1 else tuple(results[name] for name in returned)

    def backward(
        self, q, k, v, o, lse, d_o, operands=None, *, d_operands=None, scale=None, offsets=Offsets(), dropout=DropoutState(), out=None, workspace=None,
    ):
        """The Gradients, given what forward returned and the upstream gradient d_o, which lies as o does. The problem must have
        "backward": True. scale, offsets and dropout must be forward's.

        d_operands: names of the operands whose gradients are wanted; without it, those of every float operand that has one.
        out: Gradients of the arrays that the gradients are written to and that are returned, each as forward's; d_operands is a dict of some of the
            wanted ones. None, there too, for what is to be allocated.
        workspace: forward's.
        """
        if out is not None and not (isinstance(out, tuple) and len(out) == len(Gradients._fields)):
            raise InvalidArgumentError(f"out: expected scoremod.Gradients(dq, dk, dv, d_operands) of arrays or None, found {type(out).__name__}")
        dq, dk, dv, of_operands = (None,) * 4 if out is None else out
        call = ArrayCall(self._tensors, scale, offsets, dropout, {"dq": dq, "dk": dk, "dv": dv})
        args = call.args(library.BackwardArgs, q=q, k=k, v=v, o=o, lse=lse, d_o=d_o)
        args.operands, args.operand_count = call.operands(self._operands, operands)
        made = {role: call.output(args, f"d{role}", f"d{role}", self._output_dtype(f"d{role}", q)) for role in "qkv"}
        gradients, args.d_operands, args.d_operand_count = call.operand_gradients(self._operands, operands, d_operands, of_operands)
        with workspace_of(args, workspace, lambda: self.backward_workspace_bytes):
            library.call("scoremod_attention_backward", self._handle, args)
        return Gradients(made["q"], made["k"], made["v"], gradients)

    def _output_dtype(self, name, q):
        """That of this output's array."""
        return array_dtype(self._tensors[name].dtype, self._problem["dtype"], np.asarray(q).dtype)

    def _read_by_backward_alone(self):
        is_factor = self._problem["backward"] and self._tensors["d_o"].dtype in ("e4m3", "e5m2")
        return ("descale_d_o",) if is_factor else ()

    def _workspace_bytes(self, direction):
        size = ctypes.c_size_t()
        library.call(f"scoremod_attention_{direction}_workspace_bytes", self._handle, ctypes.byref(size))
        return size.value


def support(problem, *, backend=None, backends=None, memory=None, device=None, level="verified"):
    """Every backend's answer to a problem, in the order of preference: [{"backend", "supported", "reasons", "notes", "memory",
    "forward_supported", "refusals"}]. `refusals` has each reason's id, direction, text and remedy.

    device: the CUDA device's ordinal; without it, the current one.
    level: "verified" builds and verifies as compiling does; "static" builds nothing and needs no device.
    """
    return _ask("scoremod_support", problem, backend, (), device, backends=backends, memory=memory, level=level)


def explain(problem, *, backend=None, backends=None, memory=None, device=None, disabled_passes=()):
    """What the compiler makes of a problem, and why, as a dict: the mask's class, the program before and after the passes, its
    derivative, FLOPs, every backend's answer with its workspace, which of them Attention takes with the same arguments, and who decided
    among whom. The fields are those of `scoremod explain --json`.
    """
    return _ask("scoremod_explain", problem, backend, disabled_passes, device, backends=backends, memory=memory)


def _ask(function, problem, backend, disabled_passes, device, **selection):
    answer = ctypes.c_void_p()
    text = encode(problem_text(problem), "problem")
    library.call(function, text, compile_options(backend, 0, disabled_passes, device, **selection), ctypes.byref(answer))
    return json.loads(library.take_text(answer))


def _compile_again(problem, backend, threads, disabled_passes, device, selection):
    return Attention(problem, backend=backend, threads=threads, disabled_passes=disabled_passes, device=device, **selection)
