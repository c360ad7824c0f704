"""transformers' common attention tests on families that tests/torch has not: attn_implementation="scoremod" against eager in float64.

Outputs and gradients with padding on either side, generation with each cache, and prompts in a batch against those alone.
"""

import pytest
import torch

import scoremod

transformers = pytest.importorskip("transformers")
from model_families import FAMILIES, LENGTH, OWN_ATTENTION  # noqa: E402
from models_in_float64 import found_by, held, made, plain_of, truth_of  # noqa: E402

import scoremod.torch.transformers  # noqa: E402 (makes the name known)

SUITE = "transformers"
PADDING = {"left": slice(0, 4), "right": slice(-4, None)}
NEW_TOKENS = 8
SEEN = [(name, padding) for name, family in FAMILIES.items() for padding in ("none", *family.padded)]
GENERATING = [(name, cache) for name, family in FAMILIES.items() for cache in family.caches]
BATCHED = [name for name, family in FAMILIES.items() if family.batched]


@pytest.fixture
def changed_attention(monkeypatch):
    """changed_attention(change): scoremod's attention gets the (mask, options) that change(mask, options) returns."""

    def plant(change):
        table = transformers.AttentionInterface._global_mapping
        attention = table["scoremod"]

        def changed(module, query, key, value, mask, **options):
            mask, options = change(mask, options)
            return attention(module, query, key, value, mask, **options)

        monkeypatch.setitem(table, "scoremod", changed)

    return plant


@pytest.fixture
def calls(changed_attention):
    """An entry for each call of scoremod's attention."""
    made = []
    changed_attention(lambda mask, options: made.append(mask) or (mask, options))
    return made


@pytest.fixture
def random(foreign_seed):
    return torch.Generator().manual_seed(foreign_seed)


def case_of(name):
    return f"{name}: {FAMILIES[name].asks}"


def padded(given, side):
    """The arguments with a mask that leaves out the first or the last positions of the second sequence."""
    whole = next(given[name] for name in ("input_ids", "input_values") if name in given)
    mask = torch.ones(whole.shape, dtype=torch.long)
    part = PADDING[side]
    factor = whole.shape[1] // LENGTH  # samples of audio are many
    mask[1, slice(part.start * factor, part.stop and part.stop * factor)] = 0
    return {**given, "attention_mask": mask}


def outputs_and_gradients(seed):
    """run(model, given): the output, 0 at positions of padding, and the gradients of a loss that weighs every element."""

    def run(model, given):
        output = model.train()(**given)[0]
        mask = given.get("attention_mask")
        if mask is not None and mask.shape == output.shape[:2]:  # of a decoder's first positions no key is left
            output = torch.where(mask[..., None] == 1, output, 0)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
        (output * weights.to(output.dtype)).sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        return {"output": output.detach(), **gradients}

    return run


@pytest.mark.parametrize(("name", "padding"), SEEN)
def test_outputs_and_gradients(name, padding, foreign_seed, random, calls, record):
    given = FAMILIES[name].inputs(random)
    if padding != "none":
        given = padded(given, padding)
    run, model = outputs_and_gradients(foreign_seed), made(name, foreign_seed)
    found, plain, truth = found_by(run, model, given), plain_of(run, name, model, given, random), truth_of(run, model, given)
    assert len(calls) >= 2 and len(truth) > 10
    record(SUITE, case_of(name), "no padding" if padding == "none" else f"{padding} padding", held(found, plain, truth))


class Generated:
    """run(model, given): the logits of each new token. All models have to choose the tokens of the first."""

    def __init__(self, **options):
        self._options = dict(options, max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True, disable_compile=True)
        self._chosen = None

    def __call__(self, model, given):
        return self._kept([model.eval().generate(**given, **self._options)])

    def alone(self, model, given):
        """run() for each prompt by itself, without its padding."""
        masks = given["attention_mask"] == 1
        return self._kept([model.eval().generate(ids[mask][None], **self._options) for ids, mask in zip(given["input_ids"], masks)])

    def _kept(self, results):
        chosen = torch.cat([each.sequences[:, -NEW_TOKENS:] for each in results])
        self._chosen = chosen if self._chosen is None else self._chosen
        assert torch.equal(chosen, self._chosen), "other tokens than the first model's"
        return {"logits": torch.cat([torch.stack(each.logits, dim=1) for each in results])}


