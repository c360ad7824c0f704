"""scoremod.jax.zoo against the library's own ready-made modifiers: the same name and parameters give the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
from scoremod.jax import flex_attention, zoo

B, S, T, H, D = 2, 20, 24, 6, 8
RANDOM = np.random.default_rng(3)
Q, K, V = (RANDOM.normal(size=(B, n, H, D)).astype(np.float32) for n in (S, T, T))
PREFIX = np.asarray([3, 9], np.int32)
IDS_Q, IDS_K = (np.sort(RANDOM.integers(0, 3, (B, n))).astype(np.int32) for n in (S, T))
TABLE = RANDOM.normal(size=(H, 11)).astype(np.float32)
TEMPERATURE = RANDOM.uniform(0.5, 2, H).astype(np.float32)
BIAS = RANDOM.normal(size=(B, H, S, T)).astype(np.float32)
SLOPES = np.asarray(zoo.alibi_slopes(H))

# (name and parameters for the library, its operands, what the JAX zoo makes)
SCORE_MODS = [
    ({"name": "soft_cap", "cap": 2.0}, {}, zoo.soft_cap(2.0)),
    ({"name": "alibi"}, {"slopes": SLOPES}, zoo.alibi(SLOPES.tolist())),
    ({"name": "alibi", "symmetric": True}, {"slopes": SLOPES}, zoo.alibi(jnp.asarray(SLOPES), symmetric=True)),
    ({"name": "relative_bias", "scale": 0.1}, {}, zoo.relative_bias(0.1)),
    ({"name": "full_bias"}, {"bias": BIAS}, zoo.full_bias(BIAS)),
    ({"name": "relative_table", "max_distance": 5}, {"relative_table": TABLE}, zoo.relative_table(TABLE)),
    ({"name": "head_temperature"}, {"temperature": TEMPERATURE}, zoo.head_temperature(TEMPERATURE)),
]
MASK_MODS = [
    ({"name": "causal"}, {}, zoo.causal()),
    ({"name": "causal_bottom_right"}, {}, zoo.causal_bottom_right(S, T)),
    ({"name": "sliding_window", "window": 4}, {}, zoo.sliding_window(4)),
    ({"name": "causal_sliding_window", "window": 4}, {}, zoo.causal_sliding_window(4)),
    ({"name": "prefix_lm", "prefix": 5}, {}, zoo.prefix_lm(5)),
    ({"name": "prefix_lm_per_batch"}, {"prefix_lengths": PREFIX}, zoo.prefix_lm(PREFIX)),
    (
        {"name": "documents"},
        {"query_documents": IDS_Q, "key_documents": IDS_K},
        zoo.documents(IDS_Q, IDS_K.tolist()),
    ),
    ({"name": "padding"}, {"lengths": PREFIX}, zoo.padding(PREFIX.tolist())),
    ({"name": "dilated_window", "window": 3, "dilation": 2}, {}, zoo.dilated_window(3, 2)),
    ({"name": "global_window", "global_tokens": 2, "window": 3}, {}, zoo.global_window(2, 3)),
]


@pytest.mark.parametrize(("entry", "operands", "made"), SCORE_MODS + MASK_MODS, ids=lambda x: x.get("name") if isinstance(x, dict) else "")
def test_same_as_the_librarys(entry, operands, made):
    kind = "score_mod" if any(made is each for *_, each in SCORE_MODS) else "mask_mod"
    problem = {"batch": B, "heads_q": H, "seq_q": S, "seq_kv": T, "dim_qk": D, "program": {kind: [entry]}}
    want = scoremod.Attention(problem, backend="cpu").forward(Q, K, V, operands)
    np.testing.assert_allclose(flex_attention(Q, K, V, **{kind: made}), want, atol=2e-6)


def test_combinations():
    both = zoo.compose(zoo.soft_cap(2.0), zoo.relative_bias(0.1))
    np.testing.assert_allclose(both(jnp.float32(3), 0, 0, 5, 2), 2 * np.tanh(1.5) + 0.3, rtol=1e-6)
    masks = zoo.causal(), zoo.sliding_window(2)
    for q_idx, kv_idx in ((5, 4), (5, 6), (5, 1), (1, 5)):
        kept = [bool(mask(0, 0, q_idx, kv_idx)) for mask in masks]
        assert bool(zoo.all_of(*masks)(0, 0, q_idx, kv_idx)) == all(kept)
        assert bool(zoo.any_of(*masks)(0, 0, q_idx, kv_idx)) == any(kept)
    with pytest.raises(scoremod.InvalidArgumentError, match="at least one"):
        zoo.all_of()


def test_a_learned_table_learns():
    gradient = jax.grad(lambda table: (flex_attention(Q, K, V, zoo.relative_table(table)) ** 2).sum())(jnp.asarray(TABLE))
    assert (np.abs(gradient) > 0).all()
