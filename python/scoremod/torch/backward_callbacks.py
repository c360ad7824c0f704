"""The comparison of a backward callback with the derived derivative."""

import numpy as np
import torch

from scoremod.bounded_cache import BoundedCache
from scoremod.callback_samples import MASK_CONSTANT, MASK_LIKE, SAMPLES, drawn, first_difference, random_elements, text_of
from scoremod.errors import InvalidArgumentError
from scoremod.torch.fallbacks import warn_of_uncompared
from scoremod.torch.recorded_graph import INDICES, element, evaluated

# Recordings and the looks of their tensors that were found alike.
_alike = BoundedCache(256)


def check_backward(forward, backward, tensors, of_backward, same, numbers, sizes):
    """Raises InvalidArgumentError if the derivatives of two recordings differ at random scores and places. Pairs that were found alike are not compared
    again.

    tensors, of_backward: the recordings' names -> tensor. numbers: name -> number, of those that the caller gave as one. same: pairs of a name in
    of_backward, and that in tensors of the same one or None.

    While torch.compile looks, tensors have no numbers. Random ones stand for them.
    """
    # As texts, of which torch.compile makes constants where it has left a number open.
    texts = {name: f"{number}" for name, number in numbers.items()}
    looks = tuple([(name, str(tensor.dtype), texts.get(name)) for name, tensor in {**tensors, **of_backward}.items()])
    places = tuple([size if isinstance(size, int) else 64 for size in sizes])
    if torch.compiler.is_dynamo_compiling():
        text = _difference_in_graph(forward, backward, looks, same, places)
        if text is not None:
            raise InvalidArgumentError(text)
        return
    key = forward, backward, looks, same, places
    if key in _alike:
        return
    indices = drawn(places)[2]
    elements = {name: _elements(tensor, indices) for name, tensor in {**tensors, **of_backward}.items()}
    text = _difference(forward, backward, looks, elements, places)
    if text is not None:
        raise InvalidArgumentError(text)
    _alike[key] = True


@torch.compiler.assume_constant_result
def _difference_in_graph(forward, backward, looks, same, places):
    """_difference() of tensors without numbers. Warns where it hangs on those of tensors that the backward alone reads, and takes the pair as it is."""
    same = dict(same)
    elements = {name: _elements_of_look(same.get(name) or name, dtype, number) for name, dtype, number in looks}
    text = _difference(forward, backward, looks, elements, places)
    if text is not None and any(same.get(name, name) is None and number is None for name, _, number in looks):
        warn_of_uncompared(2)
        return None
    return text


def _elements_of_look(name, dtype, number):
    if number is None:
        return random_elements(name, "float" in dtype)
    return number == "True" if dtype == "torch.bool" else float(number)


def _difference(forward, backward, looks, elements, places):
    """The error of the first difference of two recordings; None without one. elements: name -> what a tensor has at each sample."""
    scores, upstream, indices = drawn(places)
    with torch.enable_grad(), torch.device("cpu"):
        score = torch.tensor(scores, requires_grad=True)
        inputs = {"score": score, "d_score": torch.tensor(upstream), **{name: torch.tensor(each) for name, each in zip(INDICES, indices)}}
        # Each is an array of one dimension for each sample, which the recording indexes as it does the tensor.
        inputs |= {name: torch.as_tensor(np.asarray(elements[name])).to(_dtype(dtype)) for name, dtype, _ in looks}
        flat = [(_of_elements(steps), result) for steps, result in (forward, backward)]
        value, given = (evaluated(recording, inputs).expand(SAMPLES) for recording in flat)
        (derived,) = torch.autograd.grad((value * inputs["d_score"]).sum(), score, allow_unused=True) if value.requires_grad else (None,)
        derived = torch.zeros(SAMPLES) if derived is None else derived
        kept = (value > MASK_LIKE) & ~((value <= MASK_CONSTANT) & (derived == 0))
        found = first_difference(*(torch.where(kept, each, 0).detach().numpy() for each in (derived, given)))
        return None if found is None else text_of(found, scores, upstream)


def _of_elements(steps):
    """Steps whose tensors are given by their elements."""
    return tuple(("element", step[1], ()) if step[0] == "element" else step for step in steps)


def _dtype(name):
    return getattr(torch, name.removeprefix("torch."))


def _elements(tensor, indices):
    """A tensor's elements at these places."""
    places = [torch.as_tensor(each.astype(np.int64), device=tensor.device) for each in indices]
    found = element(tensor.detach(), tuple(size == 1 for size in tensor.shape), places).cpu()
    return (found.float() if found.is_floating_point() else found).expand(SAMPLES).numpy()
