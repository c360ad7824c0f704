"""PyTorch's FlexAttention, run eagerly in float64 on the CPU, is the oracle of each documented feature; in float32 it gives the tolerance."""

import dense_reference as dense
import flex_cases
import pytest
import torch
from error_ratios import held
from errors_in_torch import largest_ratio
from torch.nn.attention import flex_attention as torch_flex

import scoremod
from scoremod.torch import flex_attention

SUITE = "PyTorch FlexAttention"
EPS = torch.finfo(torch.float32).eps
AUX = torch_flex.AuxRequest(lse=True)  # PyTorch has no largest scores on the CPU


def block_mask_of(mask_mod, tensors, block_size=16):
    shape = (*tensors[0].shape[:3], tensors[1].shape[2])
    return None if mask_mod is None else torch_flex.create_block_mask(mask_mod, *shape, device="cpu", BLOCK_SIZE=block_size)


def outputs_held(found, theirs, truth):
    """Holds (o, aux) to the truth, and returns the largest ratio."""
    lists = [(o, aux.lse) for o, aux in (found, theirs, truth)]
    return max(held(name, *each, EPS) for name, *each in zip(("o", "lse"), *lists))


@pytest.mark.parametrize("name", flex_cases.CASES)
def test_outputs(name, foreign_seed, record):
    tensors, score_mod, mask_mod, options = flex_cases.CASES[name](torch.Generator().manual_seed(foreign_seed))
    block_mask = block_mask_of(mask_mod, tensors)
    options = {**options, "enable_gqa": True, "return_aux": AUX}
    truth, theirs = (torch_flex.flex_attention(*given, score_mod, block_mask, **options) for given in (dense.widened(tensors), tensors))
    found = flex_attention(*tensors, score_mod, block_mask, **options)
    record(SUITE, name, "outputs", outputs_held(found, theirs, truth))


@pytest.mark.parametrize("name", flex_cases.CASES)
def test_gradients(name, foreign_seed, record):
    """PyTorch has no backward on the CPU: the dense computation in float64 is the oracle."""
    random = torch.Generator().manual_seed(foreign_seed)
    tensors, score_mod, mask_mod, options = flex_cases.CASES[name](random)

    def fused(q, k, v, score_mod, mask_mod, **options):
        block_mask = block_mask_of(mask_mod, tensors)
        return flex_attention(q, k, v, score_mod, block_mask, return_lse=True, enable_gqa=True, **options)

    record(SUITE, name, "gradients", largest_ratio(*dense.check(fused, tensors, (), lambda: (score_mod, mask_mod), random, **options)))


def test_a_block_mask_without_its_function_is_its_blocks(foreign_seed, record):
    """As in PyTorch's compiled kernels. Its eager form has no blocks, and computes with all keys."""
    tensors = flex_cases.tensors(torch.Generator().manual_seed(foreign_seed), seq=(64, 64))
    counts, indices = torch.arange(1, 5, dtype=torch.int32)[None, None], torch.arange(4, dtype=torch.int32).expand(1, 1, 4, 4)
    blocks = torch_flex.BlockMask.from_kv_blocks(counts, indices.contiguous(), BLOCK_SIZE=16)
    same = block_mask_of(lambda b, h, q_idx, kv_idx: q_idx // 16 >= kv_idx // 16, tensors)
    truth, theirs = (torch_flex.flex_attention(*given, None, same, return_aux=AUX) for given in (dense.widened(tensors), tensors))
    record(SUITE, "blocks alone", "outputs", outputs_held(flex_attention(*tensors, None, blocks, return_aux=AUX), theirs, truth))


def test_nested_tensors_are_refused(record):
    nested = torch.nested.nested_tensor([torch.ones(3, 2, 8), torch.ones(5, 2, 8)], layout=torch.jagged).transpose(1, 2)
    with pytest.raises(scoremod.UnsupportedError, match="expected a dense tensor, found a nested one"):
        flex_attention(nested, nested, nested)
    record(SUITE, "nested jagged tensors", "outputs", refused="not offered: nested tensors")


def test_float64_is_refused(record):
    given = [torch.ones(1, 1, 4, 8, dtype=torch.float64)] * 3
    with pytest.raises(scoremod.InvalidArgumentError, match="one dtype, float32, float16, bfloat16"):
        flex_attention(*given)
    record(SUITE, "float64", "outputs", refused="dtype: float64")


def test_a_wrong_function_is_found(foreign_seed):
    """A negative control."""
    tensors, score_mod, *_ = flex_cases.CASES["captured vector"](torch.Generator().manual_seed(foreign_seed))
    truth, theirs = (torch_flex.flex_attention(*given, score_mod, return_aux=AUX) for given in (dense.widened(tensors), tensors))
    with pytest.raises(AssertionError, match="from float64"):
        outputs_held(flex_attention(*tensors, lambda *given: score_mod(*given) * 1.0001, return_aux=AUX), theirs, truth)
