"""attn_implementation="scoremod" in models of transformers: logits and gradients against `eager`, training steps, generation with a cache."""

import copy

import pytest
import torch

import scoremod

transformers = pytest.importorskip("transformers")
import scoremod.torch.transformers  # noqa: E402 (makes the name known)

SMALL = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=61, max_position_embeddings=64)
DECODER = dict(SMALL, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=60, use_cache=True)


def models():
    """name -> (configuration, class)."""
    t = transformers
    return {
        "llama": (t.LlamaConfig(**DECODER), t.LlamaForCausalLM),
        "mistral": (t.MistralConfig(**DECODER, sliding_window=5), t.MistralForCausalLM),
        "qwen3": (t.Qwen3Config(**DECODER, head_dim=8), t.Qwen3ForCausalLM),
        "gemma2": (
            t.Gemma2Config(**DECODER, head_dim=8, sliding_window=5, attn_logit_softcapping=5.0, query_pre_attn_scalar=8),
            t.Gemma2ForCausalLM,
        ),
        "gpt_oss": (
            t.GptOssConfig(**DECODER, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=2, rope_parameters=None),
            t.GptOssForCausalLM,
        ),
        "gpt2": (
            t.GPT2Config(
                **dict(n_embd=32, n_head=4, n_layer=2, n_positions=64, vocab_size=61, pad_token_id=0, bos_token_id=1, eos_token_id=60),
                **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
            ),
            t.GPT2LMHeadModel,
        ),
        "bert": (t.BertConfig(**SMALL, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0), t.BertForMaskedLM),
        "modernbert": (
            t.ModernBertConfig(**SMALL, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2, local_attention=8),
            t.ModernBertForMaskedLM,
        ),
        "t5": (
            t.T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0, eos_token_id=60),
            t.T5ForConditionalGeneration,
        ),
    }


NAMES = tuple(models())


def make(name, implementation, seed, dtype=torch.float32):
    config, kind = models()[name]
    torch.manual_seed(seed)
    config = copy.deepcopy(config)
    config._attn_implementation = implementation
    config._experts_implementation = "eager"  # which takes float64
    model = kind(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # larger than a fresh model's, so that attention matters
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn(parameter.shape, dtype=dtype))
    return model


def inputs(name, random, padding, left=False):
    ids = torch.randint(3, 60, (2, 17), generator=random)
    given = {"input_ids": ids}
    if padding:
        given["attention_mask"] = torch.ones_like(ids)
        # Decoders pad on the left to generate. There eager's rows without a key are the mean of all, or NaN in float64, instead of 0.
        given["attention_mask"][1, slice(0, 4) if left else slice(-4, None)] = 0
    if name == "t5":
        given["decoder_input_ids"] = torch.randint(3, 60, (2, 9), generator=random)
    return given


