"""The calls of fuzz/fuzz_python_calls.py hold for its seeds and for random inputs, and it finds what is wrong."""

import random as pseudo_random
import sys
from pathlib import Path

import pytest
import torch

import scoremod

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fuzz"))
from python_calls import held  # noqa: E402
from python_calls.drawn_call import draw  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SEEDS = sorted((ROOT / "fuzz/seeds/python_calls").iterdir())
DECISIONS = 90


def hold(data):
    call = draw(data)
    torch.manual_seed(call.seed)
    print(data.hex(), call.shown(), sep="\n")
    return held.hold(call)


@pytest.mark.parametrize("file", [None, *SEEDS], ids=lambda file: getattr(file, "name", "nothing"))
@pytest.mark.filterwarnings("ignore")
def test_a_seed_is_taken(file):
    assert hold(b"" if file is None else file.read_bytes())


@pytest.mark.filterwarnings("ignore")
def test_random_inputs(seed):
    choose, taken = pseudo_random.Random(seed), 0
    for _ in range(300):
        share = choose.choice([0.1, 0.3, 0.6])
        taken += hold(bytes(choose.choice([choose.randrange(8), choose.randrange(256)]) if choose.random() < share else 0 for _ in range(DECISIONS)))
    assert 30 < taken < 300


def written(o, query):
    query.data.mul_(2)
    return o


FAULTS = {
    "numbers": lambda o, query: o * 1.001,
    "gradients": lambda o, query: o + 0.01 * (query.sum() - query.sum().detach()),
    "dtype": lambda o, query: o.double(),
    "shape": lambda o, query: o[..., :1],
    "results": lambda o, query: (o, None),
    "written": written,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_result_is_found(fault, monkeypatch):
    def wrong(query, **arguments):
        return FAULTS[fault](scoremod.torch.flex_attention(query, **arguments), query)

    monkeypatch.setattr(held, "flex_attention", wrong)
    with pytest.raises(held.FailedError):
        hold((ROOT / "fuzz/seeds/python_calls/dense_gradients").read_bytes())


@pytest.mark.parametrize("error", [scoremod.BugError, scoremod.EnvironmentError, AttributeError, IndexError, RuntimeError, TypeError, RecursionError])
def test_another_error_is_found(error, monkeypatch):
    def wrong(**arguments):
        raise error("of another kind")

    monkeypatch.setattr(held, "flex_attention", wrong)
    with pytest.raises(error):
        hold(b"")
