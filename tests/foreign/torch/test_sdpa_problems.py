"""Random problems of cuDNN's frontend on the CPU: a few for each run, with a new seed. tools/device/sdpa_problems.py runs many on a GPU."""

import collections
import dataclasses
import json
import runpy
from pathlib import Path

import pytest
import sdpa_in_torch
import sdpa_problems
import torch
from errors_in_torch import largest_ratio

PROBLEMS = 8


@pytest.mark.parametrize("number", range(PROBLEMS))
def test_problem(number, foreign_seed, record):
    problem = sdpa_problems.draw(foreign_seed, longest=48, widest=64)
    print(problem)
    record("cuDNN frontend's random SDPA", f"problem {number}", "torch", largest_ratio(*sdpa_in_torch.held(problem)))


def test_varlen_sequences_without_any_key():
    """A find of a random run, which was refused."""
    problem = sdpa_problems.draw(164720392, longest=48, widest=64)
    assert problem.kind == "varlen" and problem.lengths_kv == (0,)
    sdpa_in_torch.held(problem)


def test_equal_seeds_draw_equal_problems(foreign_seed):
    assert sdpa_problems.draw(foreign_seed) == sdpa_problems.draw(foreign_seed) != sdpa_problems.draw(foreign_seed + 1)


def test_every_kind_is_drawn_as_often_as_published():
    drawn = [sdpa_problems.draw(seed) for seed in range(4000)]

    def share(of):
        return collections.Counter(map(of, drawn))

    kinds = share(lambda p: p.kind)
    assert all(abs(count / len(drawn) - 1 / 3) < 0.04 for count in kinds.values()) and len(kinds) == 3
    assert abs(share(lambda p: p.dtype)["bfloat16"] / len(drawn) - 2 / 3) < 0.04
    assert abs(share(lambda p: p.sink)[True] / len(drawn) - 1 / 4) < 0.04
    assert abs(share(lambda p: (p.left, p.right) == (None, None))[True] / len(drawn) - 1 / 4) < 0.04
    assert abs(share(lambda p: p.seq_q > p.seq_kv)[True] / len(drawn) - 1 / 6) < 0.04
    assert share(lambda p: 0 in p.lengths_kv)[True] and share(lambda p: 99990001 in p.strides[1])[True]
    assert all(p.heads_q % p.heads_kv == 0 and p.dim_qk >= p.dim_v for p in drawn)


def test_no_two_elements_share_memory():
    for seed in range(200):
        problem = sdpa_problems.draw(seed, longest=6, widest=16)
        for shape, strides in zip(problem.shapes, problem.strides):
            places = sum(torch.arange(n).reshape([-1 if i == axis else 1 for i in range(4)]) * strides[axis] for axis, n in enumerate(shape))
            assert places.unique().numel() == places.numel(), problem


@pytest.mark.parametrize("kind", ["full", "padded", "varlen"])
def test_a_mask_that_is_off_by_one_is_found(kind):
    """A negative control: the tolerance tells a band from one that is a key wider."""
    drawn = (sdpa_problems.draw(seed, longest=48, widest=64) for seed in range(10000))
    problem = next(p for p in drawn if p.kind == kind and p.right == 0 and min(p.lengths_q + p.lengths_kv) > 3)
    with pytest.raises(AssertionError, match="from float64"):
        sdpa_in_torch.held(problem, masked_as=dataclasses.replace(problem, right=1))


@pytest.mark.parametrize("seed_of_large", [3, 11])
def test_slices_compute_what_the_whole_does(seed_of_large, monkeypatch):
    problem = sdpa_problems.draw(seed_of_large, longest=24, widest=16)
    whole = sdpa_in_torch.held(problem)
    monkeypatch.setattr(sdpa_in_torch, "FEW_SCORES", 0)
    for one, other in zip(whole[2], sdpa_in_torch.held(problem)[2], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_the_devices_script_counts_what_is_wrong(monkeypatch, capsys, tmp_path):
    script = runpy.run_path(str(Path(__file__).resolve().parents[3] / "tools" / "device" / "sdpa_problems.py"))
    record = tmp_path / "record.json"
    record.write_text('[{"seed": 6, "device": "cpu"}, {"seed": 7, "device": "cpu"}]')
    few = ["2", "7", "--device", "cpu", "--longest", "12", "--widest", "16", "--record", str(record)]
    assert script["main"](few) == 0
    assert "seed 7, on cpu" in (said := capsys.readouterr().out) and "2 right, 0 refused, 0 wrong" in said

    def wrong(problem, device):
        raise AssertionError(f"{problem.seed} is off")

    monkeypatch.setattr(sdpa_in_torch, "held", wrong)
    assert script["main"](few) == 1
    assert "8 is off" in (said := capsys.readouterr().out) and "0 right, 0 refused, 2 wrong" in said
    other, row = json.loads(record.read_text())
    assert other["seed"] == 6 and (row["seed"], row["problems"], row["wrong"]) == (7, 2, [7, 8])
