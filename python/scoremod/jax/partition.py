"""Attention on a mesh: under jax.jit with sharded inputs, each device computes its own batches and heads; nothing is gathered.

Sequences and head dims stay whole. A shard's program sees global indices: where it reads b or h, an operand that the shard computes from its
place in the mesh is added. A gradient of an array that several shards read is summed over them.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.mesh import get_concrete_mesh
from jax._src.sharding_impls import parse_flatten_op_sharding
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from scoremod.errors import UnsupportedError
from scoremod.jax.call import GRADIENT_FACTORS
from scoremod.jax.dropout import at_head
from scoremod.program import Builder, OperandDecl
from scoremod.places import FACTORS

# The arrays of the two primitives before their operands, each as the tensor whose dimensions it has.
FORWARD_TENSORS, BACKWARD_TENSORS = ("q", "k", "v"), ("q", "k", "v", "o", "lse", "o")
_AXIS_LETTERS = {"b": "B", "h": "H", "q_idx": "S", "kv_idx": "T"}


class Option(NamedTuple):
    """The parameters of the two primitives beside the call: with_lse of the forward one, and which operands' gradients are wanted; and whether
    the forward has the call's max_logit and amax_o."""

    with_lse: bool | None
    wanted: tuple | None
    max_logit: bool = False
    amax_o: bool = False


def partitioned(tensors, results_of, bind):
    """A function(call, option, *arrays) that runs bind(call, option, *arrays) on each shard.

    tensors: what the arrays before the operands are. results_of(option): what the results are; an int is that operand's gradient.
    """

    def whole(call, option, *arrays):
        return tuple(bind(call, option, *arrays))

    def partition(call, option, context, mesh, arguments, results):
        mesh, automatic = _meshes(mesh, context)
        shards = Shards.of_arguments(call, automatic, arguments)
        in_letters, out_letters = letters_of(call, tensors, results_of(option))
        lower = functools.partial(shards.run, bind, option, tensors, results_of(option))
        return mesh, lower, tuple(map(shards.sharding, out_letters)), tuple(map(shards.sharding, in_letters))

    def infer(call, option, context, mesh, arguments, results):
        shards = Shards.of_arguments(call, _meshes(mesh, context)[1], arguments)
        return tuple(map(shards.sharding, letters_of(call, tensors, results_of(option))[1]))

    def rule(call, option, mesh, argument_types, result_types):
        in_letters, out_letters = letters_of(call, tensors, results_of(option))
        return _sharding_rule(in_letters, out_letters, [tuple(type.shape) for type in argument_types])

    def run(call, option, *arrays):
        context = get_concrete_mesh(), jax.sharding.get_abstract_mesh()
        _check_partitioner(context[1])
        # One for each call: with static_argnums JAX 0.11 and 0.12 keep the arrays' tracers, which jax.checking_leaks reports.
        function = custom_partitioning(functools.partial(whole, call, option))
        # Shardings are decoded here: with grouped heads Shardy may propose one of k that has no PartitionSpec.
        function.def_partition(
            functools.partial(partition, call, option, context),
            infer_sharding_from_operands=functools.partial(infer, call, option, context),
            sharding_rule=functools.partial(rule, call, option),
            decode_shardings=False,
        )
        return function(*arrays)

    return run


def _meshes(mesh, context):
    """(mesh, automatic): the mesh of the program's devices, and the one that JAX says shardings on.

    mesh: as JAX gives it, that of the program's arguments. Where none lies on a mesh, and only constraints within the program shard, it is empty.
    context: the concrete mesh of jax.set_mesh, and the mesh as it is at the call. Inside a jax.shard_map over some of the axes, XLA says the
        shardings over the other ones alone, while numbers of devices are those of all.
    """
    concrete, around = context
    manual = around.manual_axes
    if not manual:
        mesh = concrete if mesh.empty else mesh
        return mesh, mesh
    sizes = {name: size for name, size in around.shape.items() if name not in manual}
    return around, AbstractMesh(tuple(sizes.values()), tuple(sizes))


def _check_partitioner(mesh):
    """Raises UnsupportedError for axes beside manual ones where GSPMD divides the program, which ends the process for shardings that JAX can't read."""
    beside = [name for name in mesh.axis_names if name not in mesh.manual_axes]
    if mesh.manual_axes and beside and not getattr(jax.config, "jax_use_shardy_partitioner", True):
        raise UnsupportedError(
            f"expected jax.shard_map over all axes of the mesh with jax_use_shardy_partitioner=False, found {', '.join(beside)} beside "
            f"{', '.join(mesh.manual_axes)}; give it all axes, or leave Shardy on"
        )


