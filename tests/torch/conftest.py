"""The bindings importable without PYTHONPATH, and the seed of random tests."""

import os
import secrets
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
from counted_compiles import compiles, nothing_compiled  # noqa: E402, F401 (fixtures)

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))


def pytest_report_header():
    return f"SCOREMOD_TEST_SEED={SEED}, torch {torch.__version__}"


@pytest.fixture
def seed(request):
    """A number of the run's seed and the test's name, which a failed test prints."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return SEED + sum(map(ord, request.node.name))


@pytest.fixture
def random(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def one_thread():
    """Threads that wait for each other take most of the time of small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def traces(monkeypatch):
    """One entry for each pair of functions that is traced from here on; none is kept from before."""
    from scoremod.torch import kept_traces

    made, trace = [], kept_traces.Tracer.trace

    def counted(self, *functions):
        made.append(functions)
        return trace(self, *functions)

    monkeypatch.setattr(kept_traces.Tracer, "trace", counted)
    monkeypatch.setattr(kept_traces, "_kept", {})
    return made


@pytest.fixture(autouse=True)
def known_calls_are_held_to_their_looks():
    """Eager calls do not compare their tensors with what was prepared, since they were found by them. All tests' do."""
    from scoremod.torch.native import binding
    from scoremod.torch.prepared_calls import AtNewSizes

    def compare(call, tensors):
        assert call.looks.fit(tensors), call.looks.refuse("a known call", tensors)
        if type(call) is AtNewSizes:
            assert_sizes(call, tensors)

    before = binding.observe(compare)
    yield
    binding.observe(before)


def assert_sizes(direction, tensors):
    """An AtNewSizes tells the library the sizes that its tensors have."""
    q, k, v, o = tensors[:4]
    names = [name for name, _ in direction.of_all.operands]
    operands = dict(zip(names, tensors[len(tensors) - len(names) :], strict=True))
    strides = [each.stride() if each.dim() == 4 else (0, each.stride(1), each.stride(0), each.stride(2)) for each in (q, k, v, o)]
    numbers = [number for own in strides for number in own]
    for name, _, has_strides in direction._prepared._operands:
        numbers += [*operands[name].shape, *(operands[name].stride() if has_strides else ())]
    assert [*direction._numbers] == numbers
    if q.dim() == 3:
        lengths = [operands[name].diff().tolist() for name in ("offsets_q", "offsets_kv")]
        batch, heads, heads_kv, *longest, tokens_q, tokens_kv, blocks, columns = direction._sizes
        assert (batch, heads, heads_kv, tokens_q, tokens_kv, blocks, columns) == (len(lengths[0]), q.shape[1], k.shape[1], q.shape[0], k.shape[0], 0, 0)
        assert all(most >= max(own) and most * batch >= sum(own) for most, own in zip(longest, lengths, strict=True))
        return
    pages = operands.get("page_table_k")
    keys, blocks = (k.shape[2], (0, 0)) if pages is None else (k.shape[2] * pages.shape[1], (k.shape[0], pages.shape[1]))
    assert tuple(direction._sizes) == (q.shape[0], q.shape[1], k.shape[1], q.shape[2], keys, 0, 0, *blocks)


@pytest.fixture(autouse=True)
def no_call_is_remembered(monkeypatch):
    """A test's first call is the first of all, whichever test came before."""
    from scoremod.torch import repeated_calls

    monkeypatch.setattr(repeated_calls, "_sites", type(repeated_calls._sites)(64))
