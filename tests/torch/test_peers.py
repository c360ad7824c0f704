"""bench/peers: every problem means for scoremod what PyTorch means by its functions; a peer that computes something else is no peer."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH / "peers"))

import by_hand  # noqa: E402
import cases  # noqa: E402
import choices  # noqa: E402
import masks  # noqa: E402
import measure  # noqa: E402
import shapes as shapes_module  # noqa: E402
import unseen  # noqa: E402

OPTIONS = SimpleNamespace(batch=2, heads=2, seq=256, dim=16, device="cpu", dtype=torch.float32, seed=0, unseen=0)
IMPLEMENTATIONS = ["scoremod", "torch_sdpa"]


def options(**changed):
    return SimpleNamespace(**(vars(OPTIONS) | {"implementations": IMPLEMENTATIONS} | changed))


def dense(case, q, k, v):
    """The functions on whole tensors of indices, as PyTorch reads them."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    sizes = (*q.shape[:3], k.shape[2])
    indices = [torch.arange(size).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, size in enumerate(sizes)]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if case.score_mod is not None:
        scores = case.score_mod(scores, *indices)
    mask = case.mask_of_all()
    if mask is not None:
        scores = torch.where(mask(*indices), scores, -torch.inf)
    return torch.softmax(scores, -1) @ v


def expect_pytorchs_meaning(name, options):
    case = cases.case(name, options)
    q, k, v, d_o = measure.tensors(case, options)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    ours = measure.implementations.build("scoremod", case, q, k)(q, k, v)
    theirs = dense(case, q, k, v)
    assert measure.difference(theirs, ours) < 1e-5
    wanted = (q, k, v, *case.learned)
    for ours_one, theirs_one in zip(torch.autograd.grad(ours, wanted, d_o), torch.autograd.grad(theirs, wanted, d_o)):
        assert measure.difference(theirs_one, ours_one) < 1e-4


@pytest.mark.parametrize("name", cases.TABLE)
def test_means_what_pytorch_means_by_its_functions(name):
    expect_pytorchs_meaning(name, OPTIONS)


def test_unseen_cases_mean_it_too(seed):
    drawn = options(unseen=6, seed=seed)
    for name in cases.names(drawn):
        expect_pytorchs_meaning(name, drawn)


def test_unseen_cases_are_a_seeds_and_have_lengths_that_fill_no_tile():
    assert unseen.drawn(40, 1) == {name: each for name, each in unseen.drawn(200, 1).items() if int(name[7:]) < 40} != unseen.drawn(40, 2)
    found = [shape for _, shape in unseen.drawn(200, 1).values()]
    whole = sum(shape.queries % 128 == 0 for shape in found)
    assert 60 < whole < 140 and {shape.dim for shape in found} == set(unseen.DIMS)
    assert {modifier[0] if isinstance(modifier, tuple) else modifier for modifier, _ in unseen.drawn(200, 1).values()} == {
        *unseen.MODIFIERS,
        unseen.DRAWN_WINDOW,
    }
    assert all(shape.batch * shape.queries <= max(unseen.TOKENS[1], shape.queries) for shape in found)


def test_masks_leave_something_out_and_something_in():
    for name in cases.TABLE:
        case = cases.case(name, OPTIONS)
        mask = case.mask_of_all()
        if mask is None:
            continue
        sizes = (case.shape.batch, case.shape.heads, case.shape.queries, case.shape.keys)
        indices = [torch.arange(size).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, size in enumerate(sizes)]
        kept = mask(*indices).expand(sizes)
        assert 0.02 < kept.float().mean() < 0.98, name
        for axis, varies in enumerate(case.mask_varies):
            first = kept.narrow(axis, 0, 1).expand_as(kept)
            assert torch.equal(first, kept) != varies, (name, axis)


def test_shapes_are_as_named_at_the_default_sizes():
    whole = options(batch=4, heads=16, seq=4096, dim=128, dtype=torch.bfloat16, device="cpu")
    shapes = {name: shape.scaled(whole) for name, shape in shapes_module.SHAPES.items()}
    assert {(shapes[name].batch * shapes[name].queries) for name in ("", "1k", "2k", "8k", "16k", "d64", "d256", "packed")} == {16384}
    assert (shapes["gqa_32_8"].heads, shapes["gqa_32_8"].kv_heads) == (32, 8) and (shapes["gqa_64_8"].heads, shapes["gqa_64_8"].kv_heads) == (64, 8)
    assert (shapes["d192_128"].dim, shapes["d192_128"].dim_v) == (192, 128)
    assert (shapes["f16"].dtype, shapes[""].dtype) == ("float16", "bfloat16")
    rows = sum(1 if "deterministic" in modifier or modifier == "decode" else 2 for modifier, _, _ in cases.TABLE.values())
    assert rows >= 150


