"""bench/peers: every problem means for scoremod what PyTorch means by its functions; a peer that computes something else is no peer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scoremod.torch import flex_attention

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH / "peers"))

import by_hand  # noqa: E402
import cases  # noqa: E402
import measure  # noqa: E402

OPTIONS = SimpleNamespace(batch=2, heads=2, seq=256, dim=16, device="cpu", dtype=torch.float32, seed=0)
CASES = {case.name: case for case in cases.cases(OPTIONS)}


def dense(case, q, k, v):
    """The functions on whole tensors of indices, as PyTorch reads them."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    sizes = (*q.shape[:3], k.shape[2])
    indices = [torch.arange(size).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, size in enumerate(sizes)]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if case.score_mod is not None:
        scores = case.score_mod(scores, *indices)
    if case.mask_mod is not None:
        scores = torch.where(case.mask_mod(*indices), scores, -torch.inf)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("name", CASES)
def test_means_what_pytorch_means_by_its_functions(name):
    case = CASES[name]
    q, k, v, d_o = measure.tensors(case, OPTIONS)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    ours = flex_attention(q, k, v, case.score_mod, mask_mod=case.mask_mod, enable_gqa=q.shape[1] != k.shape[1])
    theirs = dense(case, q, k, v)
    assert measure.difference(theirs, ours) < 1e-5
    wanted = (q, k, v, *case.learned)
    for ours_one, theirs_one in zip(torch.autograd.grad(ours, wanted, d_o), torch.autograd.grad(theirs, wanted, d_o)):
        assert measure.difference(theirs_one, ours_one) < 1e-4


def test_masks_leave_something_out_and_something_in():
    index = torch.arange(256)
    for name, mask in cases.masks(256, "cpu").items():
        share = mask(0, 0, index[:, None], index[None, :]).expand(256, 256).float().mean()
        assert 0.02 < share < 0.8, name


def test_what_computes_something_else_is_refused(monkeypatch):
    case = CASES["causal"]
    right = measure.implementations.build

    def one_is_wrong(name, case, q, k):
        return right("scoremod", CASES["full"] if name == "torch_sdpa" else case, q, k)

    monkeypatch.setattr(measure.implementations, "build", one_is_wrong)
    options = SimpleNamespace(**vars(OPTIONS), implementations=["scoremod", "torch_sdpa"])
    measured = measure.Measured(case, options)
    assert {name for name, _ in measured.calls} == {"scoremod"}
    assert all("from causal's first" in row["refused"] for row in measured.rows)


def test_writes_times_and_reasons(tmp_path):
    output = tmp_path / "peers.json"
    command = [sys.executable, BENCH / "peers" / "measure.py", output, "--cases", "causal,documents", "--implementations", "scoremod,torch_sdpa"]
    small = "--device cpu --dtype float32 --batch 1 --heads 2 --seq 64 --dim 16".split()
    done = subprocess.run([*command, *small], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(BENCH.parent / "python")})
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    rows = {(row["case"], row["direction"], row["implementation"]): row for row in report["results"]}
    assert rows["causal", "backward", "scoremod"]["ms"] > 0 and rows["causal", "forward", "scoremod"]["engine"] == "cpu"
    assert "no words" in rows["documents", "forward", "torch_sdpa"]["refused"]
    assert report["not_run"] == []


def test_the_engine_of_a_backward_is_the_one_of_all_gradients_that_it_times(monkeypatch):
    def explained(*_, **__):
        return SimpleNamespace(backend="cudnn", backward_backend="kernels", gradient_backends=dict.fromkeys(("dq", "dk", "dv", "d_x0"), "cudnn") | more)

    monkeypatch.setattr(measure.scoremod.torch, "explain", explained)
    options = SimpleNamespace(**vars(OPTIONS), implementations=["scoremod"])
    learned, fixed = (measure.Measured(CASES[name], options) for name in ("bias_learned", "bias"))
    more = {}
    assert learned.engines() == {"forward": "cudnn", "backward": "cudnn"}
    more = {"d_x0": "kernels"}
    assert learned.engines() == {"forward": "cudnn", "backward": "cudnn and kernels"}
    assert fixed.engines() == {"forward": "cudnn", "backward": "kernels"}


def test_names_wrong_choices_and_faster_peers():
    import choices

    def row(case, implementation, ms):
        return {"case": case, "direction": "forward", "implementation": implementation, "ms": ms}

    report = {
        "results": [
            *(row("good", name, ms) for name, ms in (("scoremod", 1.0), ("scoremod_cudnn", 1.01), ("scoremod_kernels", 2.0), ("fa4", 1.5))),
            *(row("bad", name, ms) for name, ms in (("scoremod", 2.0), ("scoremod_cudnn", 2.0), ("scoremod_kernels", 1.0), ("flex_triton", 1.5))),
        ]
    }
    assert choices.wrong_choices(report) == [("bad", "forward", 1.0, "kernels")]
    assert choices.against_peers(report) == [("bad", "forward", 0.75, "flex_triton"), ("good", "forward", 1.5, "fa4")]


def test_cudnn_by_hand_is_added_to_cases_of_the_same_name_and_size():
    report = {"machine": "a", "commit": "b", "shape": {"batch": 4, "heads": 2, "seq": 64, "dim": 16}}
    ours = {"direction": "forward", "implementation": "scoremod_cudnn", "ms": 1.0}
    report["results"] = [{"case": case, **ours} for case in ("causal", "documents", "decode_1_of_8192")]
    sizes = {"batch": 4, "heads": 2, "sequence": 64, "head_dim": 16, "direction": "forward", "ms": 1.5}
    rows = [("causal", sizes, 1.25), ("documents", {**sizes, "sequence": 128}, 1.0), ("padding", sizes, 1.0)]
    rows += [("decode_1_of_8192", {**sizes, "batch": 16}, 2.0), ("causal", {**sizes, "direction": "backward"}, None)]
    bench = {"machine": "a", "commit": "b", "results": [{"case": case, **size, "reference_ms": ms} for case, size, ms in rows]}
    once = by_hand.with_cudnn(report, bench)
    assert once == by_hand.with_cudnn(once, bench)
    added = [row for row in once["results"] if row["implementation"] == "cudnn"]
    assert [(row["case"], row["ms"], row["reference_ms"]) for row in added] == [("causal", 0.8333, 1.25), ("decode_1_of_8192", 1.3333, 2.0)]
    with pytest.raises(ValueError, match="reports of one run, found commit 'b' and 'c'"):
        by_hand.with_cudnn(report, {**bench, "commit": "c"})
