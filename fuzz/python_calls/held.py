"""Each call is refused with one of scoremod's errors, or gives what dense attention in float64 does. Its tensors stay as they were."""

import contextlib
import ctypes

import torch

import scoremod
from python_calls.functions import OwnError
from python_calls.truth import FLOAT8, FLOATS, NotKnownError, attention, close, output_dtype
from scoremod.torch import flex_attention

DRAWS = (1, 6)  # of what rounding does; the second where the first says that a result is wrong
LARGE = 1e6
RESULTS = ("output", "LSE", "largest scores")
TRACED = "functions.py"
OF_INFERENCE = "Inference tensors cannot be saved for backward"  # which PyTorch says of its own functions, too


class FailedError(Exception):
    """Something that must hold for each call does not."""


def hold(call):
    """Raises FailedError, or whatever the call raised. Returns whether it was taken."""
    before = _memory(call.tensors())
    with contextlib.ExitStack() as stack:
        _enter(call.context, stack)
        for _ in range(call.times):
            results = _taken(call)
            is_taken = results is not None
            left = call.tensors() if not is_taken else [each for each in call.tensors() if each is not call.arguments.get("out")]
            if any(before[key] != contents for key, contents in _memory(left).items()):
                raise FailedError(f"a call that is {'taken' if is_taken else 'refused'} leaves the tensors that it reads as they are")
            if is_taken:
                with contextlib.suppress(NotKnownError):
                    _compare(call, *results)
    return is_taken


def _enter(context, stack):
    if context == "no_grad":
        stack.enter_context(torch.no_grad())
    elif context == "inference_mode":
        stack.enter_context(torch.inference_mode())
    elif context == "autocast":
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
    elif context == "deterministic":
        stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        torch.use_deterministic_algorithms(True)
    elif context == "float64 by default":
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)


def _has_memory(tensor):
    return tensor.layout == torch.strided and tensor.device.type == "cpu"


def _memory(tensors):
    """id of a tensor -> the bytes of its storage."""
    found = {}
    for each in tensors:
        if _has_memory(each):
            storage = each.untyped_storage()
            found[id(each)] = ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""
    return found


def _taken(call):
    """(results, weights of the loss, leaves, their gradients); None where the call was refused."""
    try:
        leaves = [each for each in call.tensors() if each.requires_grad and _has_memory(each)]
        results = flex_attention(**call.given())
        o, lse, _ = _parts(call, results)
        weights = [torch.randn(each.shape, dtype=torch.float32) if each is not None else None for each in (o, lse)]
        gradients = None
        if leaves and o.requires_grad:
            gradients = torch.autograd.grad(_loss(o, lse, weights), leaves, allow_unused=True)
            gradients = [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, gradients)]
    except scoremod.Error as error:
        if not isinstance(error, (scoremod.InvalidArgumentError, scoremod.UnsupportedError)) or len(str(error)) < 10:
            raise
        return None
    except Exception as error:
        if not _is_functions_own(call, error) and OF_INFERENCE not in str(error):
            raise
        return None
    return results, weights, leaves, gradients


def _is_functions_own(call, error):
    """Whether one of the call's functions raises the same where it is called with plain tensors."""
    if isinstance(error, OwnError):
        return True
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    if not any(each.endswith(TRACED) for each in frames):
        return False
    indices = [torch.zeros((), dtype=torch.int32)] * 4
    given = call.given()
    for function, arguments in ((given.get("score_mod"), [torch.ones(()), *indices]), (given.get("mask_mod"), indices)):
        try:
            if callable(function):
                function(*[each.clone() for each in arguments])
        except Exception as own:
            if type(own) is type(error):
                return True
    return False


def _parts(call, results):
    """(o, lse, largest scores) of what a call returned, of which all but o may be None."""
    arguments = call.arguments
    several = [bool(arguments.get("return_lse")), arguments.get("return_aux") is not None, bool(arguments.get("return_amax_o"))]
    if not any(several):
        results = (results,)
    if type(results) is not tuple or not isinstance(results[0], torch.Tensor) or len(results) != 1 + sum(several):
        raise FailedError(f"expected {1 + sum(several)} results, found {len(results)}")
    if several[1]:
        aux, asked = results[1], arguments["return_aux"]
        if (aux.lse is None, aux.max_scores is None) != (not asked.lse, not asked.max_scores):
            raise FailedError(f"expected {asked}, found {aux}")
        return results[0], aux.lse, aux.max_scores
    return results[0], results[1] if several[0] else None, None


def _loss(o, lse, weights):
    wide = torch.promote_types(o.dtype, torch.float32)
    loss = (o.to(wide) * weights[0].to(o.dtype if o.dtype.itemsize > 1 else wide).to(wide)).sum()
    return loss if lse is None else loss + torch.where(lse.isneginf(), 0, lse * weights[1].to(lse.dtype)).sum()


