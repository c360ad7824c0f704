"""One call over NumPy arrays: the structs of the C interface, and each array held to what the problem says of it."""

import ctypes
from typing import NamedTuple

import numpy as np

from scoremod import library
from scoremod.arguments import check_names, mapping, uint64
from scoremod.call_spec import CallSpec
from scoremod.errors import InvalidArgumentError


class DropoutState(NamedTuple):
    """The random state of a call with dropout, 64 bits each. Equal states drop the same weights."""

    seed: int = 0
    offset: int = 0


class ArrayCall:
    """One call's structs, and the arrays and texts that they point to, which live as long as this object."""

    def __init__(self, tensors, spec: CallSpec, dropout, outputs):
        """spec: what checked() gave. outputs: name -> the caller's array of a result, or None, which allocates it."""
        self._tensors = tensors
        self._outputs = outputs
        self._kept = []
        if not isinstance(dropout, (tuple, list)) or len(dropout) > len(DropoutState()):
            raise InvalidArgumentError(f"dropout: expected scoremod.DropoutState(seed, offset), found {dropout!r}")
        self._options = library.CallOptions(
            has_scale=spec.scale is not None,
            scale=0.0 if spec.scale is None else spec.scale,
            **{f"{axis}_offset": value for axis, value in spec.offsets._asdict().items()},
            **{f"dropout_{part}": uint64(value, f"dropout.{part}") for part, value in DropoutState(*dropout)._asdict().items()},
        )

    def args(self, kind, **arrays):
        args = kind(options=ctypes.pointer(self._options))
        for name, array in arrays.items():
            setattr(args, name, self._input(self._tensors[name], array))
        return args

    def output(self, args, name, role, dtype):
        spec = self._tensors[role]
        array = _output(spec, f"out: {name}", self._outputs.get(name), dtype)
        setattr(args, name, spec.buffer(array))
        return array

    def operands(self, specs, given, optional=()):
        given = mapping({} if given is None else given, "operands", "array")
        check_names("operands", given, specs)
        for name in specs:
            if name not in given and name not in optional:
                raise InvalidArgumentError(f"operands: expected an array for '{name}', which the program reads; found none")
        return self._named({name: self._input(spec, given[name]) for name, spec in specs.items() if name in given})

    def operand_gradients(self, specs, given, wanted, outputs):
        floats = [name for name, spec in specs.items() if spec.gradient and spec.dtype in ("f32", "f16", "bf16")]
        wanted = floats if wanted is None else list(wanted)
        check_names("d_operands", wanted, floats)
        outputs = mapping({} if outputs is None else outputs, "out: d_operands", "array")
        check_names("out: d_operands", outputs, wanted)
        dtypes = {name: np.asarray(given[name]).dtype for name in wanted}
        made = {name: _output(specs[name], f"out: gradient of {specs[name].name}", outputs.get(name), dtypes[name]) for name in wanted}
        return made, *self._named({name: specs[name].buffer(array) for name, array in made.items()})

    def _input(self, spec, array):
        array = spec.check(array)
        self._kept.append(array)
        return spec.buffer(array)

    def _named(self, buffers):
        """The pointer to an array of named buffers, and its length."""
        array = (library.NamedBuffer * len(buffers))()
        for entry, (name, buffer) in zip(array, buffers.items()):
            entry.name, entry.buffer = name.encode(), buffer
        self._kept.append(array)
        return ctypes.cast(array, ctypes.POINTER(library.NamedBuffer)), len(buffers)


def named_outputs(out, names):
    """name -> the caller's array or None, from what a call with these results is given as `out`."""
    if out is None:
        return {}
    several = isinstance(out, (tuple, list))
    if len(names) > 1 and not (several and len(out) == len(names)):
        found = f"{len(out)} of them" if several else type(out).__name__
        raise InvalidArgumentError(f"out: expected a tuple of arrays or None, one for each of {', '.join(names)}, found {found}")
    if several and len(out) != len(names):
        raise InvalidArgumentError(f"out: expected an array for {names[0]}, found {len(out)} of them")
    return dict(zip(names, out if several else (out,)))


def _output(spec, name, given, dtype):
    """The caller's array for a result, or a new one of the dtype."""
    return spec.allocate(dtype) if given is None else spec.check_output(name, given)
