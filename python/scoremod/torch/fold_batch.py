"""torch.vmap of attention: the mapped axis becomes part of the batch dimension, so one call computes all (scoremod.folded_program)."""

import torch

from scoremod.folded_program import folded
from scoremod.torch.call import call_of

_TABLE_REMEDY = "index it before the attention, or write a loop"


def fold_forward(operator, count, in_dims, q, k, v, operands, dropout, wanted, backward, with_lse, call):
    if call_of(call).bound():
        return one_by_one(operator, count, in_dims, q, k, v, operands, dropout, wanted, backward, with_lse, call)
    fold = _Fold(count, q, in_dims[0])
    given = fold.operands(call_of(call), operands, in_dims[3], [dim is not None or i in wanted for i, dim in enumerate(_dims(in_dims[3], operands))])
    tensors = [fold.tensor(tensor, dim) for tensor, dim in zip((q, k, v), in_dims)]
    o, *others = operator(*tensors, given, dropout, wanted, backward, with_lse, fold.text)
    rows = [each.dim() == 3 for each in others]
    return (fold.unfold(o), *(fold.unfold(x) if is_row else x for x, is_row in zip(others, rows))), (0, *(0 if is_row else None for is_row in rows))


def fold_backward(operator, count, in_dims, q, k, v, o, lse, d_o, operands, dropout, wanted, call):
    if call_of(call).bound():
        return one_by_one(operator, count, in_dims, q, k, v, o, lse, d_o, operands, dropout, wanted, call)
    fold = _Fold(count, q, in_dims[0])
    # Each of the mapped calls has its own gradient of an operand that they share.
    mapped = [dim is not None or i in wanted for i, dim in enumerate(_dims(in_dims[6], operands))]
    given = fold.operands(call_of(call), operands, in_dims[6], mapped)
    tensors = [fold.tensor(tensor, dim) for tensor, dim in zip((q, k, v, o, lse, d_o), in_dims)]
    dq, dk, dv, gradients = operator(*tensors, given, dropout, wanted, fold.text)
    decls = call_of(call).program.operands
    unfolded = [fold.gradient(gradient, decls[i]) for i, gradient in zip(wanted, gradients)]
    return (fold.unfold(dq), fold.unfold(dk), fold.unfold(dv), unfolded), (0, 0, 0, [0] * len(unfolded))


def one_by_one(operator, count, in_dims, *arguments):
    """The mapped calls in turn: where sequences lie, and sinks, are each call's own."""
    results = [operator(*(_of_call(*each, number) for each in zip(arguments, in_dims))) for number in range(count)]
    stacked = [list(map(torch.stack, zip(*each))) if isinstance(each[0], (list, tuple)) else torch.stack(each) for each in zip(*results)]
    return tuple(stacked), tuple([0] * len(each) if isinstance(each, list) else 0 for each in stacked)


def _of_call(argument, dim, number):
    """One mapped call's argument."""
    if isinstance(argument, torch.Tensor):
        return argument if dim is None else argument.select(dim, number)
    if isinstance(argument, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in argument):
        return [_of_call(each, of_each, number) for each, of_each in zip(argument, _dims(dim, argument))]
    return argument


def _dims(dims, operands):
    return dims if isinstance(dims, (list, tuple)) else [dims] * len(operands)


class _Fold:
    def __init__(self, count, q, dim):
        self._count = count
        shape = list(q.shape)
        if dim is not None:
            del shape[dim]
        self._batch = shape[0]
        self.text = None

    def tensor(self, tensor, dim):
        """A tensor whose first dimension has the mapped one in it."""
        tensor = tensor.unsqueeze(0).expand(self._count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return tensor.reshape(self._count * self._batch, *tensor.shape[2:])

    def unfold(self, tensor):
        return tensor.reshape(self._count, self._batch, *tensor.shape[1:])

    def operands(self, call, operands, dims, mapped):
        """The operands' tensors for the folded program, whose call's text this makes, too. mapped: which operands differ between the calls."""
        dims = _dims(dims, operands)
        self.text = call._replace(program=folded(call.program, self._batch, mapped, _TABLE_REMEDY)).text()
        return [self._operand(*each) for each in zip(call.program.operands, operands, dims, mapped)]

    def _operand(self, decl, tensor, dim, mapped):
        if "b" in decl.axes:
            return self.tensor(tensor, dim)
        if not mapped:
            return tensor
        tensor = tensor.unsqueeze(0).expand(self._count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return tensor.contiguous() if decl.table_rank else tensor.repeat_interleave(self._batch, dim=0)

    def gradient(self, gradient, decl):
        if decl.table_rank:
            return gradient
        if "b" in decl.axes:
            return self.unfold(gradient)
        # Every batch of one mapped call read the same entry.
        return self.unfold(gradient.to(torch.float32)).sum(dim=1).to(gradient.dtype)
