"""A model of transformers in float32 and wholly in float64, and what the tested attention may be off by."""

import copy

import torch
from error_ratios import ROUNDING_BAND, error_ratio
from model_families import FAMILIES
from torch.overrides import TorchFunctionMode

EPS = torch.finfo(torch.float32).eps
ROUNDED_DRAWS = 2
AGREED = 1e-4  # of the largest element: attention in float32 that is further off computes something else
CANCELLED = 1e-12  # of the largest gradient: a sum of float64 that is 0 but for rounding


class InFloat64(TorchFunctionMode):
    """Models round norms, rotary angles and softmax to float32, whatever their dtype. In this mode such a conversion is one to float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(x):
            return torch.float64 if x is torch.float32 else x

        if function is torch.Tensor.float:
            return args[0].double()
        return function(*map(wide, args), **{name: wide(x) for name, x in (kwargs or {}).items()})


def made(name, seed):
    """A model with eager attention whose weights are larger than a fresh one's, so that attention matters."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    config = family.config()
    config._attn_implementation, config._experts_implementation = "eager", "eager"  # such experts take float64
    model = family.model(config)
    if hasattr(model, "generation_config"):
        model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None  # all sequences are of one length
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(family.larger) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def with_attention(model, implementation):
    model = copy.deepcopy(model)
    model.set_attn_implementation(implementation)
    return model


def off(model, random):
    """The model with parameters that are off by what rounding may take them."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + EPS * torch.randn(parameter.shape, generator=random))
    return model


def found_by(run, model, given):
    """run(model, given) with the tested attention."""
    return run(with_attention(model, "scoremod"), given)


def plain_of(run, name, model, given, random):
    """A list of run(model, given) in float32, with eager attention and, where it has all that the family asks for, sdpa.

    How much rounding a model shows is a matter of chance, so these also run with parameters that are off by it. sdpa, too, computes a row's sum of
    d_o * o from the rounded o.
    """
    ways = ("eager", "sdpa") if FAMILIES[name].sdpa else ("eager",)
    return [run(with_attention(each, way), given) for each in (model, *(off(model, random) for _ in range(ROUNDED_DRAWS))) for way in ways]


def truth_of(run, model, given):
    """run(model, given) with eager attention in float64."""
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    with InFloat64():
        return run(copy.deepcopy(model).double(), given)


def held(found, plain, truth):
    """Asserts that each tensor of found is as close to the truth as those of plain are, and returns the largest ratio of their errors.

    All are dicts of tensors; plain is a list of them. Gradients by biases of keys are sums that cancel to 0: their terms are rounded.
    """
    assert found.keys() == truth.keys()
    sizes = {name: exact.abs().max().item() for name, exact in truth.items()}
    largest, ratios = max(sizes.values()), []
    for name, exact in truth.items():
        assert exact.dtype == torch.float64 and exact.isfinite().all() and found[name].shape == exact.shape, name
        error, *others = ((x[name].double() - exact).abs().max().item() for x in (found, *plain))
        scale = sizes[name] if sizes[name] > CANCELLED * largest else largest
        own, unit = max(others), EPS * scale
        assert own <= AGREED * scale, f"{name}: float32 is {own} from float64, which tells nothing of {scale}"
        allowed = 2 * own + ROUNDING_BAND * unit
        assert error <= allowed, f"{name}: {error} from float64, {allowed} allowed"
        ratios.append(error_ratio(error, own, unit))
    return max(ratios)