def _compare(call, results, weights, leaves, gradients):
    o, lse, largest = _parts(call, results)
    dtype = _dtype_of(call)
    if o.dtype != dtype or (lse is not None and lse.dtype != torch.float32):
        raise FailedError(f"expected an output of {dtype} and an LSE of float32, found {o.dtype} and {lse if lse is None else lse.dtype}")
    out = call.arguments.get("out")
    if out is not None and o is not out:
        raise FailedError("expected the output to be the tensor that is given for it")
    found = [o, lse, largest, *(gradients or ())]
    evaluated = _Evaluated(call, weights, leaves, gradients is not None, lse is not None)
    truth = evaluated(True)
    if call.arguments.get("dropout_p"):
        truth = [torch.full_like(each, torch.nan) for each in truth]  # any numbers of these shapes
    if not all((each.float().abs() < LARGE).all() for each in call.tensors() if each.dtype in (*FLOATS, *FLOAT8, torch.float64) and _has_memory(each)):
        truth[3:] = [torch.full_like(each, torch.nan) for each in truth[3:]]  # products overflow, and one of infinity and 0 may be either
    plain, off = evaluated(False), []
    for draws in DRAWS:
        off += [evaluated(is_wide, torch.finfo(dtype).eps) for _ in range(draws) for is_wide in (True, False)]
        off += [evaluated(True, torch.finfo(dtype).eps, found) for _ in range(draws) if gradients is not None]
        wrong = _first_wrong(found, plain, truth, off, dtype)
        if wrong is None:
            return
    number, what = wrong
    names = [name for name, each in call.arguments.items() if number > 2 and each is leaves[number - 3]]
    raise FailedError(f"{(*RESULTS, 'gradient')[min(number, 3)]} {names}: {what}")


def _dtype_of(call):
    """The dtype of a call's output."""
    is_cast = call.context == "autocast" and call.arguments["query"].dtype not in FLOAT8
    return torch.bfloat16 if is_cast else output_dtype(call.arguments)


def _first_wrong(found, plain, truth, off, dtype):
    """(number of a result, what is wrong with it), or None."""
    scores = truth[0].numel() * 32
    for number, each in enumerate(found):
        if each is not None:
            eps = torch.finfo(torch.float32 if number in (1, 2) else dtype).eps
            terms = max(1.0, scores / max(each.numel(), 1)) if number > 2 else 1.0  # each is rounded
            what = close(each.detach(), plain[number], truth[number], [o[number] for o in off], eps * terms**0.5)
            if what is not None:
                return number, what
    return None


class _Evaluated:
    """Dense attention to a call's tensors."""

    def __init__(self, call, weights, leaves, has_gradients, has_lse):
        self._call, self._weights, self._leaves, self._has_gradients, self._has_lse = call, weights, leaves, has_gradients, has_lse

    def __call__(self, is_wide, off=0.0, found=None):
        """[o, lse, largest scores, gradients of the leaves]. off: the relative error of all inputs. found: a call's results, whose output is rounded, and
        so are the sums of a backward that are made of it."""
        replaced, has_gradients = {}, self._has_gradients

        def other(tensor):
            if id(tensor) not in replaced:
                made = self._copied(tensor, is_wide, 0.0 if found is not None else off)
                replaced[id(tensor)] = made.requires_grad_() if has_gradients and tensor.requires_grad else made
            return replaced[id(tensor)]

        with torch.inference_mode(False), torch.set_grad_enabled(has_gradients), torch.autocast("cpu", enabled=False):
            o, lse, largest = attention(self._call.given(other), is_wide)
            gradients = []
            if has_gradients:
                made = [replaced[id(leaf)] for leaf in self._leaves]
                weights = self._weights_of(o.detach(), lse.detach(), off, found)
                loss = _loss(o, lse if weights[1] is not None else None, weights) + sum(each.reshape(-1)[:0].sum() for each in made)  # of no score, too
                gradients = torch.autograd.grad(loss, made, allow_unused=True)
                gradients = [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(made, gradients)]
        return [each.detach() for each in (o, lse, largest, *gradients)]

    def _copied(self, tensor, is_wide, off):
        made = tensor.detach().clone()
        if not made.is_floating_point() or made.dtype in FLOAT8:
            return made
        if self._call.context == "autocast" and any(tensor is self._call.arguments.get(name) for name in ("query", "key", "value")):
            made = made.to(torch.bfloat16)
        changed = made.double() * (1 + off * torch.randn(made.shape, dtype=torch.float64, device=made.device)) if off else made
        return changed.double() if is_wide else changed.to(made.dtype)

    def _weights_of(self, o, lse, off, found):
        """The weights of a loss, off by rounding. The error of delta, a row's sum of d_o * o, acts as a weight of the LSE."""
        of_o, of_lse = self._weights
        if found is None:
            return [each if each is None else each * (1 + off * torch.randn(each.shape, dtype=torch.float32)) for each in self._weights]
        products = of_o.to(found[0].dtype).double() * o
        error = (of_o.double() * (found[0].detach().double() - o)).sum(-1) + off * torch.randn(lse.shape, dtype=torch.float64) * products.abs().sum(-1)
        return of_o, (0 if of_lse is None else of_lse) - error
