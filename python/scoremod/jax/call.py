"""One attention call as a plain value, and its problem as JSON."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoremod.call_spec import CallSpec, checked_scale, wrong_scale
from scoremod.environment import settings
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.float8_factors import OF_CACHE, wrong_dtypes
from scoremod.jax.kept_results import second_name
from scoremod.jax.open_sizes import known
from scoremod.places import FACTORS, Paged, Ragged, RaggedPaged, pages_layout
from scoremod.problem import OperandTensor, problem_json
from scoremod.program import Program
from scoremod.sizes import Sizes, sizes_of

_DTYPE_NAMES = {
    np.dtype(np.float32): "f32",
    np.dtype(np.float16): "f16",
    jnp.dtype(jnp.bfloat16): "bf16",
    np.dtype(np.int32): "i32",
    np.dtype(np.bool_): "bool",
    jnp.dtype(jnp.float8_e4m3fn): "e4m3",
    jnp.dtype(jnp.float8_e5m2): "e5m2",
}

FLOAT8_NAMES = ("e4m3", "e5m2")

# The factors of FP8 arrays' gradients. They are applied outside of the problem.
GRADIENT_FACTORS = ("scale_dq", "scale_dk", "scale_dv", "descale_d_o")


class Call(NamedTuple):
    """Everything about a call but its arrays. Two calls are the same computation exactly when they are equal: the program stands here by
    its structure, so neither the name nor the identity of the user's function matters."""

    program: Program
    layout: str
    scale: float | None
    backends: tuple[str, ...] = ()  # who may run it; without a name the choice is open
    new_sizes: str | None = None
    deterministic: bool = False
    dropout: float = 0.0  # the last array of the call is then its keys (scoremod.jax.dropout)
    max_logit: bool = False  # whether the forward's last result is each row's largest score
    given_deltas: bool = False  # whether a backward's o and lse are not, or not only, those of its own forward
    place: Ragged | Paged | RaggedPaged | None = None  # where sequences lie, if not as the layout says; the layout of ragged ones is "THD"
    lengths: bool = False  # whether keys have a length in each batch
    sink: bool = False  # whether each head has a learned sink
    dtype_o: str | None = None  # of the output, where it isn't query's
    amax_o: bool = False  # whether the forward's last result is the largest magnitude in the output
    factors: int = 0  # how many of the call's last arrays are factors of FP8 arrays (scoremod.jax.float8)
    dropout_places: bool = False  # whether those keys say where queries and keys are in the whole sequence (scoremod.jax.dropout.at_places)
    gradient_factors: int = 0  # how many come after these, for whoever differentiates
    dtype_kv: str | None = None  # of an FP8 KV cache under a query of more bits
    block_scales: str = ""  # the factors that are block scales (scoremod.jax.float8.block_letters)
    second_name: str | None = None  # of the results that a backward pass keeps (scoremod.jax.kept_results)
    # scoremod.environment.settings(): JAX keeps what it compiles by equal calls, and what is compiled depends on them.
    environment: tuple = ()

    @classmethod
    def of(cls, program, layout, spec: CallSpec, **others):
        """The Call of a program with these options, as scoremod.call_spec.checked() gives them, and fields that they don't have."""
        return cls(
            program,
            layout,
            spec.scale,
            backends=tuple(spec.backends or ()),
            new_sizes=spec.new_sizes,
            deterministic=bool(spec.deterministic),
            dropout=spec.dropout,
            max_logit=spec.with_max,
            dtype_o=spec.dtype_o,
            amax_o=spec.amax_o,
            factors=spec.factors,
            gradient_factors=spec.gradient_factors,
            dtype_kv=spec.dtype_kv,
            block_scales=spec.block_scales,
            second_name=second_name(),
            environment=settings(),
            **others,
        )

    def block_letters(self):
        """{name: letters} of the factors that are block scales: a letter of the tensor's layout for each of their dimensions that is as long, else "?"."""
        return dict(each.split("=") for each in self.block_scales.split(",")) if self.block_scales else {}

    @property
    def is_ragged(self):
        """Whether queries lie one sequence after the other."""
        return isinstance(self.place, (Ragged, RaggedPaged))

    @property
    def is_paged(self):
        """Whether key and value are a paged KV cache."""
        return isinstance(self.place, (Paged, RaggedPaged))

    @property
    def has_backward(self):
        """Whether its problem may have one: neither pages nor FP8 caches have gradients."""
        return not self.is_paged and self.dtype_kv is None

    @property
    def kv_layout(self):
        """The layout of k and v."""
        return pages_layout(self.layout) if self.is_paged else self.layout

    def axis(self, letter):
        """The position of a dimension of q or o. Ragged tensors have tokens where others have batches."""
        return self.layout.index("T" if self.is_ragged and letter in "BS" else letter)

    def head_axis_of_keys(self):
        """The position of the heads of k or v."""
        return self.kv_layout.index("H")

    def bound(self):
        """The names of the arrays after the operands (docs/reference/problem.md), in their order."""
        options = ((self.lengths, "lengths_kv"), (self.sink, "sink"), (self.dropout, "dropout_keys"))
        of_call = FACTORS if self.dtype_kv is None else OF_CACHE
        return (
            *(() if self.place is None else self.place.bound),
            *(name for given, name in options if given),
            *of_call[: self.factors],
            *GRADIENT_FACTORS[: self.gradient_factors],
        )

    def sizes(self, q, k, v):
        """The Sizes of these arrays or shapes."""
        return sizes_of(self.layout, q, k, v) if self.place is None else self.place.sizes(self.layout, q, k, v)

    def row_shape(self, q, sizes):
        """The shape of an LSE."""
        return (q.shape[0], sizes.heads_q) if self.is_ragged else (sizes.batch, sizes.heads_q, sizes.seq_q)

    def as_rows(self, lse):
        """An array of an LSE's shape, in the order of o's dimensions, with one of size 1 for the head dim."""
        order = [self.axis(letter) for letter in ("SH" if self.is_ragged else "BHS")]
        return jnp.moveaxis(lse, range(len(order)), order)[..., None]