def letters_of(call, tensors, results):
    """For each array and result a string with a letter for each dimension.

    The letters are B, H (query heads), K (KV heads), S (queries) and T (keys), and others for dimensions that are never sharded."""
    # Tokens of varlen tensors and pages of a KV cache belong to no batch.
    q = call.layout.replace("T", "?") if call.is_ragged else call.layout
    k = (call.kv_layout.replace("B", "?").replace("S", "?") if call.is_paged else q).replace("H", "K").replace("S", "T")
    known = {"q": q, "k": k, "v": k.replace("D", "E"), "o": q.replace("D", "E"), "lse": "?H" if call.is_ragged else "BHS", "amax": ""}
    operands = [*map(_operand_letters, call.program.operands), *(_bound_letters(call, name) for name in call.bound())]
    inputs = [known[name] for name in tensors] + operands
    return inputs, [operands[each] if isinstance(each, int) else known[each] for each in results]


def _bound_letters(call, name):
    """The letters of an argument after the operands. Batches are its rows, which varlen sequences keep together."""
    if name in (blocks := call.block_letters()):
        if name == "descale_q":
            return blocks[name]
        of_keys = blocks[name].replace("B", "?").replace("S", "?") if call.is_paged else blocks[name]
        return of_keys.replace("H", "K").replace("S", "T")
    if name in FACTORS or name in GRADIENT_FACTORS:
        return "" if call.dtype_kv is None else "K"
    if name == "sink":
        return "H"
    if call.is_ragged:
        return "?" if name.startswith(("offsets", "lengths")) else "??"
    return "B" if name == "lengths_kv" else "B?"


def _operand_letters(decl):
    return "?" * decl.table_rank or "".join(_AXIS_LETTERS[axis] for axis in decl.axes)


