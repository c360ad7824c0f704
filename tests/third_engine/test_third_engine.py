"""A libscoremod with one more backend in a folder of its own. From C, the command, Python and JAX it is chosen by predicted time, verified,
stored, built ahead of time, explained, and refused with ids."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SCOREMOD_BUILD_DIR", ROOT / "build" / "release"))
LIBRARY = BUILD / "third_engine" / "lib" / "libscoremod.so"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")

PROBLEM = {
    "batch": 1,
    "heads_q": 2,
    "seq_q": 40,
    "seq_kv": 40,
    "dim_qk": 16,
    "backward": True,
    "program": "operand slope: f32 [h]; value = score * slope; keep = kv_idx <= q_idx",
}


def environment(store):
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "SCOREMOD_LIBRARY": str(LIBRARY),
        "SCOREMOD_JAX_LIBRARY": str(BUILD / "lib" / "libscoremod_jax.so"),
        "SCOREMOD_TORCH_LIBRARY": str(BUILD / "lib" / "scoremod_torch.abi3.so"),
        "LD_LIBRARY_PATH": str(LIBRARY.parent),
        "SCOREMOD_CACHE_DIR": str(store),
        "JAX_PLATFORMS": "cpu",
        "SCOREMOD_NEW_SIZES": "wait",  # for the plans that the tests are about
    }


def run(store, *arguments):
    done = subprocess.run([str(argument) for argument in arguments], env=environment(store), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(store, code):
    return run(store, sys.executable, "-c", code)


@pytest.fixture
def problem_file(tmp_path):
    def write(**changes):
        path = tmp_path / "problem.json"
        path.write_text(json.dumps({**PROBLEM, **changes}))
        return path

    return write


ATTENTION = f"""
import json, numpy as np, scoremod
problem = {PROBLEM!r}
a = scoremod.Attention(problem)
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal((1, 40, 2, 16)).astype(np.float32) for _ in range(3))
slope = np.array([0.5, 2.0], np.float32)
o = a.forward(q, k, v, operands={{"slope": slope}})
o = o[0] if isinstance(o, tuple) else o
s = np.einsum("bqhd,bkhd->bhqk", q, k) / 4 * slope[:, None, None]
s = np.where(np.tril(np.ones((40, 40), bool)), s, -np.inf)
p = np.exp(s - s.max(-1, keepdims=True))
expected = np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)
np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-5)
statistics = scoremod.cache.statistics()
print(json.dumps([a.backend, statistics["trials"]["count"], statistics["builds"]["count"]]))
"""


def test_is_chosen_by_prediction_verified_and_stored(tmp_path):
    backend, trials, builds = json.loads(python(tmp_path, ATTENTION))
    assert backend == "third"
    # Forward: the wrong candidate, which is predicted to be faster, and the right one; backward: the right one.
    assert trials == 3
    assert builds > 0
    assert json.loads(python(tmp_path, ATTENTION)) == ["third", 0, 0]


def test_is_left_out_and_put_in_order(tmp_path):
    for variable, expected in (("-third", "cpu"), ("reference,third", "reference"), ("third", "third")):
        code = f"import os; os.environ['SCOREMOD_BACKENDS'] = {variable!r}\n" + ATTENTION
        assert json.loads(python(tmp_path, code))[0] == expected


def explain(store, file, *selection):
    return json.loads(run(store, BUILD / "bin" / "scoremod", "explain", "--json", *selection, file))


def test_is_explained_with_what_was_passed_over(tmp_path, problem_file):
    explanation = explain(tmp_path, problem_file())
    third, cpu = (next(row for row in explanation["backends"] if row["backend"] == name) for name in ("third", "cpu"))
    assert third["chosen"] and third["chosen_backward"] and third["why_not_chosen"] is None
    assert not cpu["chosen"] and not cpu["chosen_backward"]
    assert "forward predicted to take" in cpu["why_not_chosen"] and "and third 2e-12 ms" in cpu["why_not_chosen"]
    forward, backward = explanation["patterns"]
    assert (forward["gradients"], backward["gradients"]) == ([], ["dq", "dk", "dv", "d_slope"])
    assert [row["memory"] for row in (forward, backward)] == ["host", "host"]
    wrong, right, *others = forward["candidates"]
    assert (wrong["chosen"], right["chosen"]) == (False, True)
    assert wrong["predicted_ms"] < right["predicted_ms"]
    assert right["prediction_source"] == "made up for a test"
    assert "gave a wrong o" in wrong["refusal"]
    assert [(other["backend"], other["chosen"]) for other in others] == [("cpu", False), ("reference", False)]


def test_is_explained_as_not_chosen_where_another_one_runs(tmp_path, problem_file):
    """A backend that could run alone may not be the one that a call runs: each direction has one candidate."""
    explanation = explain(tmp_path, problem_file(), "--backends", "cpu,third")
    assert [row["backend"] for row in explanation["backends"] if row["chosen"]] == ["cpu"]
    for direction in explanation["patterns"]:
        assert [row["backend"] for row in direction["candidates"] if row["chosen"]] == ["cpu"]
    why = {row["backend"]: row["why_not_chosen"] for row in explanation["backends"] if row["supported"]}
    order = "after cpu in the order of the caller"
    assert why == {"third": f"forward {order}; backward {order}", "cpu": None, "reference": "left out by the caller"}
    in_other_memory = explain(tmp_path, problem_file(), "--memory", "cuda")
    why = {row["backend"]: row["why_not_chosen"] for row in in_other_memory["backends"]}
    assert why["third"] == "its tensors lie in host memory, and the calls' in cuda memory"
    assert not any(row["memory"] == "host" for row in in_other_memory["patterns"])


def test_refuses_with_ids(tmp_path, problem_file):
    explanation = json.loads(run(tmp_path, BUILD / "bin" / "scoremod", "explain", "--json", problem_file(dim_qk=96)))
    third = next(backend for backend in explanation["backends"] if backend["backend"] == "third")
    assert not third["supported"]
    assert [refusal["id"] for refusal in third["refusals"]] == ["head_dim"]
    assert [backend["backend"] for backend in explanation["backends"] if backend["chosen"]] == ["cpu"]


def test_is_built_ahead_of_time_by_the_command(tmp_path, problem_file):
    store = tmp_path / "plans"
    device = ROOT / "src" / "backend" / "cudnn" / "devices" / "h200.json"
    command = BUILD / "bin" / "scoremod"
    rows = json.loads(run(tmp_path, command, "compile", "--json", "--backend", "third", "--device", device, "-o", store, problem_file()))
    assert {row["direction"] for row in rows} == {"forward", "backward"}
    assert all(row["stored"] and row["backend"] == "third" for row in rows)
    assert any(store.iterdir())


def test_runs_from_c(tmp_path):
    assert run(tmp_path, BUILD / "bin" / "third_engine_runs_on_third").split() == ["third", "3", "4"]


JAX = f"""
import json
import jax, jax.numpy as jnp, numpy as np, scoremod
from scoremod.jax import explain, flex_attention, support
rng = np.random.default_rng(1)
arrays = [rng.standard_normal((1, 40, 2, 16)).astype(np.float32) for _ in range(3)] + [np.array([0.5, 2.0], np.float32)]
modifiers = lambda slope: (lambda score, b, h, i, j: score * slope[h], lambda b, h, i, j: j <= i)

