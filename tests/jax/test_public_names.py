"""The public names of scoremod.jax, and arguments that belong to other libraries' functions."""

import inspect
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import scoremod
import scoremod.jax
import scoremod.jax.context_parallel
from scoremod import one_call
from scoremod.jax import SequenceDescriptor, api, flex_attention, fused_attention

Q = jnp.ones((2, 4, 2, 8), jnp.float32)


def test_dir_shows_public_names_alone():
    shown = {name for name in dir(scoremod.jax) if not name.startswith("__")}
    modules = {name for name in shown if inspect.ismodule(getattr(scoremod.jax, name))}
    assert modules - {"linen", "nnx", "transformer_engine", "transformer_layer"} == {"context_parallel", "graph", "zoo"}
    assert shown - modules == {name for name in scoremod.jax.__all__ if name != "zoo"}


def test_the_sequence_descriptor_is_one():
    linen = pytest.importorskip("scoremod.jax.linen")
    assert linen.SequenceDescriptor is SequenceDescriptor


OTHERS = {
    **dict.fromkeys(("causal", "is_causal"), "zoo.causal"),
    **dict.fromkeys(("segment_ids", "q_segment_ids"), "zoo.documents"),
    **dict.fromkeys(("attn_mask", "mask", "window_size", "block_mask"), "mask_mod"),
    **dict.fromkeys(("attn_bias", "bias", "alibi_slopes", "softcap"), "score_mod"),
    **dict.fromkeys(("softmax_scale", "sm_scale", "scale_factor"), "give scale="),
    **dict.fromkeys(("dropout_p", "dropout_rng"), "dropout_key="),
    "cu_seqlens_q": "q_offsets=",
    "block_tables": "page_table=",
    "return_lsee": "write return_lse$",
    "nothing_like_it": "its arguments are query, key, value, score_mod",
}


@pytest.mark.parametrize("attention", [flex_attention, fused_attention, scoremod.jax.explain, scoremod.jax.support])
@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_arguments_say_what_takes_their_place(name, attention):
    if name == "return_lsee" and attention in (scoremod.jax.explain, scoremod.jax.support):
        return
    with pytest.raises(scoremod.InvalidArgumentError, match=f"^{name}: .*{OTHERS[name]}") as raised:
        attention(Q, Q, Q, **{name: True})
    assert isinstance(raised.value, TypeError)


def test_what_the_messages_say_can_be_written():
    b, s, h, d = Q.shape
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((b, s, h, d)).astype(np.float32) for _ in range(3))
    ids, lengths = random.integers(0, 2, (b, s)).astype(np.int32), np.array([2, 3], np.int32)
    names = {
        "segment_ids": ids, "lengths": lengths, "bias": np.zeros((b, h, s, s), np.float32), "alibi_slopes": np.ones(h, np.float32),
        "mask": np.ones((b, h, s, s), bool), "b": b, "dict": dict,
    }  # fmt: skip
    for name, remedy in one_call._ELSEWHERE.items():
        if "mod=" in remedy:
            written = remedy.removeprefix("give ").split(", of a ")[0]
            assert np.isfinite(scoremod.attention(q, k, v, **eval(f"dict({written})", names))).all(), name
        if name not in one_call._ARGUMENTS:
            with pytest.raises(scoremod.InvalidArgumentError, match=f"^{name}: attention") as raised:
                scoremod.attention(q, k, v, **{name: 1})
            assert remedy in str(raised.value)
    assert set(one_call._ARGUMENTS) == set(inspect.signature(scoremod.attention).parameters) - {"unknown"}
    names |= {"segment_ids": jnp.asarray(ids), "bias": jnp.zeros((b, h, s, s)), "mask": jnp.ones((b, h, s, s), bool), "scoremod": scoremod, "cap": 20.0}
    tried = [remedy for remedy in api.ELSEWHERE.values() if "mod=" in remedy and "..." not in remedy]
    assert len(tried) >= 4
    for remedy in tried:
        written = remedy.removeprefix("give ").removeprefix("read it in ").replace("mask_mod: ", "mask_mod=").split(", as ")[0]
        assert np.isfinite(flex_attention(q, k, v, **eval(f"dict({written})", names))).all(), remedy


@pytest.mark.parametrize("attention", [flex_attention, lambda *x, **y: fused_attention(*x, **y)])
def test_heads_before_positions_are_hinted_at(attention):
    pasted = jnp.ones((2, 4, 9, 8)), jnp.ones((2, 2, 9, 8))  # heads 4 and 2, 9 positions
    with pytest.warns(UserWarning, match=r'\(2, 4, 9, 8\) is read as .*: 4 positions of 9 heads.*layout="BHSD"'):
        attention(pasted[0], pasted[1], pasted[1])
    silent = [
        ((pasted[0], pasted[0], pasted[0]), {"layout": "BSHD"}),
        ((pasted[0], pasted[1], pasted[1]), {"layout": "BHSD"}),
        ((Q, Q, Q), {}),
        ((jnp.ones((2, 1, 9, 8)), jnp.ones((2, 16, 3, 8)), jnp.ones((2, 16, 3, 8))), {}),  # a decode step
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for arrays, options in silent:
            attention(*arrays, **options)
