"""support() on random problems: its reasons are those of the list, concern what the problem asks for, and are what compiling raises."""

import os
import random
import re
from pathlib import Path

import pytest
import scoremod

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("SCOREMOD_TEST_SEED", 0)) or int.from_bytes(os.urandom(4), "little")
LISTED = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/unsupported_reasons.md").read_text(encoding="utf-8"), re.MULTILINE))
DEVICES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "src/backend/cudnn/devices").glob("*.json")}
PROGRAMS = ("value = score", "value = 5.0 * tanh(score / 5.0)", "value = sin(score)", "value = score\nkeep = q_idx >= kv_idx", {"score_mod": ["alibi"]})
# Reasons of a device, its libraries, its memory or its own checks, which any problem may have.
OF_THE_DEVICE = {
    "no_device",
    "no_library",
    "unexplored_version",
    "verification_forbidden",
    "no_lowering",
    "engine_refused",
    "no_trial",
    "wrong_result",
    "workspace_limit",
}
# The other ids -> whether the problem asks for what such a reason is about.
CONCERNS = {
    "dtype": lambda p: p["dtype"] == "f32",
    "head_dim": lambda p: p["dim_qk"] % 8 or p["dim_v"] % 8 or max(p["dim_qk"], p["dim_v"]) > 128,
    "copy_alignment": lambda p: p["dim_qk"] % 8 or p["dim_v"] % 8,
    "deterministic": lambda p: p["backward"] and p.get("deterministic"),
    "one_query_row": lambda p: p["backward"] and p["seq_q"] < 16,
    "sink": lambda p: p["backward"] and p.get("sink"),
    "dropout": lambda p: p.get("dropout"),
    "max_logit": lambda p: p.get("max_logit"),
    "ragged": lambda p: "tokens_q" in p,
    "paged": lambda p: "paged" in p,
    "no_operand_gradient": lambda p: p["backward"] and isinstance(p["program"], dict),
}
PROBLEMS = 60


def random_problem(rng):
    """A problem with each option in some of the cases."""
    heads = rng.choice([1, 2])
    problem = {
        "batch": rng.choice([1, 3]),
        "heads_q": 2 * heads,
        "heads_kv": heads,
        "seq_q": rng.choice([1, 7, 64]),
        "seq_kv": rng.choice([5, 64]),
        "dim_qk": rng.choice([8, 20, 64, 128, 264]),
        "dtype": rng.choice(["f32", "f16", "bf16", "bf16"]),
        "program": rng.choice(PROGRAMS),
        "layout": rng.choice(["BSHD", "BHSD"]),
        "backward": rng.random() < 0.5,
        "stats": rng.random() < 0.5,
    }
    problem["dim_v"] = rng.choice([problem["dim_qk"], 64])
    options = {"sink": "learned", "dropout": 0.5, "max_logit": True, "deterministic": True, "lengths": {"kv": True}}
    problem |= {field: value for field, value in options.items() if rng.random() < 0.2}
    if rng.random() < 0.2:
        problem |= {"tokens_q": problem["batch"] * problem["seq_q"], "tokens_kv": problem["batch"] * problem["seq_kv"]}
        problem.pop("layout")
    elif rng.random() < 0.2 and not problem["backward"]:
        problem |= {"paged": {"block_size": 16, "blocks": 8, "blocks_per_sequence": 4}, "seq_kv": 64, "lengths": {"kv": True}}
    return problem


def problems():
    print(f"SCOREMOD_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    return [random_problem(rng) for _ in range(PROBLEMS)]


def faults(problem, answer):
    """A line for each thing in an answer that is not so."""
    ids = [refusal["id"] for refusal in answer["refusals"]]
    yield from (f"{each} is not in the list" for each in ids if each not in LISTED)
    yield from (
        f"{each} is about what the problem doesn't ask for" for each in ids if each not in OF_THE_DEVICE and not CONCERNS.get(each, lambda p: False)(problem)
    )
    if answer["memory"] == "host" and ids:
        yield f"a backend of the host refuses: {ids}"
    if answer["supported"] != (not ids):
        yield f"supported is {answer['supported']} beside {ids}"
    if answer["forward_supported"] != all(refusal["direction"] == "backward" for refusal in answer["refusals"]):
        yield f"forward_supported is {answer['forward_supported']} beside {answer['refusals']}"
    if not all(refusal["text"] and refusal["remedy"] for refusal in answer["refusals"]):
        yield f"a reason has no text or no remedy: {answer['refusals']}"


def answers_everywhere(problem):
    for properties in (None, *DEVICES.values()):
        yield from scoremod.support(problem, level="static", device_properties=properties)


def test_reasons_are_listed_and_are_about_the_problem():
    assert len(DEVICES) > 3 and len(LISTED) > 20
    seen = set()
    for problem in problems():
        for answer in answers_everywhere(problem):
            assert list(faults(problem, answer)) == [], (answer["backend"], problem)
            seen |= {refusal["id"] for refusal in answer["refusals"]}
    if any(answer["memory"] == "cuda" for answer in scoremod.support(problems()[0], level="static")):
        assert {"dtype", "head_dim", "dropout", "max_logit"} <= seen


def test_compiling_agrees():
    """A backend compiles what it supports, and gives the same reasons for what it refuses."""
    for problem in problems():
        for answer in scoremod.support(problem):
            if answer["supported"]:
                assert scoremod.Attention(problem, backend=answer["backend"]).backend == answer["backend"]
                continue
            with pytest.raises(scoremod.UnsupportedError) as refused:
                scoremod.Attention(problem, backend=answer["backend"])
            both = [refusal["text"] for refusal in answer["refusals"] if not refusal["direction"]]  # such a one hides those of a direction
            wanted = both or [refusal["text"] for refusal in answer["refusals"]]
            assert all(text in str(refused.value) for text in wanted), (answer, str(refused.value))


PLAIN = {"batch": 1, "heads_q": 2, "seq_q": 64, "dim_qk": 64, "dim_v": 64, "dtype": "bf16", "backward": True, "program": "value = score"}


def refusing(**changes):
    return {"memory": "cuda", "supported": False, "forward_supported": False} | {
        "refusals": [{"id": "paged", "direction": "", "text": "expected dense keys", "remedy": "gather them"} | changes]
    }


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (refusing(id="no_beads"), "no_beads is not in the list"),
        (refusing(id="dropout"), "dropout is about what the problem doesn't ask for"),
        (refusing() | {"memory": "host"}, "a backend of the host refuses"),
        (refusing() | {"supported": True}, "supported is True beside"),
        (refusing(direction="backward"), "forward_supported is False beside"),
        (refusing(remedy=""), "no text or no remedy"),
    ],
)
def test_answers_that_are_wrong_are_seen(answer, complaint):
    problem = {**PLAIN, "paged": {}} if answer["refusals"][0]["id"] == "paged" else PLAIN
    assert list(faults({**PLAIN, "paged": {}}, refusing())) == []
    assert any(complaint in fault for fault in faults(problem, answer))
