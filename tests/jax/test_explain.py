"""explain() and support() describe calls with token lists as the calls that they become."""

import json
import os
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoremod
from scoremod.jax import attention_primitives, explain, flex_attention, own_fields, support

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))


@pytest.fixture
def tensors():
    """(q, k, v, list) of 2 batches with 3 queries, 50 keys and 12 entries."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    random = np.random.default_rng(SEED)
    q, k, v = (jnp.asarray(random.standard_normal((2, length, heads, 16)), jnp.float32) for length, heads in ((3, 4), (50, 2), (50, 2)))
    return q, k, v, random.integers(-9, 50, (2, 3, 12))


def biased(bias, slopes):
    return lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx] + slopes[b, h] * (kv_idx - q_idx)


def test_a_token_list_is_explained_as_the_call_over_its_rows(tensors):
    q, k, v, listed = tensors
    bias, slopes = jnp.ones(50), jnp.ones((2, 4))
    found = explain(q, k, v, biased(bias, slopes), "causal", q_start=47, token_list=listed)
    assert {name: found.problem[name] for name in ("batch", "seq_q", "seq_kv", "backward")} == {"batch": 6, "seq_q": 1, "seq_kv": 12, "backward": False}
    assert found.problem["paged"] == {"block_size": 1, "blocks": 100, "blocks_per_sequence": 12} and found.listed == (2, 3)
    shapes = {x.called: x.shape for x in found.operands}
    assert shapes == {"keys": (6, 12), "bias": (50,), "slopes": (2, 4), "of_batch": (6,), "of_query": (6,), "": ()}
    assert "b is a row, one for each of 2 batches * 3 queries; kv_idx is a place in it" in str(found) and "token list" not in str(explain(q, k, v))
    assert found.backend == "cpu" and found.road == own_fields.FIELDS
    answers = support(q, k, v, token_list=listed)
    assert answers["cpu"] == answers["xla"] == () and explain(q, k, v, token_list=listed, backends="kernels").backend is None


@pytest.mark.parametrize("layout", ["BSHD", "SBHD", "BHSD"])
def test_shapes_are_enough(layout, tensors):
    *tensors, listed = tensors
    in_layout = [jnp.transpose(x, ["BSHD".index(letter) for letter in layout]) for x in tensors]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in in_layout]
    assert explain(*in_layout, token_list=listed, layout=layout) == explain(*shapes, token_list=listed, layout=layout) == explain(*tensors, token_list=listed)


@pytest.mark.parametrize("options", ["none", "functions"])
def test_a_call_with_a_token_list_runs_what_was_explained(options, tensors, monkeypatch):
    q, k, v, listed = tensors
    compiled, problems = attention_primitives.compiled, []
    functions = {"score_mod": biased(jnp.ones(50), jnp.ones((2, 4))), "mask_mod": "causal", "lengths": np.array([50, 20]), "q_start": 47}
    given = {"token_list": listed, **(functions if options == "functions" else {})}
    monkeypatch.setattr(attention_primitives, "compiled", lambda problem, *others, **named: problems.append(problem) or compiled(problem, *others, **named))
    explained = explain(q, k, v, **given).problem
    jax.block_until_ready(jax.jit(lambda q, k, v: flex_attention(q, k, v, return_lse=True, **given))(q, k, v))
    assert [json.loads(problem) for problem in problems] == [explained]


def test_a_sink_is_explained_with_its_dtype(tensors, monkeypatch):
    q, k, v, _ = tensors
    sink = jnp.zeros(q.shape[2], jnp.bfloat16)
    compiled, problems = attention_primitives.compiled, []
    monkeypatch.setattr(attention_primitives, "compiled", lambda problem, *others, **named: problems.append(problem) or compiled(problem, *others, **named))
    explained = explain(q, k, v, sink=sink).problem
    jax.block_until_ready(jax.jit(lambda q, k, v: flex_attention(q, k, v, sink=sink, return_lse=True))(q, k, v))
    made = json.loads(problems[0])
    assert {each["name"]: each["dtype"] for each in explained["operands"]} == {each["name"]: each["dtype"] for each in made["operands"]} == {"sink": "bf16"}


def test_callbacks_are_explained_beside_a_token_list(tensors):
    q, k, v, listed = tensors
    soft_cap = lambda graph, score, tensors: graph.tanh(input=score)  # noqa: E731
    found = explain(q, k, v, soft_cap, token_list=listed, score_mod_tensors={})
    assert "tanh" in found.program and found.problem["batch"] == 6
    with pytest.raises(scoremod.InvalidArgumentError, match="q_start: expected none beside a callback that builds on a graph"):
        explain(q, k, v, soft_cap, token_list=listed, score_mod_tensors={}, q_start=3)
