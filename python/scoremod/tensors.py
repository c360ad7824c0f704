"""The tensors that a problem describes, and checks of NumPy arrays against them."""

from dataclasses import dataclass, replace

import numpy as np

from scoremod.errors import InvalidArgumentError
from scoremod.library import Buffer

try:
    import ml_dtypes

    _BFLOAT16 = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.uint16))
    _E4M3 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.uint8))
    _E5M2 = (np.dtype(ml_dtypes.float8_e5m2), np.dtype(np.uint8))
except ImportError:
    _BFLOAT16 = (np.dtype(np.uint16),)
    _E4M3 = _E5M2 = (np.dtype(np.uint8),)

# The NumPy dtypes that hold each of scoremod's; NumPy itself has no bfloat16 and no FP8, so these may also come as
# unsigned integers of their bits.
DTYPES = {
    "f32": (np.dtype(np.float32),),
    "f16": (np.dtype(np.float16),),
    "bf16": _BFLOAT16,
    "i32": (np.dtype(np.int32),),
    "bool": (np.dtype(np.bool_),),
    "e4m3": _E4M3,
    "e5m2": _E5M2,
}

# The names of dtypes that NumPy itself has.
_NUMPY_NAMES = {"f32": "float32", "f16": "float16", "i32": "int32", "bool": "bool_"}


def refuse_mask(array, name):
    """Raises InvalidArgumentError for an array of numpy.ma, whose mask no call reads."""
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgumentError(
            f"{name}: expected a NumPy array without a mask, found a numpy.ma.MaskedArray, whose mask would be ignored; give its filled(VALUE), or mask keys "
            "by mask_mod"
        )


def dtype_name(dtype, name):
    """ "f32", "f16", "bf16", "i32", "bool", "e4m3" or "e5m2" for a NumPy dtype. Plain unsigned integers are nobody's: only a problem can say
    what they are. name: of the array, for the message."""
    for known, dtypes in DTYPES.items():
        if dtype == dtypes[0] and np.dtype(dtype).kind != "u":
            return known
    raise InvalidArgumentError(f"{name}: expected an array of float32, float16, bfloat16 (of ml_dtypes), int32 or bool, found {dtype}; {_conversion(dtype)}")


def array_dtype(wanted, problem_dtype, given):
    """The NumPy dtype of an output whose dtype in the problem is `wanted`. problem_dtype: q's in the problem; given: q's in NumPy. The output
    is of ml_dtypes where q is, and unsigned integers of its bits where q is."""
    if wanted == problem_dtype:
        return given
    has_own = problem_dtype in ("bf16", "e4m3", "e5m2") and np.dtype(given).kind != "u"
    return DTYPES[wanted][0 if has_own else -1]


def _conversion(dtype, wanted=None):
    """Advice on an array of a wrong dtype. wanted: the NumPy dtype that is expected; None where several are.

    NumPy makes float64 and int64 of Python's numbers, so that most who meet this want the narrower one."""
    if wanted is None:
        wanted = {"f": "float32", "i": "int32", "u": "int32"}.get(np.dtype(dtype).kind)
    return "convert it" if wanted is None else f"convert it with array.astype(numpy.{wanted})"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a problem. Shape and strides (in elements) are in the order of the layout, "BSHD" unless said otherwise."""

    name: str
    dtype: str
    shape: tuple
    strides: tuple
    gradient: bool = True  # whether backward calls may ask for it, if its dtype is a float's

    def check(self, array):
        """The array itself when it is what the problem says; raises InvalidArgumentError otherwise."""
        refuse_mask(array, self.name)
        if isinstance(array, np.generic):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray):
            raise InvalidArgumentError(f"{self.name}: expected a NumPy array, found {type(array).__name__}")
        if array.dtype not in DTYPES[self.dtype]:
            names = " or ".join(str(dtype) for dtype in DTYPES[self.dtype])
            raise InvalidArgumentError(
                f"{self.name}: expected dtype {names} ({self.dtype} in the problem), found {array.dtype}; "
                f"{_conversion(array.dtype, _NUMPY_NAMES.get(self.dtype))}, or change the problem"
            )
        if array.shape != self.shape:
            raise InvalidArgumentError(f"{self.name}: expected shape {self.shape}, found {array.shape}")
        if array.size == 0:  # whose strides mean nothing
            return array
        for size, stride in zip(self.shape, array.strides):
            if size > 1 and stride % array.itemsize:
                raise InvalidArgumentError(
                    f"{self.name}: expected strides of whole elements, found one of {stride} bytes between elements of "
                    f"{array.itemsize} (a field of packed records?); copy it with numpy.ascontiguousarray"
                )
        strides = tuple(stride // array.itemsize for stride in array.strides)
        if any(size > 1 and given != wanted for size, given, wanted in zip(self.shape, strides, self.strides)):
            raise InvalidArgumentError(
                f"{self.name}: expected strides {self.strides} in elements, found {strides}; copy it with "
                "numpy.ascontiguousarray, or say its strides in the problem"
            )
        return array

    def check_output(self, name, array):
        """Checks an array that a call writes to. name: of the result, for the message."""
        if not isinstance(array, np.ndarray):  # a scalar of NumPy keeps nothing that is written
            raise InvalidArgumentError(f"{name}: expected a NumPy array, found {type(array).__name__}")
        if not array.flags.writeable:
            raise InvalidArgumentError(f"{name}: expected an array that can be written, found a read-only one; give another, or None to allocate it")
        return replace(self, name=name).check(array)

    def allocate(self, dtype):
        """A new array with these strides, of one of this dtype's NumPy dtypes."""
        dtype = np.dtype(dtype)
        # NumPy does not know float8_e5m2 by its name in an array's interface, which as_strided goes through.
        flat = np.empty(self._element_count(), np.dtype(f"u{dtype.itemsize}"))
        return np.lib.stride_tricks.as_strided(flat, self.shape, [stride * flat.itemsize for stride in self.strides]).view(dtype)

    def buffer(self, array):
        """The array's memory. The array must outlive every use of it."""
        return Buffer(array.ctypes.data, self._element_count() * array.itemsize)

    def _element_count(self):
        return 0 if 0 in self.shape else 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))


