"""A kept trace serves other sizes only where a fresh one would be the same: random functions at random sizes in random order."""

import random as pseudo_random

import pytest
import torch

from scoremod.torch import flex_attention, kept_traces
from scoremod.torch.asked_sizes import AskedExtents, answer_alike, evaluated, expression_of
from scoremod.torch.captures import Extents
from scoremod.torch.checked_integers import ANY
from scoremod.torch.function_keys import key_of
from scoremod.torch.kept_traces import kept_trace

CPU = torch.device("cpu")
INDICES = ("b", "h", "q_idx", "kv_idx")
# Integers of 64 bits, floats and conditions as Python text; {i} and {j} are indices.
INTEGERS = (
    "{i} - {j}", "starts[b] + {i}", "ids[b, kv_idx] - {i}", "{i} + starts[b] - {j}", "ids[b, q_idx] + ids[b, kv_idx]", "{i}.long() + {j}.long()",
    "starts[b] - {i} + 2", "torch.add({j}.long(), {i}, alpha=30000)", "torch.where({i} > 3, starts[b], {j}.long()) + {i}",
    "{i}.long().clamp(max=5) + {j}", "-starts[b] + {i}", "torch.maximum(starts[b], {i}.long()) + {j}",
)  # fmt: skip
FLOATS = (
    "score * 0.5",
    "slopes[h]",
    "bias[h, q_idx]",
    "bias[0, kv_idx]",
    "per_batch[b, h]",
    "table[{integer}]",
    "({integer}) * 0.25",
    "bias[h, {i} - 1]",
    "torch.tanh(score)",
)
CONDITIONS = ("{integer} < {i}", "q_idx >= kv_idx", "kept[b, kv_idx]", "ids[b, q_idx] == ids[b, kv_idx]", "({integer}) % 3 != 1")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(kept_traces, "_kept", {})


def text(choose, kinds):
    template = choose.choice(kinds)
    integer = text(choose, INTEGERS) if "{integer}" in template else None
    return template.format(i=choose.choice(INDICES), j=choose.choice(INDICES), integer=integer)


def functions(choose):
    """(their text, score_mod, mask_mod): random functions of random captured tensors."""
    terms = " + ".join(text(choose, FLOATS) for _ in range(choose.randint(1, 3)))
    condition = " & ".join(f"({text(choose, CONDITIONS)})" for _ in range(choose.randint(1, 2)))
    written = f"""
def make(slopes, bias, per_batch, table, ids, starts, kept):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + {terms}
    def mask_mod(b, h, q_idx, kv_idx):
        return {condition}
    return score_mod, mask_mod
"""
    batch, heads, length = choose.randint(2, 5), choose.randint(2, 4), choose.randint(20, 40)
    random = torch.Generator().manual_seed(choose.randrange(2**31))
    dtype = choose.choice([torch.int64, torch.int32])
    captured = (
        *(torch.randn(shape, generator=random) for shape in ((heads,), (heads, length), (batch, heads), (2 * length,))),
        torch.randint(0, 9, (batch, length), generator=random).to(dtype),
        torch.randint(0, 9, (batch,), generator=random),
        torch.randint(0, 2, (batch, length), generator=random).bool(),
    )
    namespace = {"torch": torch}
    exec(written, namespace)
    return f"{written}{[tuple(each.shape) for each in captured]}", *namespace["make"](*captured), (batch, heads, length)


def sizes(choose, batch, heads, length):
    """Sizes around those of the captured tensors, and some that bring integers to the end of int32."""
    lengths = [1, 2, length - 1, length, length + 1, 50000, 2**30, 2**31 - 1]
    offset = choose.choice([0, 0, 0, 1, 3])
    return Extents(
        (0, choose.choice([1, batch - 1, batch, batch, batch, batch + 1])),
        (0, choose.choice([heads] * 8 + [heads - 1, heads + 1])),
        *((offset, choose.choice(lengths) if choose.random() < 0.25 else choose.randint(1, length - 3)) for _ in range(2)),
        are_limits=choose.choice([(), (), (), ("q_idx",), ("kv_idx",), ("q_idx", "kv_idx")]),
        is_part=choose.random() < 0.3,
    )


def outcome(score_mod, mask_mod, extents):
    """(what a call computes: the program, and what each operand's source makes, or what is raised; whether the trace is kept)."""
    try:
        key, captured = key_of(score_mod, mask_mod)
        found, sources, is_kept = kept_trace((score_mod, mask_mod), key, captured, extents, CPU)
        if not is_kept:
            return "traced each time", False
        # The numbers of these tensors are small, and the limits themselves are compared.
        made = [(source.limit, getattr(source, "axes", None), source._replace(limit=ANY).tensor(CPU)) for source in sources]
    except Exception as error:
        return f"{type(error).__name__}: {error}", False
    return (found.program.text(), [(limit, axes, tensor.dtype, tensor.shape, tensor.tolist()) for limit, axes, tensor in made]), True


