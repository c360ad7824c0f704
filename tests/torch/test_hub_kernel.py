"""The kernel for the Hugging Face Hub in models of transformers: its folder in place of a download, all else by transformers' own code."""

import importlib.util
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from test_transformers import inputs, logits_and_gradients, make  # noqa: E402
from transformers import modeling_flash_attention_utils  # noqa: E402
from transformers.integrations import hub_kernels  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "integrations" / "hub_kernel"
# transformers tells a kernel for continuous batching by the "flash" in its name, and one for its decode steps by the 3 behind that.
NAME = "someone/scoremod-flash-attn3"


@pytest.fixture
def seed():
    """One seed, for what is tested is the way to the functions: test_flash_attn draws their arguments. Where two logits are as good as equal, rounding decides."""
    return 3


@pytest.fixture
def calls(monkeypatch):
    """The names of the functions that models call."""
    spec = importlib.util.spec_from_file_location("scoremod_kernel_of_the_hub", FOLDER / "build" / "torch-universal" / "__init__.py")
    module, made = importlib.util.module_from_spec(spec), []
    spec.loader.exec_module(module)

    def counting(name, run):
        def counted(*arguments, **options):
            made.append(name)
            return run(*arguments, **options)

        counted.__wrapped__ = run  # whose signature transformers looks at
        return counted

    for name in module.__all__:
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: module)
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    return made


def pair(name, seed, kernel=NAME):
    models = make(name, "eager", seed), make(name, "eager", seed)
    models[1].set_attn_implementation(kernel)
    assert models[1].config._attn_implementation == kernel
    return models


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(("name", "kernel"), [*[(name, NAME) for name in ("llama", "mistral", "gemma2", "modernbert")], ("gpt_oss", "someone/scoremod")])
def test_logits_and_gradients_are_those_of_eager(name, kernel, padding, calls, seed, random):
    given = inputs(name, random, padding)
    weight = torch.randn(2, 17, 61, generator=random)
    expected, found = (logits_and_gradients(model, given, weight) for model in pair(name, seed, kernel))
    largest = max(each.abs().max() for each in expected[1:])
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3 * float(y.abs().max()) + 1e-5 * float(largest))
    assert set(calls) == {"flash_attn_varlen_func" if padding else "flash_attn_func"}


def test_another_window_would_be_seen(calls, seed, random):
    given = inputs("gemma2", random, False)
    model, other = pair("gemma2", seed)
    for layer in other.model.layers:
        layer.self_attn.sliding_window = layer.self_attn.sliding_window and layer.self_attn.sliding_window + 1
    assert (model(**given).logits - other(**given).logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generation_and_continuous_batching_give_the_same_tokens(name, calls, seed, random):
    model, other = (each.eval() for each in pair(name, seed))
    prompts = [torch.randint(3, 60, (length,), generator=random).tolist() for length in (6, 2, 9)]
    options = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=60, pad_token_id=0)
    alone = []
    for prompt in prompts:
        given = dict(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), generation_config=options)
        expected, found = (each.generate(**given)[0, len(prompt) :].tolist() for each in (model, other))
        assert found == expected
        alone.append(expected)
    calls.clear()
    config = transformers.generation.configuration_utils.ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=64)
    batched = other.generate_batch(prompts, generation_config=options, continuous_batching_config=config)
    assert [batched[each].generated_tokens for each in sorted(batched)] == alone
    assert set(calls) == {"flash_attn_varlen_func"}


def test_transformers_finds_each_argument_that_it_may_pass(calls):
    """It passes what a signature has, and leaves a window or a sink away in silence where that lacks it."""
    _, (dense, paged) = modeling_flash_attention_utils.lazy_import_flash_attention(NAME)
    arguments = {"window_size", "softcap", "s_aux", "block_table"}
    assert arguments | {"dropout_p", "deterministic", "max_seqlen_q", "max_seqlen_k"} <= {
        name for name, has in dense.keywords["supports_mapping"].items() if has
    }
    assert arguments | {"cache_seqlens"} <= {name for name, has in paged.keywords["supports_mapping"].items() if has}


def test_the_hubs_package_loads_the_folder():
    kernels = pytest.importorskip("kernels")
    assert kernels.get_local_kernel(FOLDER).flash_attn_varlen_func.__module__ == "scoremod.torch.flash_attn"
