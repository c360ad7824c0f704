"""The operator scoremod::surrogate(value, derived) -> value, whose derivative is that of `derived`: the op surrogate of score programs.

Arguments are single elements of float32.
"""

import torch

_library = torch.library.Library("scoremod", "FRAGMENT")
_library.define("surrogate(Tensor value, Tensor derived) -> Tensor")


def surrogate(value, derived):
    """value, whose derivative is that of derived."""
    return torch.ops.scoremod.surrogate(value, derived)


def stopped(value):
    """value, as a constant to derivatives."""
    return surrogate(value, torch.zeros((), dtype=torch.float32, device=value.device))


_library.impl("surrogate", lambda value, derived: value.clone(), "CompositeExplicitAutograd")
# A tracer makes the op of it. A formula here would be found before the tracer is, within torch.func's transformations.
_library.impl("surrogate", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("scoremod::surrogate", lambda value, derived: torch.empty_like(value), lib=_library)