class TracedCall(NamedTuple):
    """A call that flex_attention's arguments were traced to, with its problem and its operands."""

    call: Call
    sources: list  # what makes each operand's array
    operands: list  # their shapes and dtypes
    problem: str  # of the forward, as JSON; with own fields of both directions, where there are two
    has_open_sizes: bool  # whether jax.export has left some to the program's calls


def dtype_of(q, k, v, *, on_xla=False, float8=False):
    """The dtype of query. Raises UnsupportedError for float64, which only attention as XLA operations takes. float8: whether all may be FP8, or key
    and value alone."""
    wide = ("f32", "f16", "bf16")
    dtypes = {"query": q.dtype, "key": k.dtype, "value": v.dtype}
    if set(dtypes.values()) == {np.dtype(np.float64)}:
        if on_xla:
            return q.dtype
        raise UnsupportedError(
            "expected query, key and value of float32, float16 or bfloat16, found float64, which JAX makes of Python's and NumPy's numbers with "
            'jax_enable_x64: convert them with .astype(jnp.float32), or compute in float64 on XLA with backend="xla"'
        )
    of_query, of_key, of_value = (_DTYPE_NAMES.get(np.dtype(dtype)) for dtype in dtypes.values())
    fitting = (of_query, *FLOAT8_NAMES) if float8 else (of_query,)  # of key and value
    if of_query in FLOAT8_NAMES:
        fitting = (of_query,) if float8 else ()
    if of_query in (*wide, *FLOAT8_NAMES) and of_key == of_value and of_key in fitting:
        return q.dtype
    if float8:
        raise wrong_dtypes(dtypes, f"convert key and value: key.astype({q.dtype})" if of_query in wide else "convert them")
    found = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
    raise InvalidArgumentError(f"expected query, key and value of one dtype, float32, float16 or bfloat16; found {found}")


def split_scale(scale):
    """(number, array): the factor of Q K^T as part of the problem, or as an operand. A scalar array is one."""
    if not isinstance(scale, (jax.Array, np.ndarray)):
        return None if scale is None else checked_scale(scale), None
    if scale.shape != () or not jnp.issubdtype(scale.dtype, jnp.floating):
        raise wrong_scale(scale)
    return 1.0, jnp.asarray(scale, jnp.float32)


def _fields_of(call, q, k, backward):
    given = (
        ("dropout", call.dropout),
        ("dropout_keys", call.dropout > 0),
        ("max_logit", call.max_logit),
        ("given_deltas", call.given_deltas),
        ("lengths", {"kv": True} if call.lengths else None),
        ("sink", "learned" if call.sink else None),
        ("dtype_kv", call.dtype_kv),
        ("dtype_o", call.dtype_o),
        # bfloat16 holds every FP8 number.
        ("dtype_d_o", "bf16" if backward and call.dtype_o in FLOAT8_NAMES else None),
        ("amax_o", call.amax_o),
    )
    return {name: value for name, value in given if value} | ({} if call.place is None else call.place.fields(call.layout, q, k))


def problem_text(call, q, k, v, operands, *, backward, stats, wanted=None):
    """The problem of these arrays (or shapes) as JSON: docs/reference/problem.md. The scale isn't in it: it is bound at each call. operands: those of the
    program, and what is bound after them. `wanted`: the numbers of those whose gradients may be asked for; None for all. max_logit is the
    forward's alone. Sizes that jax.export leaves open are null."""
    count = len(call.program.operands)
    bound = dict(zip(call.bound(), enumerate(operands[count:], count)))
    operands = operands[:count]
    described = [
        OperandTensor(_DTYPE_NAMES[np.dtype(operand.dtype)], tuple(map(known, operand.shape)), wanted is None or i in wanted)
        for i, operand in enumerate(operands)
    ]
    named = {}
    if "sink" in bound:
        number, sink = bound["sink"]
        named["sink"] = OperandTensor(_DTYPE_NAMES[np.dtype(sink.dtype)], tuple(sink.shape), wanted is None or number in wanted)
    if call.dropout_places:
        named["dropout_keys"] = OperandTensor("i32", tuple(bound["dropout_keys"][1].shape))
    sizes = call.sizes(q, k, v)
    if call.dtype_kv is not None:
        named |= dict.fromkeys(OF_CACHE, OperandTensor("f32", (sizes.heads_kv,), False))
    # A call that isn't run has no factors.
    named |= {name: OperandTensor("f32", tuple(map(known, bound[name][1].shape)), False) for name in call.block_letters() if name in bound}
    return problem_json(
        Sizes(*map(known, sizes)),  # pyright: ignore[reportArgumentType]
        call.program,
        described,
        dtype=_DTYPE_NAMES[np.dtype(q.dtype)],
        layout=call.layout,
        layouts=dict.fromkeys("kv", call.kv_layout) if call.kv_layout != call.layout else None,
        backward=backward,
        stats=stats,
        deterministic=call.deterministic,
        named=named,
        **_fields_of(call, q, k, backward),
    )