def test_lengths_of_sequences_are_all_tokens():
    for name in ("lognormal", "one_long"):
        lengths = masks.lengths_of(name, 16384, 0)
        assert sum(lengths) == 16384 and min(lengths) > 0
        assert max(lengths) > 4 * sorted(lengths)[len(lengths) // 2]


def test_what_computes_something_else_is_refused(monkeypatch):
    case = cases.case("causal", OPTIONS)
    right = measure.implementations.build

    def one_is_wrong(name, case, q, k):
        return right("scoremod", cases.case("full", OPTIONS) if name == "torch_sdpa" else case, q, k)

    monkeypatch.setattr(measure.implementations, "build", one_is_wrong)
    measured = measure.Measured(case, options())
    assert {name for name, _ in measured.calls} == {"scoremod"}
    assert all("from causal's first" in row["refused"] for row in measured.rows)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs measure.py's main with small sizes on a machine and a commit that are named so; the report that it leaves."""
    output = tmp_path / "peers.json"
    small = "--device cpu --dtype float32 --batch 1 --heads 2 --seq 64 --dim 16 --implementations scoremod,scoremod_cudnn,torch_sdpa"

    def run(*arguments, machine="A, 1", commit="c"):
        monkeypatch.setattr(sys, "argv", ["measure.py", str(output), *small.split(), *arguments])
        monkeypatch.setenv("SCOREMOD_MACHINE", machine)
        monkeypatch.setenv("SCOREMOD_COMMIT", commit)
        measure.main()
        return json.loads(output.read_text())

    return run


def test_writes_times_and_reasons(run):
    report = run("--cases", "causal,documents,causal_deterministic")
    rows = {(row["case"], row["direction"], row["implementation"]): row for row in report["results"]}
    assert rows["causal", "backward", "scoremod"]["ms"] > 0 and rows["causal", "forward", "scoremod"]["engine"] == "cpu"
    assert "no words" in rows["documents", "forward", "torch_sdpa"]["refused"]
    assert ("causal_deterministic", "forward", "scoremod") not in rows
    assert rows["causal_deterministic", "backward", "scoremod"]["ms"] > 0
    assert report["cases"]["causal"]["queries"] == 64 and "documents" not in report["not_run"] and "full_1k" in report["not_run"]
    assert report["regret"]["rows"] == 5
    assert not torch.are_deterministic_algorithms_enabled()


def test_continues_a_report_of_the_same_gpu_and_commit(run, capsys):
    report = run("--cases", "causal,causal_1k")
    assert run("--cases", "causal,varlen_lognormal,full_d192_128", "--list", machine="A, 2") == report
    assert capsys.readouterr().out.splitlines()[-1] == "full_d192_128 varlen_lognormal"
    continued = run("--cases", "causal,varlen_lognormal,full_d192_128", machine="A, 2")
    assert continued["results"][: len(report["results"])] == report["results"]
    assert list(continued["cases"]) == ["causal", "causal_1k", "full_d192_128", "varlen_lognormal"]
    assert sum(continued["cases"]["varlen_lognormal"]["lengths"]) == 256
    for changed, found in (({"machine": "B, 1"}, "GPU 'B', found 'A'"), ({"commit": "d"}, "commit 'd', found 'c'")):
        with pytest.raises(SystemExit, match=found):
            run(**changed)


def test_a_record_of_unseen_cases_has_their_seed_and_continues_with_no_other(run):
    report = run("--unseen", "2", "--seed", "5")
    assert report["unseen"] == {"cases": 2, "seed": 5} and list(report["cases"]) == ["unseen_0", "unseen_1"] and report["not_run"] == []
    assert report["cases"]["unseen_0"]["shape"] == "unseen"
    for other in (["--unseen", "2", "--seed", "6"], ["--cases", "causal"]):
        with pytest.raises(SystemExit, match="remove it to begin anew"):
            run(*other)


def test_a_run_that_is_out_of_time_says_what_is_left(run, capsys):
    run("--cases", "causal")
    report = run("--cases", "full,causal,full_1k", "--seconds", "-1")
    assert list(report["cases"]) == ["causal"] and "no time was left for full" in capsys.readouterr().out


def test_a_case_that_is_none_is_named(run, capsys):
    with pytest.raises(SystemExit):
        run("--cases", "causal,casual")
    assert "found casual" in capsys.readouterr().err


def test_a_crash_leaves_the_stacks_of_python():
    """Nothing else would tell which library of the process it was."""
    is_enabled = "import faulthandler; print(faulthandler.is_enabled())"
    program = f"import runpy, sys; sys.path.insert(0, sys.argv[1]); sys.argv[1:2] = []; runpy.run_module('measure', run_name='__main__'); {is_enabled}"
    measured = subprocess.run([sys.executable, "-c", program, BENCH / "peers", "none.json", "--list"], capture_output=True, text=True)
    assert measured.stdout.splitlines() == [" ".join(cases.TABLE), "True"], measured.stderr
    environment = BENCH.parent / "tools" / "device" / "environment.sh"
    script = f"source {environment}; exec {sys.executable} -c '{is_enabled}'"
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert found.stdout.strip() == "True", found.stderr


def test_the_engine_of_a_backward_is_the_one_of_all_gradients_that_it_times(monkeypatch):
    def explained(*_, **__):
        return SimpleNamespace(backend="cudnn", backward_backend="kernels", gradient_backends=dict.fromkeys(("dq", "dk", "dv", "d_x0"), "cudnn") | more)

    monkeypatch.setattr(measure.implementations, "explain", explained)
    alone = options(implementations=["scoremod"])
    learned, fixed = (measure.Measured(cases.case(name, OPTIONS), alone) for name in ("bias_learned", "bias"))
    more = {}
    assert learned.engines() == {"forward": "cudnn", "backward": "cudnn"}
    more = {"d_x0": "kernels"}
    assert learned.engines() == {"forward": "cudnn", "backward": "cudnn and kernels"}
    assert fixed.engines() == {"forward": "cudnn", "backward": "kernels"}


def row(case, implementation, ms, direction="forward"):
    return {"case": case, "direction": direction, "implementation": implementation, "ms": ms}


def three_rows():
    good = (("scoremod", 1.0), ("scoremod_cudnn", 1.01), ("scoremod_kernels", 2.0), ("fa4", 1.5), ("flex_flash_mask_in_call", 0.9))
    bad = (("scoremod", 2.0), ("scoremod_cudnn", 2.0), ("scoremod_kernels", 1.0), ("flex_triton", 1.5))
    results = [row("good", *each) for each in good] + [row("bad", *each) for each in bad]
    # An engine that refuses a row is no choice that was missed.
    results += [row("alone", "scoremod", 1.02, "backward"), row("alone", "scoremod_kernels", 1.0, "backward")]
    results.append({"case": "alone", "direction": "backward", "implementation": "scoremod_cudnn", "refused": "no"})
    return {"machine": "A GPU, 1", "commit": "0123456789", "results": results}


def test_regret_is_what_was_chosen_by_the_fastest_engine():
    report = three_rows()
    assert choices.regrets(report) == [
        ("bad", "forward", 2.0, "kernels"),
        ("alone", "backward", 1.02, "kernels"),
        ("good", "forward", pytest.approx(1 / 1.01), "cudnn"),
    ]
    above = [{"case": "bad", "direction": "forward", "regret": 2.0, "faster": "kernels"}]
    assert choices.regret(report) == {"rows": 3, "worst": 2.0, "median": 1.02, "above": above}
    assert choices.regret({"results": []}) == {}


def test_faster_peers_are_named_and_masks_made_in_calls_stand_apart():
    report = three_rows()
    assert choices.against_peers(report) == [("bad", "forward", 0.75, "flex_triton"), ("good", "forward", 1.5, "fa4")]
    lines = choices.slower(report)
    assert "| `bad` | forward | Triton | 0.75 |" in lines and "| `good` | 1.000 | FLASH | 0.900 | 0.90 |" in lines
    assert "| `good` | 1.000 | 1.50 FA4 | - | - |" in choices.table(report)


def test_cases_are_summed_up_by_their_sizes_or_by_what_they_do():
    report = three_rows()
    report["cases"] = {
        "good": {"shape": "1k", "modifier": "causal"},
        "bad": {"shape": "", "modifier": "window_512"},
        "alone": {"shape": "", "modifier": "full"},
    }
    assert choices.summary(report)[4:] == [
        "| masks | 0.75 | - | 0.75 Triton, `bad` forward |",
        "| length 1k, no mask and masks | 1.50 | - | 1.50 FA4, `good` forward |",
    ]


def test_cudnn_by_hand_is_added_to_cases_of_the_same_name_and_size():
    shape = {"batch": 4, "heads": 2, "queries": 64, "dim": 16}
    named = {"causal": shape, "documents": shape, "decode_1_of_8192": {**shape, "batch": 16}}
    report = {"machine": "a", "commit": "b", "cases": named}
    ours = {"direction": "forward", "implementation": "scoremod_cudnn", "ms": 1.0}
    report["results"] = [{"case": case, **ours} for case in named]
    sizes = {"batch": 4, "heads": 2, "sequence": 64, "head_dim": 16, "direction": "forward", "ms": 1.5}
    rows = [("causal", sizes, 1.25), ("documents", {**sizes, "sequence": 128}, 1.0), ("padding", sizes, 1.0)]
    rows += [("decode_1_of_8192", {**sizes, "batch": 16}, 2.0), ("causal", {**sizes, "direction": "backward"}, None)]
    bench = {"machine": "a", "commit": "b", "results": [{"case": case, **size, "reference_ms": ms} for case, size, ms in rows]}
    once = by_hand.with_cudnn(report, bench)
    assert once == by_hand.with_cudnn(once, bench)
    added = [row for row in once["results"] if row["implementation"] == "cudnn"]
    assert [(row["case"], row["ms"], row["reference_ms"]) for row in added] == [("causal", 0.8333, 1.25), ("decode_1_of_8192", 1.3333, 2.0)]
    assert by_hand.names(report) == ["causal", "documents", "decode_1_of_8192"] and by_hand.names(once) == ["documents"]
    with pytest.raises(ValueError, match="reports of one run, found commit 'b' and 'c'"):
        by_hand.with_cudnn(report, {**bench, "commit": "c"})