def results(**options):
    def loss(q, k, v, slope):
        o = flex_attention(q, k, v, *modifiers(slope), **options)
        return (o**2).sum() / 2, o
    (_, o), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*map(jnp.asarray, arrays))
    return [np.asarray(x, np.float64) for x in (o, *gradients)]

trials = lambda: scoremod.cache.statistics()["trials"]["count"]
got, tried = results(), trials()
oracle = scoremod.Attention({PROBLEM!r}, backend="reference")
o, lse = oracle.forward(*arrays[:3], {{"slope": arrays[3]}}, return_lse=True)
gradients = oracle.backward(*arrays[:3], o, lse, o, {{"slope": arrays[3]}})
wants = [o, gradients.dq, gradients.dk, gradients.dv, gradients.d_operands["slope"]]
for x, xla, want in zip(got, results(backend="xla"), wants, strict=True):
    band = 4 * np.finfo(np.float32).eps * np.linalg.norm(want)
    # Of few numbers, such as the slopes' gradients, another evaluation's error is too small a sample, and so is the largest one of many. Of new seeds one
    # in three thousand would be beyond this: what is tested is who computes, on one.
    times = 8 if want.size < 16 else 2
    np.testing.assert_array_less(np.linalg.norm(x - want), times * np.linalg.norm(xla - want) + band)
