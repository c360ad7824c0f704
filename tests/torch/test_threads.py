"""CPU threads are those of torch.set_num_threads, in each way that a call takes."""

import pytest
import torch

from scoremod.torch import api, eager_calls, execution, flex_attention


@pytest.fixture
def threads_of(monkeypatch):
    """A function that makes a call with this many of PyTorch's threads: (its results, how many threads each compiled direction has memory for)."""
    monkeypatch.delenv("SCOREMOD_THREADS", raising=False)
    before, compiled, made = torch.get_num_threads(), execution.CompiledProblem, []

    def seen(attention, *rest):
        made.append((attention.forward_workspace_bytes, attention.backward_workspace_bytes))
        return compiled(attention, *rest)

    monkeypatch.setattr(execution, "CompiledProblem", seen)
    monkeypatch.setattr(execution, "_kept", {})
    monkeypatch.setattr(eager_calls, "_kept", {})

    def call(number, run):
        torch.set_num_threads(number)
        made.clear()
        results = run()
        return results, [bytes_of for bytes_of, _ in made]

    yield call
    torch.set_num_threads(before)


@pytest.mark.parametrize("road", ["eager", "operator", "compiled"])
def test_calls_follow_torch(road, threads_of, random, monkeypatch):
    q, k, v = (torch.randn(2, 8, 256, 32, generator=random, requires_grad=True) for _ in range(3))
    attend = flex_attention
    if road == "operator":
        monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
        monkeypatch.setattr(api, "repeated", lambda *request: None)
    if road == "compiled":
        torch._dynamo.reset()
        attend = torch.compile(flex_attention, backend="aot_eager")

    def run():
        o = attend(q, k, v)
        return o, *torch.autograd.grad(o.square().sum(), (q, k, v))

    first, one = threads_of(1, run)
    for number in (3, 2):
        results, found = threads_of(number, run)
        assert found == [number * each for each in one], (found, one)
        assert all(map(torch.equal, results, first))
    assert threads_of(3, run)[1] == []  # compiled before
    monkeypatch.setenv("SCOREMOD_THREADS", "2")
    assert threads_of(3, run)[1] == [2 * each for each in one]