def wrong_reuse(seed, calls=24):
    """(differences between kept traces and fresh ones, how many calls were served by an earlier call's trace at other sizes)."""
    choose = pseudo_random.Random(seed)
    written, score_mod, mask_mod, shape = functions(choose)
    wrong, served, seen = [], 0, set()
    for _ in range(calls):
        extents = sizes(choose, *shape)
        before = sum(map(len, kept_traces._kept.values()))
        found, is_kept = outcome(score_mod, mask_mod, extents)
        served += is_kept and sum(map(len, kept_traces._kept.values())) == before and extents not in seen
        seen.add(extents)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kept_traces, "_kept", {})
            expected, _ = outcome(score_mod, mask_mod, extents)
        if found != expected:
            wrong.append((written, extents, found, expected))
    return wrong, served


@pytest.mark.parametrize("share", range(4))
def test_a_kept_trace_is_what_a_fresh_one_would_be(share, seed):
    served = 0
    for number in range(40):
        wrong, count = wrong_reuse(seed * 1000 + share * 40 + number)
        assert wrong == []
        served += count
    assert served > 100


@pytest.mark.parametrize("what", ["count", "end", "largest"])
def test_a_question_that_is_not_kept_would_be_found(what, monkeypatch, seed):
    """Without the questions about one kind of size wrong traces are served."""
    note = AskedExtents.note
    monkeypatch.setattr(AskedExtents, "note", lambda self, comparison, answer: None if f"'{what}'" in str(comparison) else note(self, comparison, answer))
    assert any(wrong_reuse(seed * 1000 + number)[0] for number in range(200))


def test_other_sizes_are_not_traced_again(monkeypatch, random):
    made, trace = [], kept_traces.Tracer.trace
    monkeypatch.setattr(kept_traces.Tracer, "trace", lambda *arguments: made.append(1) or trace(*arguments))
    slopes, starts = torch.randn(2, generator=random), torch.tensor([3])
    for length in range(1, 40):
        query, key = torch.randn(1, 2, 1 + length % 2, 8, generator=random), torch.randn(1, 2, length, 8, generator=random)
        found = flex_attention(query, key, key, lambda score, b, h, q, k: score + slopes[h] * (k - q), mask_mod=lambda b, h, q, k: q + starts[b] >= k)
        position = torch.arange(query.shape[2])[:, None] + 3
        distances = torch.arange(length)[None] - (position - 3)
        scores = query @ key.mT / 8**0.5 + slopes[:, None, None] * distances
        scores = scores.masked_fill(torch.arange(length)[None] > position, -torch.inf)
        torch.testing.assert_close(found, scores.softmax(-1) @ key)
    assert len(made) == 1


class TestSizes:
    """No way to read a size leaves what a trace is for unsaid."""

    EXTENTS = Extents((0, 2), (0, 3), (5, 7), (0, 1))

    @pytest.mark.parametrize(
        "read",
        [
            int, float, bool, str, repr, list(range(100)).__getitem__, "{}".format, lambda x: x == 12, lambda x: x < 3, lambda x: 3 < x, lambda x: x >= 12, lambda x: x <= 12, lambda x: x != 11,
            lambda x: range(x), lambda x: max(x, 7) > 11, lambda x: min(x, 7) < 7, lambda x: (2 * x - 1) // 3 == 7, lambda x: [0][x:], lambda x: x in (11, 12),
        ],
    )  # fmt: skip
    def test_each_way_to_read_one_is_kept(self, read):
        asked = AskedExtents(self.EXTENTS)
        answer = read(asked.end("q_idx"))
        assert str(answer) == str(read(12)) and asked.guards() and answer_alike(asked.guards(), self.EXTENTS)
        for count in range(1, 90):
            other = self.EXTENTS._replace(q_idx=(5, count))
            if answer_alike(asked.guards(), other):
                assert str(read(AskedExtents(other).end("q_idx"))) == str(answer)

    @pytest.mark.parametrize("read", [hash, lambda x: {x: 1}, lambda x: x / 2, lambda x: x % 2, lambda x: x.real])
    def test_others_are_refused(self, read):
        with pytest.raises((TypeError, AttributeError)):
            read(AskedExtents(self.EXTENTS).end("q_idx"))

    def test_what_is_computed_follows_other_sizes(self):
        asked = AskedExtents(self.EXTENTS)
        expression = expression_of((2**31 - asked.largest("q_idx") * 3) // (1 + asked.count("h")) + asked.end("kv_idx") - 1)
        assert asked.guards() == ()
        assert evaluated(expression, self.EXTENTS) == (2**31 - 11 * 3) // 4
        assert evaluated(expression, Extents((0, 2), (0, 4), (1, 8), (2, 3))) == (2**31 - 8 * 3) // 5 + 4
