"""DTensors: batch and heads may be sharded over a mesh, each process computes its own, and the functions see global indices."""

from scoremod.call_spec import Offsets
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.torch.lengths_and_sinks import with_sink

_AXES = {0: "batch", 1: "head"}


def is_sharded(tensor):
    """Whether a tensor is a DTensor, without importing them."""
    return type(tensor).__name__ == "DTensor" and type(tensor).__module__.startswith("torch.distributed")


class Sharded:
    """One call's DTensors: their local tensors, the offsets of this process, and how results become DTensors again."""

    def __init__(self, query, key, value, offsets):
        tensors = {"query": query, "key": key, "value": value}
        for name, tensor in tensors.items():
            if not is_sharded(tensor) or (tensor.device_mesh, tensor.placements) != (query.device_mesh, query.placements):
                found = f"{tensor.placements} on {tensor.device_mesh}" if is_sharded(tensor) else type(tensor).__name__
                raise InvalidArgumentError(f"{name}: expected a DTensor with query's placements, {query.placements} on {query.device_mesh}, found {found}")
        self._mesh, self._placements = query.device_mesh, query.placements
        self._whole = {}  # by id of the DTensor, which is kept beside it
        self.tensors = tuple(tensor.to_local() for tensor in tensors.values())
        self.offsets = self._offsets(tensors, Offsets(*offsets))

    def _offsets(self, tensors, offsets):
        """The caller's offsets plus the numbers of batches and heads of the processes before this one."""
        coordinate, parts = self._mesh.get_coordinate(), {0: (0, 1), 1: (0, 1)}
        for dim, placement in enumerate(self._placements):
            if placement.is_replicate():
                continue
            if not placement.is_shard() or placement.dim not in _AXES:
                raise UnsupportedError(
                    f"expected DTensors that are sharded over batch or heads, or replicated, found {placement}; sequences are for "
                    "scoremod.torch.context_parallel_attention"
                )
            number, count = parts[placement.dim]
            parts[placement.dim] = number * self._mesh.size(dim) + coordinate[dim], count * self._mesh.size(dim)
        for axis, (_, count) in parts.items():
            for name, tensor in tensors.items():
                if tensor.shape[axis] % count:
                    raise UnsupportedError(
                        f"{name}: expected a number of {'heads' if axis else 'batches'} that {count} processes share evenly, found {tensor.shape[axis]}"
                    )
        added = {_AXES[axis]: number * (tensors["query"].shape[axis] // count) for axis, (number, count) in parts.items()}
        self._heads_before = added["head"]
        return offsets._replace(**{axis: getattr(offsets, axis) + first for axis, first in added.items()})

    def whole(self, value):
        """The whole tensor of a DTensor, the same one each time, whose gradients add up over the mesh; of anything else itself."""
        if not is_sharded(value):
            return value
        if id(value) not in self._whole:
            from torch.distributed.tensor import Partial, Replicate

            # Processes that hold the same batches and heads have the whole gradient each; others have shares of it.
            of_gradient = [Replicate() if placement.is_replicate() else Partial() for placement in self._placements]
            self._whole[id(value)] = value, value.full_tensor(grad_placements=of_gradient)
        return self._whole[id(value)][1]

    def results(self, o, lse, largest, sink):
        """(o, lse, largest scores) as DTensors; of the softmax with a sink where there is one: a tensor [heads] of all heads, or one number."""
        if sink is not None:
            sink = self.whole(sink)
            heads = self.tensors[0].shape[1]
            o, lse = with_sink(o, lse, sink if sink.dim() == 0 else sink.narrow(0, self._heads_before, heads))
        # The operators give an empty tensor for what nobody asked for.
        return self._sharded(o), *(None if each is None or each.dim() == 1 else self._sharded(each) for each in (lse, largest))

    def _sharded(self, tensor):
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(tensor, self._mesh, self._placements, run_check=False)
