"""A small model of each family that is served gives the tokens of `eager`, in continuous batching with shared prefixes and in speculative decoding."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
import test_transformers  # noqa: E402
from test_hub_kernel import NAME, calls  # noqa: E402, F401 (a fixture)
from transformers.generation.configuration_utils import ContinuousBatchingConfig  # noqa: E402

t, DECODER = transformers, test_transformers.DECODER
FAMILIES = {
    "gpt_oss": test_transformers.models()["gpt_oss"],
    "gemma3": (
        t.Gemma3TextConfig(**DECODER, head_dim=8, sliding_window=5, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]),
        t.Gemma3ForCausalLM,
    ),
    "deepseek_v3": (
        t.DeepseekV3Config(
            **{**DECODER, "num_key_value_heads": 4}, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
            moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        ),
        t.DeepseekV3ForCausalLM,
    ),
}  # fmt: skip
TOKENS = 8
OPTIONS = dict(max_new_tokens=TOKENS, do_sample=False, eos_token_id=60, pad_token_id=0)


@pytest.fixture(autouse=True)
def families(monkeypatch):
    monkeypatch.setattr(test_transformers, "models", lambda: FAMILIES)


@pytest.fixture
def seed():
    """One seed: where two logits are as good as equal, rounding decides the token."""
    return 3


def tokens(random, count):
    return torch.randint(3, 60, (count,), generator=random).tolist()


def generated(model, prompt, **options):
    """(the new tokens, their logits)"""
    given = dict(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long))
    config = t.GenerationConfig(**OPTIONS, output_logits=True, return_dict_in_generate=True)
    found = model.generate(**given, generation_config=config, **options)
    return found.sequences[0, len(prompt) :].tolist(), torch.stack(found.logits)


# The paged cache of transformers has one head dim for keys and values: it takes no model with MLA.
@pytest.mark.parametrize("family", ["gpt_oss", "gemma3"])
def test_continuous_batching_with_shared_prefixes(family, calls, seed, random, monkeypatch):  # noqa: F811
    monkeypatch.setattr(t.GptOssForCausalLM, "_compatible_flash_implementations", [NAME])  # its class takes no kernel but those that it lists
    prefix = tokens(random, 13)
    prompts = [prefix + tokens(random, 3), tokens(random, 5), prefix + tokens(random, 1), prefix]
    model, served = (test_transformers.make(family, "eager", seed).eval() for _ in range(2))
    served.set_attn_implementation(NAME)
    expected = [generated(model, prompt)[0] for prompt in prompts]
    # Pages of four: the prompts share three.
    config = ContinuousBatchingConfig(page_size=4, num_blocks=64, max_batch_tokens=24)
    found = served.generate_batch(prompts, generation_config=t.GenerationConfig(**OPTIONS), continuous_batching_config=config)
    assert [found[each].generated_tokens for each in sorted(found)] == expected
    assert set(calls) == {"flash_attn_varlen_func"}


@pytest.mark.parametrize("way", ["prompt lookup", "assistant"])
@pytest.mark.parametrize("family", FAMILIES)
def test_speculative_decoding(family, way, seed, random):
    """Several queries a step are verified against a cache, and what is refused is taken out of it."""
    prompt = tokens(random, 4) * 3
    expected, logits = generated(test_transformers.make(family, "eager", seed).eval(), prompt)
    model = test_transformers.make(family, "scoremod", seed).eval()
    options = {"prompt_lookup_num_tokens": 3} if way == "prompt lookup" else {"assistant_model": test_transformers.make(family, "scoremod", seed).eval()}
    counts, run = [], model.forward
    model.forward = lambda *arguments, **given: counts.append(given["input_ids"].shape[1]) or run(*arguments, **given)
    found, found_logits = generated(model, prompt, **options)
    assert found == expected
    torch.testing.assert_close(found_logits[: len(logits)], logits, rtol=1e-4, atol=2e-5)
    assert max(counts[1:]) > 1 and len(counts) < TOKENS + (way == "prompt lookup")
