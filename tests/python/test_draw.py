"""scoremod.draw: what is drawn are the library's own scores, tile by tile, and mistakes are named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import scoremod
from scoremod.command import main
from scoremod.drawing import block_mask
from scoremod.scores import HeadScores

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[2]
B, H, S = 2, 3, 40
PROBLEM = {
    "batch": B, "heads_q": H, "seq_q": S, "seq_kv": S, "dim_qk": 8, "dtype": "bf16",
    "program": [
        "operand slopes: f32 [h]", "operand ids: i32 [b, kv_idx]", "operand of_query: i32 [b, q_idx]", "table bias: f32 rank 2",
        "value = 30.0 * tanh((score + slopes * f32(kv_idx - q_idx) + bias[h, q_idx]) / 30.0)", "keep = (q_idx >= kv_idx) & (ids == of_query)",
    ],
    "operands": [
        {"name": "slopes", "dtype": "f32", "shape": [H]}, {"name": "ids", "dtype": "i32", "shape": [B, S]},
        {"name": "of_query", "dtype": "i32", "shape": [B, S]}, {"name": "bias", "dtype": "bf16", "shape": [H, S]},
    ],
}  # fmt: skip


@pytest.fixture
def arrays():
    random = np.random.default_rng(7)
    ids = (np.arange(S) * 3 // S + np.zeros((B, 1))).astype(np.int32)
    # Numbers that bfloat16 holds, once as its bits.
    bias = random.integers(-8, 8, (H, S)).astype(np.float32) / 4
    return {"slopes": random.random(H, np.float32), "ids": ids, "of_query": ids, "bias": (bias.view(np.uint32) >> 16).astype(np.uint16)}


def test_scores_are_the_formula(arrays):
    problem = scoremod.Attention(PROBLEM, backend="reference").problem
    first, count, batch, head = 5, 30, 1, 2
    scores = HeadScores(problem, arrays, batch, head, first, count)
    bias = (arrays["bias"].astype(np.uint32) << 16).view(np.float32)
    rows = np.arange(first, first + count)
    for key in (0, 5, 17, 39):
        value = 30 * np.tanh((2.5 + arrays["slopes"][head] * (key - rows) + bias[head, rows]) / 30)
        kept = (rows >= key) & (arrays["ids"][batch, key] == arrays["ids"][batch, rows])
        np.testing.assert_allclose(scores.of_key(key, 2.5), np.where(kept, value, -np.inf), rtol=1e-5, atol=1e-5)


def test_the_heads_row_stands_before_the_others_and_many_rows_are_a_picture(arrays):
    bias = next(axes for axes in scoremod.draw(PROBLEM, arrays, head=1).axes if axes.get_title().startswith("bias"))
    value = (arrays["bias"].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(bias.lines[-1].get_ydata(), value[1])
    assert len(bias.lines) == H and bias.lines[-1].get_linewidth() == 2
    wide = {
        **PROBLEM,
        "program": "table wide: f32 rank 2\nvalue = score + wide[q_idx, kv_idx]",
        "operands": [{"name": "wide", "dtype": "f32", "shape": [S, S]}],
    }
    drawn = next(axes for axes in scoremod.draw(wide, {"wide": np.zeros((S, S), np.float32)}).axes if axes.get_title() == f"wide [{S}, {S}]")
    assert not drawn.lines and drawn.images[0].get_array().shape == (S, S)


def test_the_legend_hides_no_tiles(arrays):
    figure = scoremod.draw(PROBLEM, arrays)
    figure.canvas.draw()
    tiles = figure.axes[0]
    assert tiles.get_legend().get_window_extent().y1 < tiles.get_window_extent().y0


def test_the_command_says_which_operands_are_random(tmp_path):
    (tmp_path / "problem.json").write_text(json.dumps({**PROBLEM, "inputs": {"slopes": {"values": [1.0, 2.0, 3.0]}}}), encoding="utf-8")
    titles = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: titles.append(figure.get_suptitle()))
        assert main(["draw", str(tmp_path / "problem.json"), "-o", "unused.png"]) == 0
    assert titles == ["batch 0, head 0; random numbers: ids, of_query, bias"]


def test_tiles_are_counted():
    kept = np.tril(np.ones((5, 5), bool))
    assert block_mask(kept, 2).tolist() == [[1, 0, 0], [2, 1, 0], [2, 2, 2]]


def test_a_figure_has_a_panel_for_each_thing(arrays):
    figure = scoremod.draw(PROBLEM, arrays, batch=1, head=2, tile=8)
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible() and axes.get_title()]
    assert titles[0].startswith("tiles of 8 x 8: ") and {"slopes [3]", "bias [3, 40], row 2 before the others"} <= set(titles)
    rows = np.arange(S)
    kept = (rows[:, None] >= rows) & (arrays["ids"][1][:, None] == arrays["ids"][1])
    share = np.mean(block_mask(kept, 8) > 0)
    assert f"{share:.1%} of the work is left" in titles[0]
    part = scoremod.draw(PROBLEM, arrays, queries=(8, 4), keys=(0, 16), tile=4)
    assert "tiles of 4 x 4" in part.axes[0].get_title()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 2}, "batch: expected an index from 0 to 1, found 2"),
        ({"head": -1}, "head: expected an index"),
        ({"queries": (30, 11)}, "queries: expected .first, count. within 40"),
        ({"tile": 0}, "tile: expected a side"),
    ],
)
def test_mistakes_are_named(options, message, arrays):
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        scoremod.draw(PROBLEM, arrays, **options)


def test_missing_and_wrong_operands_are_named(arrays):
    with pytest.raises(scoremod.InvalidArgumentError, match="expected an array for 'bias'"):
        scoremod.draw(PROBLEM, {name: array for name, array in arrays.items() if name != "bias"})
    with pytest.raises(scoremod.InvalidArgumentError, match="expected 'slopes' in shape"):
        scoremod.draw(PROBLEM, {**arrays, "slopes": np.ones(4, np.float32)})
    with pytest.raises(scoremod.InvalidArgumentError, match="at most 33554432 scores"):
        scoremod.draw({**PROBLEM, "seq_q": 8192, "seq_kv": 8192, "program": ["value = score"], "operands": []})


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "problems").glob("*.json")), ids=lambda path: path.stem)
def test_the_command_draws_each_example(path, tmp_path):
    picture = tmp_path / "map.png"
    part = ["--queries", "0,64", "--keys", "0,64"]
    done = subprocess.run([sys.executable, "-m", "scoremod", "draw", path, "-o", picture, *part], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_the_command_names_mistakes(tmp_path):
    (tmp_path / "problem.json").write_text(json.dumps({**PROBLEM, "program": ["value = scored"], "operands": []}))
    done = subprocess.run([sys.executable, "-m", "scoremod", "draw", tmp_path / "problem.json", "-o", tmp_path / "map.png"], capture_output=True, text=True)
    assert done.returncode == 2 and "scored" in done.stderr and "Traceback" not in done.stderr
