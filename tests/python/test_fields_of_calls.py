"""Lengths, sinks, dropout and the largest score from Python: names of operands, options of calls, and their mistakes."""

import numpy as np
import pytest

import scoremod

PROBLEM = {"batch": 2, "heads_q": 3, "seq_q": 4, "seq_kv": 6, "dim_qk": 8, "dim_v": 5, "backward": True}


def draw(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 3, 8), (2, 6, 3, 8), (2, 6, 3, 5))]


def definition(q, k, v, lengths, sink):
    """(o, lse, max_logit) in float64."""
    scores = np.einsum("bqhd,bkhd->bhqk", *(x.astype(np.float64) for x in (q, k))) / np.sqrt(8)
    scores = np.where(np.arange(6) < lengths[:, None, None, None], scores, -np.inf)
    sums = np.exp(scores).sum(-1) + np.exp(sink.astype(np.float64))[:, None]
    return np.einsum("bhqk,bkhd->bqhd", np.exp(scores) / sums[..., None], v), np.log(sums), scores.max(-1)


def test_lengths_and_sinks_are_operands():
    q, k, v = draw()
    operands = {"lengths_kv": np.array([4, 0], np.int32), "sink": np.array([0.5, -1, 2], np.float32)}
    attention = scoremod.Attention({**PROBLEM, "lengths": {"kv": True}, "sink": "learned", "max_logit": True})
    o, lse, max_logit = attention.forward(q, k, v, operands, return_lse=True, return_max_logit=True)
    truth = definition(q, k, v, operands["lengths_kv"], operands["sink"])
    for found, expected in zip((o, lse, max_logit), truth, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    assert not o[1].any() and np.isneginf(max_logit[1]).all()
    np.testing.assert_array_equal(lse[1], np.broadcast_to(operands["sink"][:, None], (3, 4)))
    d_o = np.ones_like(o)
    gradients = attention.backward(q, k, v, o, lse, d_o, operands)

    def loss(sink):
        return definition(q, k, v, operands["lengths_kv"], sink)[0].sum()

    sink, step = operands["sink"].astype(np.float64), 1e-5
    quotients = [(loss(sink + step * one) - loss(sink - step * one)) / (2 * step) for one in np.eye(3)]
    np.testing.assert_allclose(gradients.d_operands["sink"], quotients, rtol=1e-4)


def test_dropout_follows_its_state():
    q, k, v = draw()
    attention = scoremod.Attention({**PROBLEM, "dropout": 0.5})
    first = attention.forward(q, k, v, dropout=scoremod.DropoutState(3, 2**63))
    np.testing.assert_array_equal(attention.forward(q, k, v, dropout=(3, 2**63)), first)
    for other in (scoremod.DropoutState(4, 2**63), scoremod.DropoutState(3, 0)):
        assert not np.array_equal(attention.forward(q, k, v, dropout=other), first)
    # On average it is attention without dropout.
    mean = np.mean([attention.forward(q, k, v, dropout=(seed,)) for seed in range(400)], axis=0)
    plain = scoremod.Attention(PROBLEM).forward(q, k, v)
    spread = np.std([attention.forward(q, k, v, dropout=(seed,)) for seed in range(400)], axis=0) / 20
    assert np.all(np.abs(mean - plain) <= 6 * spread)


@pytest.mark.parametrize("dropout", [3, (1, 2, 3), (-1,), (0, 2**64), (0.5,)])
def test_states_that_are_none(dropout):
    q, k, v = draw()
    with pytest.raises(scoremod.InvalidArgumentError, match="dropout"):
        scoremod.Attention({**PROBLEM, "dropout": 0.5}).forward(q, k, v, dropout=dropout)


def test_a_largest_score_that_was_not_asked_for():
    q, k, v = draw()
    with pytest.raises(scoremod.InvalidArgumentError, match="return_max_logit: expected a problem"):
        scoremod.Attention(PROBLEM).forward(q, k, v, return_max_logit=True)
    with pytest.raises(scoremod.InvalidArgumentError, match="lengths_kv"):
        scoremod.Attention({**PROBLEM, "lengths": {"kv": True}}).forward(q, k, v)


@pytest.mark.parametrize("field, value", [("dropout", 1), ("dropout", -0.1), ("sink", "yes"), ("lengths", {"keys": True})])
def test_fields_that_make_no_sense(field, value):
    with pytest.raises(scoremod.InvalidArgumentError, match=field):
        scoremod.Attention({**PROBLEM, field: value})


def test_sequences_one_after_the_other_and_gradients_that_lie_otherwise():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((7, 2, 4)).astype(np.float32) for _ in range(3))
    offsets = np.array([0, 3, 3, 7], np.int32)
    problem = {"batch": 3, "heads_q": 2, "seq_q": 4, "dim_qk": 4, "tokens_q": 7, "tokens_kv": 7, "dtype_o": "f16", "backward": True}
    places = {"offsets_q": offsets, "offsets_kv": offsets}
    attention = scoremod.Attention(problem, backend="cpu")
    o, lse = attention.forward(q, k, v, places, return_lse=True)
    assert o.dtype == np.float16 and o.shape == (7, 2, 4) and lse.shape == (7, 2)
    for first, end in ((0, 3), (3, 7)):
        alone = scoremod.attention(q[None, first:end], k[None, first:end], v[None, first:end])
        np.testing.assert_allclose(o[first:end], alone[0], rtol=2e-3, atol=2e-3)
    gradients = attention.backward(q, k, v, o, lse, np.ones_like(o), places)
    assert gradients.dq.shape == (7, 2, 4) and np.abs(gradients.dk).max() > 0

    q, k, v = (rng.standard_normal((2, 3, 2, 4)).astype(np.float32) for _ in range(3))
    plain = {"batch": 2, "heads_q": 2, "seq_q": 3, "dim_qk": 4, "backward": True}
    other = {**plain, "d_o": "BHSD", "dq": "BHSD", "dk": "SBHD"}
    found = []
    for each in (plain, other):
        attention = scoremod.Attention(each, backend="cpu")
        o, lse = attention.forward(q, k, v, return_lse=True)
        d_o = v if each is plain else np.ascontiguousarray(v.transpose(0, 2, 1, 3))
        found.append(attention.backward(q, k, v, o, lse, d_o))
    np.testing.assert_array_equal(found[1].dq.transpose(0, 2, 1, 3), found[0].dq)
    np.testing.assert_array_equal(found[1].dk.transpose(1, 0, 2, 3), found[0].dk)
    np.testing.assert_array_equal(found[1].dv, found[0].dv)


def test_keys_in_a_paged_cache():
    rng = np.random.default_rng(2)
    q = rng.standard_normal((2, 1, 2, 4)).astype(np.float32)
    k, v = (rng.standard_normal((6, 2, 2, 4)).astype(np.float32) for _ in range(2))
    problem = {
        "batch": 2,
        "heads_q": 2,
        "seq_q": 1,
        "seq_kv": 4,
        "dim_qk": 4,
        "lengths": {"kv": True},
        "paged": {"block_size": 2, "blocks": 6, "blocks_per_sequence": 2},
    }
    table, lengths = np.array([[5, 1], [3, -1]], np.int32), np.array([4, 2], np.int32)
    o = scoremod.Attention(problem, backend="cpu").forward(q, k, v, {"page_table_k": table, "page_table_v": table, "lengths_kv": lengths})
    for b, n in enumerate(lengths):
        blocks = table[b, : n // 2]
        alone = scoremod.attention(q[b : b + 1], k[blocks].reshape(1, n, 2, 4), v[blocks].reshape(1, n, 2, 4))
        np.testing.assert_allclose(o[b], alone[0], rtol=1e-5, atol=1e-6)
