"""How a tracer sees what a user's function calls: PyTorch's modes, while the function runs."""

import contextlib
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_restore_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from scoremod.torch.dtensors import is_sharded
from scoremod.torch.pure_functions import answers_by_key, answers_without_sizes

# These would read the number that a placeholder stands for.
_READERS = {"numpy", "__array__", "tolist", "data_ptr", "__dlpack__", "__cuda_array_interface__", "untyped_storage", "storage", "cpu_data"}
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  # on while torch.export and the like trace


@contextlib.contextmanager
def gradients_enabled(enabled):
    """torch.set_grad_enabled, unseen by torch.export: a graph has nothing of what is but traced."""
    before = torch.is_grad_enabled()
    _set_grad_enabled(enabled)
    try:
        yield
    finally:
        _set_grad_enabled(before)


def _set_grad_enabled(enabled):
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(enabled)


class Operations(TorchDispatchMode):
    """A mode that sends all calls below autograd to the tracer."""

    def __init__(self, tracer):
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return self._tracer.operation(function, arguments, options or {})


class Functions(TorchFunctionMode):
    """A mode for calls above autograd.

    - Tensors are indexed by tensors, where PyTorch would ask a 0-dim one for its number; reading numbers is refused.
    - Calls with captured tensors alone are computed, in the transformations that these have.
    - The tracer learns of questions whose answers no key of a trace holds, and of those that sizes and strides may answer."""

    def __init__(self, tracer, stack):
        super().__init__()
        self._tracer, self._stack = tracer, stack
        self._with_gradients = torch.is_grad_enabled()

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if not answers_without_sizes(function):
            self._tracer.ask_sizes(tensors_in((arguments, options)))
        if self._tracer.numbers is not None:
            arguments = self._tracer.numbers.as_tensors(function, arguments, options, self._tracer.is_traced)
        if self._tracer.whole is not None:
            arguments, options = (map_tensors(self._whole, each) for each in (arguments, options))
        if function is torch._C._set_grad_enabled:
            return function(*arguments, **options)
        tensors, before = tensors_in((arguments, options)), self._tracer.count
        is_traced = any(self._tracer.is_traced(tensor) for tensor in tensors)
        result = (self._on_placeholders if is_traced else self._on_captured)(function, arguments, options)
        if not answers_by_key(function):
            name = _name_of(function)
            if self._tracer.count != before:
                is_known = is_traced or _is_of_tensors(result)
            else:
                is_known = any(result is tensor for tensor in tensors) and (name.endswith("__") or not name.endswith("_"))
            if not is_known:
                self._tracer.ask(f"asks for {name!r}")
        return result

    def _on_captured(self, function, arguments, options):
        if not self._stack:
            return function(*arguments, **options)
        # The tracer's operations see what transformations have unwrapped, and would lose a placeholder as soon as they wrap it again.
        with temporarily_restore_interpreter_stack(self._stack), self._tracer.computing():
            result = function(*arguments, **options)
        map_tensors(self._tracer.look_inside, result)
        return result

    def _resolved(self, tensor):
        """The tensor without a negative bit. Operations that PyTorch resolves it for get a copy, which has lost its gradient below autograd."""
        return self._on_captured(torch.Tensor.resolve_neg, (tensor,), {}) if tensor.is_neg() else tensor

    def _on_placeholders(self, function, arguments, options):
        name = getattr(function, "__name__", "")
        arguments, options = (map_tensors(self._resolved, each) for each in (arguments, options))
        cuts_gradients = self._with_gradients and not torch.is_grad_enabled()
        with gradients_enabled(False), self._tracer.without_gradients(cuts_gradients):
            if function is torch.Tensor.__getitem__:
                indexed, index = arguments
                index = index if isinstance(index, tuple) else (index,)
                self._tracer.check_rank(indexed, index)
                index = _expanded(index, indexed.dim())
                if index is not None and any(self._tracer.is_traced(each) for each in index):
                    return self._tracer.operation(torch.ops.aten.index.Tensor, (indexed, [_index_tensor(each) for each in index]), {})
            elif name in _READERS and self._tracer.is_traced(arguments[0]):
                self._tracer.refuse_number(name)
            stand_ins = []
            if self._stack:
                arguments, options = (map_tensors(lambda tensor: self._plain(tensor, stand_ins), each) for each in (arguments, options))
            with self._unseen():
                result = function(*arguments, **options)
            for tensor, stand_in in stand_ins:
                self._tracer.stands_for(tensor, stand_in)  # which an operation in place has changed
                result = tensor if result is stand_in else result
            return result

    def _unseen(self):
        """Without the modes of torch.export, which come before those of what lies below autograd and would keep placeholders as constants."""
        stack = contextlib.ExitStack()
        if torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH):
            stack.enter_context(_disable_current_modes())
            stack.enter_context(Operations(self._tracer))
        return stack

    def _whole(self, tensor):
        if not is_sharded(tensor):
            return tensor
        with _disable_current_modes(), gradients_enabled(self._with_gradients):
            return self._tracer.whole(tensor)

    def _plain(self, tensor, stand_ins):
        """The tensor, or a new one of stand_ins for it: pairs of a tensor that only a transformation of torch.func understands, and its stand-in."""
        if not is_functorch_wrapped_tensor(tensor):
            return tensor
        stand_ins.append((tensor, self._tracer.stand_in(tensor)))
        return stand_ins[-1][1]


def _name_of(function):
    """A function's name; of the getter of an attribute that one's."""
    name = getattr(function, "__name__", "")
    return getattr(getattr(function, "__self__", None), "__name__", name) if name == "__get__" else name


def _is_of_tensors(result):
    """Whether a result is made of tensors alone, whose numbers nobody has read."""
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        return all(map(_is_of_tensors, result))
    return result is None or isinstance(result, torch.Tensor)


def _expanded(index, rank):
    """Index entries, one for each dimension; None for what has others than numbers, tensors, ":" and "..."."""
    if Ellipsis in [each for each in index if not isinstance(each, torch.Tensor)]:
        at = next(i for i, each in enumerate(index) if each is Ellipsis)
        index = (*index[:at], *[slice(None)] * (rank - len(index) + 1), *index[at + 1 :])
    plain = all((isinstance(each, (int, torch.Tensor)) and not isinstance(each, bool)) or each == slice(None) for each in index)
    return index if plain and len(index) <= rank else None


def _index_tensor(each):
    if isinstance(each, slice):
        return None
    return torch.full((), each, dtype=torch.int64) if isinstance(each, int) else each


def tensors_in(arguments):
    """The tensors in the arguments of an operation."""
    found = []
    map_tensors(found.append, arguments)
    return found


def map_tensors(function, arguments) -> Any:
    """Arguments of an operation, with function(tensor) for each tensor in them."""
    if isinstance(arguments, torch.Tensor):
        return function(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(map_tensors(function, each) for each in arguments)
    if isinstance(arguments, dict):
        return {name: map_tensors(function, each) for name, each in arguments.items()}
    return arguments