results(backends="-third")
explanation = explain(*arrays[:3], *modifiers(jnp.asarray(arrays[3])))
too_wide = jnp.ones((1, 8, 1, 96))
print(json.dumps([explanation.backend, explanation.decided_by, support(too_wide, too_wide, too_wide)["third"], tried, trials()]))
"""


def test_serves_jax(tmp_path):
    pytest.importorskip("jax")
    backend, decided_by, reasons, tried, tried_in_all = json.loads(python(tmp_path, JAX))
    assert (backend, decided_by) == ("third", "predicted time")
    # As above: the wrong candidate and the right one of the forward, the right one of the backward; nothing for those after it.
    assert tried == tried_in_all == 3
    assert len(reasons) == 1 and "dim_qk is 96: the third engine" in reasons[0]
    code = "import os; os.environ['SCOREMOD_BACKENDS'] = 'reference,third'\n" + JAX
    assert json.loads(python(tmp_path / "another", code))[:2] == ["reference", "SCOREMOD_BACKENDS"]


SERVED = ATTENTION.replace(
    "\na = scoremod.Attention(problem)\n",
    """
import os, pathlib, time
a = scoremod.Attention(problem, new_sizes="serve")
""",
).split("statistics =")[0]
BY_ENVIRONMENT = SERVED.replace('new_sizes="serve"', "").replace("\nimport os,", "\nimport os; os.environ['SCOREMOD_NEW_SIZES'] = 'serve'\nimport os,")


BY_DEFAULT = BY_ENVIRONMENT.replace("os.environ['SCOREMOD_NEW_SIZES'] = 'serve'", "del os.environ['SCOREMOD_NEW_SIZES']")


@pytest.mark.parametrize("served", [SERVED, BY_ENVIRONMENT, BY_DEFAULT], ids=["option", "environment", "default"])
def test_the_ready_backend_serves_until_the_faster_plan_is_built(tmp_path, served):
    """The CPU's plan costs nothing to make; the third engine's waits for a file."""
    file = tmp_path / "may_build"
    code = (
        f"import os; os.environ['THIRD_BUILD_WAITS_FOR'] = {str(file)!r}\n"
        + served
        + f"""
backends = [a.backend]
pathlib.Path({str(file)!r}).touch()
end = time.monotonic() + 60
while a.backend == "cpu" and time.monotonic() < end:
    a.forward(q, k, v, operands={{"slope": slope}})
    time.sleep(0.005)
backends.append(a.backend)
again = a.forward(q, k, v, operands={{"slope": slope}})
np.testing.assert_allclose(again[0] if isinstance(again, tuple) else again, expected, rtol=1e-4, atol=1e-5)
print(json.dumps(backends))
"""
    )
    assert json.loads(python(tmp_path, code)) == ["cpu", "third"]


def test_an_option_to_wait_comes_before_the_environment(tmp_path):
    code = BY_ENVIRONMENT.replace("scoremod.Attention(problem, )", 'scoremod.Attention(problem, new_sizes="wait")')
    assert json.loads(python(tmp_path, code + "\nprint(json.dumps(a.backend))")) == "third"


def test_a_plan_that_fails_beside_leaves_what_serves_and_is_explained(tmp_path):
    code = (
        "import os; os.environ['THIRD_BUILD_FAILS'] = '1'\n"
        + SERVED
        + """
for _ in range(70):
    a.forward(q, k, v, operands={"slope": slope})
# explain() builds, too: the build beside has to be the first.
time.sleep(3)
end, text = time.monotonic() + 60, ""
while "broken" not in text and time.monotonic() < end:
    text = json.dumps(scoremod.explain(problem))
print(json.dumps([a.backend, "the third engine's library is broken" in text]))
"""
    )
    assert json.loads(python(tmp_path, code)) == ["cpu", True]


def test_a_process_ends_while_a_plan_is_built_beside(tmp_path):
    file = tmp_path / "may_build"
    code = (
        f"import os, threading; os.environ['THIRD_BUILD_WAITS_FOR'] = {str(file)!r}\n"
        + SERVED
        + f"""
for _ in range(70):
    a.forward(q, k, v, operands={{"slope": slope}})
threading.Timer(0.3, pathlib.Path({str(file)!r}).touch).start()
print(json.dumps(a.backend))
"""
    )
    assert json.loads(python(tmp_path, code)) == "cpu"
