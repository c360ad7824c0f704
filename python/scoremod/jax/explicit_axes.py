"""Attention on a mesh with explicit axes, where the sharding of an array is a part of its type (jax.sharding.AxisType.Explicit)."""

import jax

from scoremod.errors import UnsupportedError
from scoremod.jax.differentiate import attend
from scoremod.jax.manual_axes import vary_alike
from scoremod.jax.partition import FORWARD_TENSORS, Option, Shards, as_axes, forward_results, letters_of


def explicit_axes(array):
    """The explicit axes of the mesh that an array lies on."""
    return jax.typeof(array).sharding.mesh.explicit_axes


def attend_on_shards(call, q, k, v, operands, *, with_lse):
    """attend() for arrays on a mesh with explicit axes: batches and heads are sharded as q's type says, and so are the types of the results."""
    mesh, spec = jax.typeof(q).sharding.mesh, jax.typeof(q).sharding.spec
    if call.amax_o:
        raise UnsupportedError("return_amax_o: expected no mesh with explicit axes, found one; take the largest magnitude of the output, or use automatic axes")
    axes = {letter: () if call.is_ragged and letter == "B" else as_axes(spec[call.axis(letter)]) for letter in "BH"}
    shards = Shards(call, mesh, axes, k.shape[call.head_axis_of_keys()])

    def on_shard(q, k, v, *operands):
        k, v = shards.own_head("k", k), shards.own_head("v", v)
        shard_call, _, operands = shards.own_call(q, list(operands))
        q, k, v, *operands = vary_alike([q, k, v, *operands])
        return attend(shard_call, q, k, v, tuple(operands), with_lse=with_lse)

    ins, outs = (
        [shards.sharding(letters) for letters in each] for each in letters_of(call, FORWARD_TENSORS, forward_results(Option(with_lse, None, call.max_logit)))
    )
    specs = tuple(each.spec for each in outs)
    run = jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=tuple(each.spec for each in ins),
        out_specs=specs if len(specs) > 1 else specs[0],  # pyright: ignore[reportGeneralTypeIssues]
        axis_names=set(mesh.explicit_axes),
    )
    return run(*map(jax.sharding.reshard, [q, k, v, *operands], ins))