def dense_strides(shape):
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


def tensor_specs(problem):
    """The TensorSpec of q, k, v, o, lse, the gradients d_o, dq, dk and dv, and the largest magnitudes, from a problem as scoremod_attention_problem gives it."""
    batch, heads_q, heads_kv = problem["batch"], problem["heads_q"], problem["heads_kv"]
    seq_q, seq_kv, dim_qk, dim_v = problem["seq_q"], problem["seq_kv"], problem["dim_qk"], problem["dim_v"]
    queries = {"batch": batch, "sequence": seq_q, "token": problem.get("tokens_q")}
    keys = {"batch": batch, "sequence": seq_kv, "token": problem.get("tokens_kv")}
    if "paged" in problem:
        keys = {"batch": problem["paged"]["blocks"], "sequence": problem["paged"]["block_size"]}
    sizes = {
        "q": {**queries, "head": heads_q, "dim": dim_qk},
        "k": {**keys, "head": heads_kv, "dim": dim_qk},
        "v": {**keys, "head": heads_kv, "dim": dim_v},
        "o": {**queries, "head": heads_q, "dim": dim_v},
    }
    specs = {name: _spec(name, name, problem, of_tensor) for name, of_tensor in sizes.items()}
    for name, of_tensor in sizes.items():
        gradient = "d_o" if name == "o" else f"d{name}"
        specs[gradient] = _spec(gradient, gradient if gradient in problem else name, problem, of_tensor)
    rows = (problem["tokens_q"], heads_q) if "tokens_q" in problem else (batch, heads_q, seq_q)
    specs["lse"] = TensorSpec("lse", "f32", rows, dense_strides(rows))
    specs |= {name: TensorSpec(name, "f32", (), ()) for name in ("amax_o", "amax_dq", "amax_dk", "amax_dv")}
    return specs


def operand_specs(problem):
    """name -> TensorSpec of every operand of the program."""
    specs = {}
    for operand in problem["operands"]:
        shape = tuple(operand["shape"])
        strides = tuple(operand.get("strides") or dense_strides(shape))
        specs[operand["name"]] = TensorSpec(f"operand '{operand['name']}'", operand["dtype"], shape, strides, operand.get("gradient", True))
    return specs


_LAYOUT_AXES = {"B": "batch", "S": "sequence", "T": "token", "H": "head", "D": "dim"}


def _spec(name, place, problem, sizes):
    """place: the field that says where the tensor lies."""
    lies = problem[place]
    axes = [_LAYOUT_AXES[letter] for letter in (lies if isinstance(lies, str) else lies["layout"])]
    shape = tuple(sizes[axis] for axis in axes)
    strides = dense_strides(shape) if isinstance(lies, str) else tuple(lies["strides"][axis] for axis in axes)
    return TensorSpec(name, _dtype_of(name, problem), shape, strides)


def _dtype_of(name, problem):
    dtype = problem["dtype"]
    dtype_o = problem.get("dtype_o", dtype)
    if name in ("k", "v"):
        return problem.get("dtype_kv", dtype)
    if name == "o":
        return dtype_o
    if name == "d_o":
        return problem.get("dtype_d_o", dtype_o)
    if name in ("dq", "dk", "dv"):
        return problem.get("dtype_gradients", "bf16" if dtype in ("e4m3", "e5m2") else dtype)
    return dtype