def _sharding_rule(inputs, outputs, shapes):
    """Shardy's rule, an einsum of factors: batches and heads may be sharded, everything else may not."""
    sizes = {}
    for letters, shape in zip(inputs, shapes):
        sizes.update(zip(letters, shape))
    heads, factor_sizes = {"H": "h", "K": "h"}, {}
    if sizes["K"] == 1 < sizes["H"]:
        heads["K"] = "x"
    elif sizes["H"] != sizes["K"]:
        heads, factor_sizes = {"H": "(k g)", "K": "k"}, {"g": sizes["H"] // sizes["K"]}
    kept = []

    def term(letters):
        factors = []
        for letter in letters:
            factors.append(heads.get(letter) or (f"x{len(kept)}" if letter == "?" else letter.lower()))
            if letter != "B" and heads.get(letter, "x") == "x":
                kept.append(factors[-1])
        return " ".join(factors)

    text = ", ".join(map(term, inputs)) + " -> " + ", ".join(map(term, outputs))
    return text, {"need_replication_factors": tuple(dict.fromkeys(kept)), **factor_sizes}


class Shards:
    """How one call is cut: which axes of the mesh its batches and its heads are sharded over."""

    def __init__(self, call, mesh, axes, heads_kv):
        """axes: for "B" and "H" the axes that divide them, a tuple each."""
        self._call, self._mesh, self._axes = call, mesh, axes
        count = self._count("H")
        # With fewer KV heads than shards, every shard has all of them and reads one.
        self._reads_one_head = heads_kv % count != 0
        if self._reads_one_head and count % heads_kv != 0:
            self._axes, self._reads_one_head = {**axes, "H": ()}, False

    @classmethod
    def of_arguments(cls, call, mesh, arguments):
        """As the partitioner gives them, q and k first."""
        q, k = arguments[0], arguments[1]
        axes = {letter: () if call.is_ragged and letter == "B" else _dividing(q, call.axis(letter), mesh) for letter in "BH"}
        return cls(call, mesh, axes, k.shape[call.head_axis_of_keys()])

    def sharding(self, letters):
        axes = {**self._axes, "K": () if self._reads_one_head else self._axes["H"]}
        return NamedSharding(self._mesh, PartitionSpec(*(axes.get(letter) or None for letter in letters)))

    def run(self, bind, option, tensors, results, *arrays):
        """One shard's computation."""
        count = len(tensors)
        tensors = [self.own_head(name, array) for name, array in zip(tensors, arrays)]
        call, order, operands = self.own_call(tensors[0], list(arrays[count:]))
        outputs = bind(call, _renumbered(option, order), *tensors, *operands)
        return tuple(self._combined(result, output, arrays[1]) for result, output in zip(results, outputs))

    def own_head(self, name, array):
        """The one head of k or v that a shard reads, where every shard has all of them; any other tensor as it is."""
        if name not in ("k", "v") or not self._reads_one_head:
            return array
        axis = self._call.head_axis_of_keys()
        return lax.dynamic_slice_in_dim(array, self._head_read(array.shape[axis]), 1, axis)

    def _head_read(self, heads):
        """The KV head that a shard reads, where it reads one of all of them."""
        shard = lax.axis_index(self._axes["H"]).astype(jnp.int32)
        return shard * heads // self._count("H")

    def _own_bound(self, name, array, q):
        """A shard's argument after the operands."""
        if name == "dropout_keys":
            return at_head(array, self._first("H", q))
        if self._reads_one_head and name in FACTORS:
            axis = _bound_letters(self._call, name).find("K")
            return array if axis < 0 else lax.dynamic_slice_in_dim(array, self._head_read(array.shape[axis]), 1, axis)
        return array

    def _combined(self, result, output, k):
        """A result with what other shards have of it. k: as the shard got it."""
        if result in ("k", "v") and self._reads_one_head:
            axis = self._call.axis("H")
            shape = (*output.shape[:axis], k.shape[axis], *output.shape[axis + 1 :])
            whole = jnp.zeros(shape, jnp.float32)
            output_dtype = output.dtype
            output = lax.dynamic_update_slice_in_dim(whole, output.astype(jnp.float32), self._head_read(k.shape[axis]), axis)
            return lax.psum(output, self._axes["H"]).astype(output_dtype)
        if result == "amax":
            axes = tuple(axis for axes in self._axes.values() for axis in axes)
            return lax.pmax(output, axes) if axes else output
        axes = self._summed_over(result)
        return lax.psum(output.astype(jnp.float32), axes).astype(output.dtype) if axes else output

    def own_call(self, q, operands):
        """(call, numbers, operands) of a shard: all its arrays after the tensors, and the number of each in the whole call, None for those that
        only the shard has."""
        count = len(self._call.program.operands)
        bound = [self._own_bound(name, x, q) for name, x in zip(self._call.bound(), operands[count:])]
        call, order, offsets = self.with_global_indices(q)
        numbers = [*(number if number < count else None for number in order), *range(count, count + len(bound))]
        return call, numbers, [*((operands[:count] + offsets)[number] for number in order), *bound]

    def _first(self, letter, q):
        """The index of a shard's first batch or head."""
        if not self._axes[letter]:
            return 0
        return lax.axis_index(self._axes[letter]).astype(jnp.int32) * q.shape[self._call.axis(letter)]

    def with_global_indices(self, q):
        """(call, order, offsets): the call of a shard, whose operand i is number order[i] of the call's operands and the offsets."""
        program, offsets, added = self._call.program, [], {}
        builder = Builder()
        for decl in program.operands:
            builder.operand(decl)
        for op, letter in (("b", "B"), ("h", "H")):
            if self._axes[letter] and program.reads(op):
                offsets.append(self._first(letter, q))
                added[op] = builder.operand(OperandDecl("i32"))
        numbers = []
        for node in program.nodes:
            number = builder.node(node.op, node.type, *(numbers[arg] for arg in node.args), payload=node.payload)
            if node.op in added:
                number = builder.op("add", number, builder.node("operand", "i32", payload=added[node.op]))
            numbers.append(number)
        keep = None if program.keep is None else numbers[program.keep]
        program, order = builder.finish(numbers[program.value], keep)
        return self._call._replace(program=program), order, offsets

    def _summed_over(self, result):
        """The axes of the mesh whose shards each have a part of an operand's gradient."""
        if not isinstance(result, int):
            return ()
        letters = letters_of(self._call, (), [result])[1][0]
        return tuple(axis for letter, axes in self._axes.items() if letter not in letters for axis in axes)

    def _count(self, letter):
        return math.prod(self._mesh.shape[axis] for axis in self._axes[letter])


def _dividing(array, dim, mesh):
    """The axes that a dimension is sharded over, if they divide it."""
    spec = parse_flatten_op_sharding(array.sharding._to_xla_hlo_sharding(len(array.shape)), mesh)[0]
    axes = as_axes(spec[dim]) if dim < len(spec) else ()
    return axes if array.shape[dim] % math.prod(mesh.shape[axis] for axis in axes) == 0 else ()


def as_axes(entry):
    """An entry of a PartitionSpec as a tuple."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def _renumbered(option, order):
    """The option in the numbers of a shard's operands."""
    return option if option.wanted is None else option._replace(wanted=tuple(order.index(number) for number in option.wanted))


def forward_results(option):
    return ("o", *("lse",) * (bool(option.with_lse) + option.max_logit), *("amax",) * option.amax_o)


def backward_results(option):
    return ("q", "k", "v", *option.wanted)
