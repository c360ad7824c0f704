"""The example of continuous batching continues texts as dense attention does, one text at a time, and compiles once."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "torch"))
import continuous_batching  # noqa: E402


@torch.inference_mode()
def alone(model, prompt, new):
    """A text and its next tokens, by dense attention of all of it at each step."""

    def attend(q, k, v):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        i = torch.arange(q.shape[1])
        distance = i - i[:, None]
        scores = q @ k.mT / q.shape[-1] ** 0.5 + model.slopes[:, None, None] * distance
        return (scores.masked_fill(distance > 0, -torch.inf).softmax(-1) @ v).transpose(0, 1)

    tokens = list(prompt)
    for _ in range(new):
        tokens.append(int(model(torch.tensor(tokens), attend)[-1]))
    return tokens


@pytest.fixture
def model(one_thread):
    torch.manual_seed(0)  # of one seed in a thousand two tokens are as likely as each other
    return continuous_batching.Model(heads=2, dim=16)


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def test_a_batch_continues_texts_as_each_alone(model, compiles, random):
    prompts = [torch.randint(64, (length,), generator=random).tolist() for length in (5, 1, 40, 17, 16, 33, 2, 58, 9, 20)]
    found, steps = continuous_batching.serve(model, prompts, 9)
    assert found == [alone(model, prompt, 9) for prompt in prompts]
    assert steps < len(prompts) + 2 * 9 and compiles() <= 2


def test_another_mask_would_be_seen(model, random, monkeypatch):
    plain = continuous_batching.flex_attention
    monkeypatch.setattr(continuous_batching, "flex_attention", lambda *args, **options: plain(*args, **{**options, "mask_mod": "causal"}))
    prompts = [torch.randint(64, (length,), generator=random).tolist() for length in (5, 40, 17, 33)]
    found, _ = continuous_batching.serve(model, prompts, 9)
    assert found != [alone(model, prompt, 9) for prompt in prompts]


def test_it_runs_as_a_program(one_thread, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["continuous_batching.py", "--requests", "5", "--new", "4", "--device", "cpu"])
    continuous_batching.main()
    assert json.loads(capsys.readouterr().out)["compiled"] <= 2