def logits_and_gradients(model, given, weight):
    """The logits, 0 at positions of padding, where they have no meaning, and the parameters' gradients."""
    logits = model(**given).logits
    if "attention_mask" in given and "decoder_input_ids" not in given:
        logits = torch.where(given["attention_mask"][..., None] == 1, logits, 0)
    model.zero_grad()
    (logits * weight.to(logits.dtype)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [logits.detach(), *gradients]


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_eager(name, padding, seed, random):
    given = inputs(name, random, padding)
    shape = (2, 9 if name == "t5" else 17, 61)
    weight = torch.randn(shape, generator=random)
    found, plain = (logits_and_gradients(make(name, each, seed), given, weight) for each in ("scoremod", "eager"))
    exact = make(name, "eager", seed)
    truth = logits_and_gradients(exact.double(), given, weight)
    assert len(found) == len(plain) == len(truth) > 10
    found, plain, truth = ([x.double() for x in each] for each in (found, plain, truth))
    largest = max(t.abs().max() for t in truth[1:])
    # Rounding adds up over layers and tokens. Eager's own distance from float64 tells how far: for each parameter, and the largest of all of
    # them, for one is a small sample. (For T5's biases it was a fifth of ours once, with equal medians.) Gradients of keys' biases are left
    # out: they are 0 but for the rounding of large terms.
    relative = max((p - t).abs().max() / t.abs().max() for p, t in zip(plain, truth) if t.abs().max() > largest / 1000)
    for x, p, t in zip(found, plain, truth):
        allowed = 4 * torch.maximum((p - t).abs().max(), relative * t.abs().max())
        allowed += torch.finfo(torch.float32).eps * (64 * t.abs().max() + largest)
        assert (x - t).abs().max() <= allowed


def test_another_mask_would_be_seen(seed, random):
    """The comparison tells a window of 5 from one of 6, and a cap of 5 from one of 6."""
    given = inputs("gemma2", random, False)
    model, other = make("gemma2", "eager", seed), make("gemma2", "scoremod", seed)
    expected = model(**given).logits
    other.config.sliding_window = 6
    assert (other(**given).logits - expected).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gemma2", "modernbert"])
def test_a_training_step(name, seed, random):
    given = inputs(name, random, True)
    steps = []
    for implementation in ("scoremod", "eager"):
        model = make(name, implementation, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(**given, labels=given["input_ids"]).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        steps.append(torch.stack(losses))
    torch.testing.assert_close(*steps, rtol=1e-4, atol=1e-5)
    assert steps[0][2] != steps[0][0]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2", "t5"])
def test_generation_with_a_cache(name, cache, seed, random):
    given = {key: value for key, value in inputs(name, random, True, left=name != "t5").items() if key != "decoder_input_ids"}
    options = dict(max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True, disable_compile=True)
    if cache == "static":
        if name == "t5":
            pytest.skip("static caches of encoder-decoder models need fixed encoder lengths")
        options["cache_implementation"] = "static"
    results = [make(name, each, seed).eval().generate(**given, **options) for each in ("scoremod", "eager")]
    for found, expected in zip(*(torch.stack(each.logits) for each in results)):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    assert torch.equal(results[0].sequences, results[1].sequences)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_sequences_are_those_alone(name, seed, random):
    model = make(name, "scoremod", seed).eval()
    parts = [torch.randint(3, 60, (1, length), generator=random) for length in (6, 9, 4)]
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    packed = model(input_ids=torch.cat(parts, dim=1), position_ids=positions, use_cache=False).logits
    alone = torch.cat([model(input_ids=part, use_cache=False).logits for part in parts], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)


def test_no_mask_is_made_in_memory(seed, random, monkeypatch):
    masks = []
    real = scoremod.torch.transformers._mask_of
    monkeypatch.setattr(scoremod.torch.transformers, "_mask_of", lambda *arguments: masks.append(arguments[3]) or real(*arguments))
    make("mistral", "scoremod", seed)(**inputs("mistral", random, True))
    assert masks and all(isinstance(mask, scoremod.torch.transformers.Mask) for mask in masks)


def test_dropout_of_weights_while_training(seed, random):
    config, kind = models()["llama"]
    config.attention_dropout = 0.5
    config._attn_implementation = "scoremod"
    torch.manual_seed(seed)
    model, given = kind(config), inputs("llama", random, False)
    torch.manual_seed(seed)
    first = model.train()(**given).logits
    assert not torch.equal(model(**given).logits, first)
    torch.manual_seed(seed)
    assert torch.equal(model(**given).logits, first)
    assert torch.equal(model.eval()(**given).logits, model(**given).logits)


def test_four_dimensional_masks_are_taken(seed, random):
    model, eager = (make("llama", each, seed) for each in ("scoremod", "eager"))
    ids = torch.randint(3, 60, (2, 17), generator=random)
    kept = torch.rand(2, 1, 17, 17, generator=random).gt(0.3) | torch.eye(17, dtype=torch.bool)
    added = torch.where(kept, 0.0, torch.finfo(torch.float32).min)
    expected = eager(input_ids=ids, attention_mask=added).logits
    for mask in (added, kept):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, expected, rtol=1e-3, atol=1e-3)


def test_a_mask_answers_for_its_shape_as_a_tensor_does(seed, random):
    """Models ask it how many dimensions it has, GPT-2 in generation with a static cache."""
    mask = scoremod.torch.transformers.attention_mask(2, 17, 17)
    assert (mask.ndim, mask.dim(), mask.shape, mask.size(), mask.size(-1)) == (4, 4, (2, 1, 17, 17), (2, 1, 17, 17), 17)
    ids = torch.randint(3, 60, (2, 17), generator=random)
    model = make("gpt2", "scoremod", seed).eval()
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize(
    "config",
    [
        transformers.FalconConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=61),
        transformers.GPTJConfig(n_embd=32, n_head=4, n_layer=1, vocab_size=61, rotary_dim=4),
        transformers.GPTNeoConfig(hidden_size=32, num_heads=4, num_layers=1, attention_types=[[["global"], 1]], vocab_size=61),
        transformers.CodeGenConfig(n_embd=32, n_head=4, n_layer=1, vocab_size=61, rotary_dim=4),
        transformers.XGLMConfig(d_model=32, attention_heads=4, num_layers=1, ffn_dim=64, vocab_size=61),
        transformers.GitConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=64, vocab_size=61),
        transformers.MptConfig(d_model=32, n_heads=4, n_layers=1, vocab_size=61),
    ],
    ids=lambda config: config.model_type,
)
def test_models_with_an_attention_of_their_own_are_refused(config):
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 1, 60
    with pytest.raises(
        scoremod.UnsupportedError, match="expected a model that calls transformers' AttentionInterface, found .* which computes attention by itself"
    ):
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="scoremod")
    transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
