"""new_sizes= comes to what is compiled, on every way to it, and is part of what it is known by."""

import datetime

import pytest
import torch
import torch.distributed as dist

import scoremod
from scoremod.torch import context_parallel_attention, eager_calls, execution, flex_attention


@pytest.fixture
def asked(monkeypatch):
    """The new_sizes of each OpenAttention that is made."""
    found, make = [], execution.OpenAttention
    monkeypatch.setattr(execution, "_open", {})
    monkeypatch.setattr(execution, "OpenAttention", lambda *arguments, **options: found.append(options["new_sizes"]) or make(*arguments, **options))
    monkeypatch.setattr(execution, "_kept", {})
    monkeypatch.setattr(eager_calls, "_kept", {})
    return found


@pytest.fixture
def tensors(random):
    return [torch.randn(1, 2, 7, 8, generator=random) for _ in range(3)]


@pytest.mark.parametrize("road", ["eager", "compiled"])
def test_it_is_an_argument_of_flex_attention(road, asked, tensors):
    torch._dynamo.reset()
    run = torch.compile(flex_attention, backend="aot_eager") if road == "compiled" else flex_attention
    results = [run(*tensors, new_sizes=new_sizes) for new_sizes in (None, "serve", "wait", "serve", None)]
    assert asked == [None, "serve", "wait"]
    assert all(torch.equal(each, results[0]) for each in results)


@pytest.mark.parametrize("wrong", ["now", 1, ["wait"]])
def test_others_are_refused(wrong, tensors):
    with pytest.raises(scoremod.InvalidArgumentError, match="new_sizes: expected 'wait' or 'serve', found"):
        flex_attention(*tensors, new_sizes=wrong)


def test_it_is_an_argument_of_context_parallel_attention(asked, tensors, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=datetime.timedelta(seconds=60))
    try:
        context_parallel_attention(*tensors, group=dist.group.WORLD, new_sizes="serve")
    finally:
        dist.destroy_process_group()
    assert set(asked) == {"serve"}


def test_it_is_an_argument_of_the_attention_of_transformers(asked, tensors):
    pytest.importorskip("transformers")
    from scoremod.torch.transformers import attention

    module = torch.nn.Module()
    module.is_causal = True
    attention(module, *tensors, None, new_sizes="serve")
    assert asked == ["serve"]