def prompt_of(name, random):
    given = FAMILIES[name].inputs(random)
    given.pop("decoder_input_ids", None)
    return padded(given, FAMILIES[name].batched) if FAMILIES[name].batched else given


@pytest.mark.parametrize(("name", "cache"), GENERATING)
def test_generation(name, cache, foreign_seed, random, calls, record):
    run = Generated(**{"cache_implementation": "static"} if cache == "static" else {})
    model, given = made(name, foreign_seed), prompt_of(name, random)
    found, plain, truth = found_by(run, model, given), plain_of(run, name, model, given, random), truth_of(run, model, given)
    assert len(calls) > NEW_TOKENS
    record(SUITE, case_of(name), f"{cache} cache", held(found, plain, truth))


@pytest.mark.parametrize("name", BATCHED)
def test_prompts_in_a_batch_are_those_alone(name, foreign_seed, random, record):
    run, model, given = Generated(), made(name, foreign_seed), prompt_of(name, random)
    found, plain, truth = found_by(run, model, given), plain_of(run, name, model, given, random), truth_of(run.alone, model, given)
    record(SUITE, case_of(name), "in a batch", held(found, plain, truth))


@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_attention_of_its_own_is_refused(name, record):
    has, config = OWN_ATTENTION[name]
    with pytest.raises(scoremod.UnsupportedError, match="expected a model that calls transformers' AttentionInterface"):
        transformers.AutoModel.from_config(config(), attn_implementation="scoremod")
    record(SUITE, f"{name}: {has}", "the model", refused="not offered: a family with attention of its own")


def changed_options(**changes):
    return lambda mask, options: (mask, {name: changes[name](value) if name in changes else value for name, value in options.items()})


def none(given):
    return None


def later(mask, options):
    """A mask of the queries one position later."""
    moved = lambda b, h, q_idx, kv_idx: mask.mask_mod(b, h, q_idx + 1, kv_idx)  # noqa: E731
    return scoremod.torch.transformers.Mask(moved, mask.shape), options


# Planted fault -> (family, padding, what scoremod's attention gets).
FAULTS = {
    "a mask of later queries": ("starcoder2", "none", later),
    "no chunks": ("llama4", "none", lambda mask, options: (None, options)),
    "no cap": ("vaultgemma", "none", changed_options(softcap=none)),
    "a sink of the other sign": ("mimo_v2_flash", "none", changed_options(s_aux=lambda sink: None if sink is None else -sink)),
    "a bias of the other sign": ("umt5", "none", changed_options(position_bias=lambda bias: None if bias is None else -bias)),
    "an image's bias of the other sign": ("swin", "none", lambda mask, options: (-mask, options)),
    "another scale": ("vit", "none", changed_options(scaling=lambda scale: scale * 1.001)),
    "padding that is seen": ("roberta", "right", lambda mask, options: (None, options)),
    "padding that the decoder sees": ("bart", "left", lambda mask, options: (mask if mask is not None and mask.shape[2] == mask.shape[3] else None, options)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, foreign_seed, random, changed_attention):
    """Negative controls."""
    name, padding, change = FAULTS[fault]
    run, model = outputs_and_gradients(foreign_seed), made(name, foreign_seed)
    given = FAMILIES[name].inputs(random)
    given = given if padding == "none" else padded(given, padding)
    plain, truth = plain_of(run, name, model, given, random), truth_of(run, model, given)
    held(found_by(run, model, given), plain, truth)
    changed_attention(change)
    with pytest.raises(AssertionError, match="from float64"):
        held(found_by(run, model, given), plain, truth)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_fault_in_decode_steps_is_found(cache, foreign_seed, random, changed_attention):
    """A negative control: every query of one position is masked as the one before it is."""

    def earlier(mask, options):
        if mask is None or mask.shape[2] > 1:
            return mask, options
        moved = lambda b, h, q_idx, kv_idx: mask.mask_mod(b, h, q_idx - 1, kv_idx)  # noqa: E731
        return scoremod.torch.transformers.Mask(moved, mask.shape), options

    run = Generated(**{"cache_implementation": "static"} if cache == "static" else {})
    model, given = made("starcoder2", foreign_seed), prompt_of("starcoder2", random)
    plain, truth = plain_of(run, "starcoder2", model, given, random), truth_of(run, model, given)
    changed_attention(earlier)
    with pytest.raises(AssertionError, match="from float64|other tokens"):
        held(found_by(run, model, given), plain, truth)
