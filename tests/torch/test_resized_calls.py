"""Calls whose sizes alone are new: the numbers of calls that know nothing of earlier ones, and the long way for whatever doesn't fit."""

import random as pseudo_random
import warnings

import pytest
import torch

from scoremod import open_attention
from scoremod.torch import api, flex_attention, prepared_calls, repeated_calls, resized_calls
from scoremod.torch.strides import taken

H, HEADS_KV, D = 4, 2, 8


@pytest.fixture
def resized(monkeypatch):
    """The calls that were made of an earlier one's at other sizes."""
    made, at = [], resized_calls.Resizing.at

    def counted(self, tensors, looks):
        call = at(self, tensors, looks)
        made.append(call is not None)
        return call

    monkeypatch.setattr(resized_calls.Resizing, "at", counted)
    return made


def anew(*arguments, monkeypatch, **options):
    """The result of a call that finds nothing of earlier ones."""
    with monkeypatch.context() as patch:
        patch.setattr(api, "repeated", lambda *request: None)
        patch.setattr(api, "known", lambda kind: None)
        patch.setattr(api, "remember", lambda *request: None)
        return flex_attention(*arguments, **options)


def same(found, expected):
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    return all(torch.equal(x, y) and x.stride() == y.stride() for x, y in pairs)


def modifiers(random):
    slopes, bias = torch.randn(H, generator=random), torch.randn(H, 201, generator=random)
    return {
        "plain": {},
        "slopes": {"score_mod": lambda score, b, h, i, j: score + slopes[h] * (j - i)},
        "table": {"score_mod": lambda score, b, h, i, j: score + bias[h, (i - j).clamp(-100, 100) + 100]},
        "causal": {"mask_mod": lambda b, h, i, j: i >= j, "return_lse": True},
        "sink": {"sink": torch.randn(H, generator=random), "scale": 0.3},
    }


@pytest.mark.parametrize("kind", ["plain", "slopes", "table", "causal", "sink"])
@pytest.mark.parametrize("lies", ["dense", "cache", "by heads"])
def test_other_sizes_give_what_a_call_of_its_own_gives(kind, lies, random, resized, monkeypatch):
    options = modifiers(random)[kind]
    batches, longest = 3, 40
    q, k, v = (torch.randn(batches, heads, longest, D, generator=random) for heads in (H, HEADS_KV, HEADS_KV))
    if lies == "by heads":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    with torch.no_grad():
        for _ in range(12):
            b, m, n = (int(torch.randint(1, most + 1, (), generator=random)) for most in (batches, longest, longest))
            m = max(m, 2)  # one query beneath a causal mask is warned of
            tensors = q[:b, :, :m], k[:b, :, :n], v[:b, :, :n]
            if lies == "dense":
                tensors = tuple(each.contiguous() for each in tensors)
            found = flex_attention(*tensors, enable_gqa=True, **options)
            assert same(found, anew(*tensors, enable_gqa=True, monkeypatch=monkeypatch, **options))
    assert sum(resized) >= 4


def test_lengths_and_pages_grow(random, resized, monkeypatch):
    k, v = (torch.randn(64, HEADS_KV, 4, D, generator=random) for _ in range(2))
    table = torch.randperm(64, generator=random)[:60].reshape(2, 30).to(torch.int32)
    with torch.no_grad():
        for length in range(1, 60, 7):
            q = torch.randn(2, H, 1, D, generator=random)
            pages, lengths = table[:, : -(-length // 4)].contiguous(), torch.tensor([length, max(length - 3, 1)], dtype=torch.int32)
            options = {"enable_gqa": True, "page_table": pages, "lengths": lengths}
            assert same(flex_attention(q, k, v, **options), anew(q, k, v, monkeypatch=monkeypatch, **options))
            keys = torch.randn(2, HEADS_KV, length, D, generator=random)
            options = {"enable_gqa": True, "lengths": lengths}
            assert same(flex_attention(q, keys, keys + 1, **options), anew(q, keys, keys + 1, monkeypatch=monkeypatch, **options))
        lengths[1] = 99
        with pytest.raises(ValueError, match=f"lengths of keys from 0 to {length}"):
            flex_attention(q, keys, keys + 1, **options)
    assert resized.count(True) >= 12


@pytest.mark.parametrize("change", ["heads", "dim", "batch of keys", "shorter operand", "gaps", "mask"])
def test_whatever_does_not_fit_goes_the_long_way(change, random, resized, nothing_compiled, monkeypatch):
    ids = torch.randint(0, 2, (9,), generator=random)

    def score_mod(score, b, h, i, j):
        return score + ids[j]

    def tensors(batch=1, heads=H, keys=8, dim=D):
        return [torch.randn(batch, n, s, dim, generator=random) for n, s in ((heads, 3), (heads, keys), (heads, keys))]

    def call(q, k, v):
        return flex_attention(q, k, v, score_mod)

    with torch.no_grad():
        for keys in (8, 9):
            call(*tensors(keys=keys))
        resized.clear()
        q, k, v = {"heads": lambda: tensors(heads=2), "dim": lambda: tensors(dim=16), "shorter operand": lambda: tensors(keys=10)}.get(
            change, lambda: tensors(keys=7)
        )()
        if change == "batch of keys":
            q = torch.cat([q, q])
        if change == "gaps":
            k, v = (torch.cat([x, x], -1)[..., ::2] for x in (k, v))
        if change == "mask":
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for keys in (2, 3, 4):
                    flex_attention(torch.randn(1, H, 1, D, generator=random), *tensors(keys=keys)[1:], mask_mod=lambda b, h, i, j: i >= j)
            assert len([each for each in caught if "keeps key 0 alone" in str(each.message)]) == 3
        if change == "shorter operand":
            with pytest.raises(ValueError, match="expected a size of 10 along dimension 0"):
                call(q, k, v)
        else:
            assert same(call(q, k, v), anew(q, k, v, score_mod, monkeypatch=monkeypatch))
    if change != "mask":
        assert True not in resized


@pytest.mark.parametrize("change", ["strides of the query", "queries", "batch", "operand with gaps", "one length for all", "dtype", "LSE"])
def test_what_follows_from_earlier_looks_is_found_anew_for_others(change, random, resized, monkeypatch):
    """Keys grow, and then something else changes, too: nothing of the sizes before is right for it."""
    bias = torch.randn(H, 3, generator=random)

    def call(keys, batch=2, queries=3, by_heads=False, gaps=False, count=None, dtype=torch.float32, return_lse=False):
        q, k, v = (torch.randn(batch, n, size, D, generator=random).to(dtype) for n, size in ((H, queries), (H, keys), (H, keys)))
        q = q.transpose(1, 2).contiguous().transpose(1, 2) if by_heads else q
        read = bias.T.contiguous().T if gaps else bias
        lengths = torch.full((count or batch,), keys - 1, dtype=torch.int32)
        options = {"lengths": lengths, "score_mod": lambda score, b, h, i, j: score + read[h, i % 3], "return_lse": return_lse}
        assert same(flex_attention(q, k, v, **options), anew(q, k, v, monkeypatch=monkeypatch, **options))

    changes = {"strides of the query": {"by_heads": True}, "queries": {"queries": 5}, "batch": {"batch": 3}, "operand with gaps": {"gaps": True}}
    changed = {**changes, "dtype": {"dtype": torch.float16}, "LSE": {"return_lse": True}}.get(change)
    with torch.no_grad():
        for keys in range(4, 8):
            call(keys)
        assert resized.count(True) == 3
        if change == "one length for all":
            with pytest.raises(ValueError, match="lengths"):
                call(8, count=1)
        else:
            for keys in (8, 9):
                call(keys, **changed)
        for keys in (10, 11):
            call(keys)
    assert resized.count(True) >= 4


def test_an_operand_that_stays_is_too_short_for_more_keys(random, resized):
    """The operand's look is that of the sizes before, whose keys it had enough for."""
    bias = torch.randn(9, generator=random)

    def call(queries, keys):
        q, k, v = (torch.randn(1, H, size, D, generator=random) for size in (queries, keys, keys))
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + bias[j])

    with torch.no_grad():
        for queries in (3, 4, 5):
            call(queries, 9)
        assert resized == [True, True]
        with pytest.raises(ValueError, match="expected a size of 10 along dimension 0"):
            call(5, 10)


def asking(kind, random, keys, q, k):
    """A score_mod whose trace follows from a size, or from strides, of what it reads."""
    slopes, bias = torch.randn(H, generator=random), torch.randn(H, keys, generator=random)
    table, line, pairs = (torch.randn(*shape, generator=random) for shape in ((2 * keys - 1,), (keys,), (keys, 2)))
    narrow = torch.randn(H, keys, generator=random)[:, :3]
    return {
        "a key that is not read": lambda score, b, h, i, j: score * slopes[h] if k.shape[2] < 8 else score + slopes[h] * j,
        "the operand": lambda score, b, h, i, j: score * bias[h, j] if bias.shape[1] < 8 else score + bias[h, j],
        "length of another": lambda score, b, h, i, j: score * slopes[h] if len(line) < 8 else score + slopes[h] * j,
        "an operand's part": lambda score, b, h, i, j: score * slopes[h] if pairs[:, b].shape[0] < 8 else score + slopes[h] * j,
        "how many parts": lambda score, b, h, i, j: score * slopes[h] if len(line.unbind()) < 8 else score + slopes[h] * j,
        "strides": lambda score, b, h, i, j: score * slopes[h] if narrow.stride(0) < 8 else score + slopes[h] * j,
        "index from the end": lambda score, b, h, i, j: score + table[i - j],
        "another tensor's elements": lambda score, b, h, i, j: score + slopes[h] * j * k.numel(),
        "what int32 holds": lambda score, b, h, i, j: score + slopes[h] * 1e-9 * (j.long() + 2_147_483_640).float(),
        "rank and dtype": lambda score, b, h, i, j: score * slopes[h] if line.dim() == 1 and q.dtype.is_floating_point and k.dtype == q.dtype else score,
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("a key that is not read", "the operand", "length of another", "an operand's part", "how many parts", "strides", "index from the end"),
        *("another tensor's elements", "what int32 holds", "rank and dtype"),
    ],
)
def test_new_sizes_have_the_trace_of_what_their_functions_ask(kind, random, resized, monkeypatch):
    with torch.no_grad():
        for keys in (4, 5, 6, 7, 8, 9, 7, 4):
            q, k, v = (torch.randn(1, H, n, D, generator=random) for n in (3, keys, keys))
            score_mod = asking(kind, random, keys, q, k)
            assert same(flex_attention(q, k, v, score_mod), anew(q, k, v, score_mod, monkeypatch=monkeypatch))
    # A tensor's rank and dtype are those of all calls, and int32 holds what fewer keys have.
    assert (True in resized) == (kind in ("what int32 holds", "rank and dtype"))


def test_new_sizes_have_the_trace_of_their_gradients(random, monkeypatch):
    """Functions may ask whether a tensor requires gradients, which decides nothing else while gradients are off."""
    slopes = torch.randn(H, generator=random)

    def score_mod(score, b, h, i, j):
        return score + slopes[h] * j if slopes.requires_grad else score + slopes[h] * i * j

    with torch.no_grad():
        for keys, is_learned in ((5, False), (5, True), (6, True), (6, False), (7, False), (8, True), (8, True), (9, True)):
            slopes.requires_grad_(is_learned)
            q, k, v = (torch.randn(1, H, n, D, generator=random) for n in (3, keys, keys))
            assert same(flex_attention(q, k, v, score_mod), anew(q, k, v, score_mod, monkeypatch=monkeypatch))


def test_sizes_that_come_often_have_a_handle_until_others_come(random, monkeypatch):
    given, destroy = [], open_attention._destroy()
    monkeypatch.setattr(open_attention, "_destroy", lambda: lambda handle: given.append(handle) or destroy(handle))
    monkeypatch.setattr(repeated_calls, "_CALLS_BEFORE_GUARD", 3)
    q, k, v = (torch.randn(1, H, 40, D, generator=random) for _ in range(3))
    with torch.no_grad():
        for n in (40, *range(2, 40)):
            flex_attention(q, k[:, :, :n], v[:, :, :n])
        assert not given
        for n in (7, 8, 9):
            for _ in range(5):
                flex_attention(q, k[:, :, :n], v[:, :, :n])
    assert len(given) == 2  # the last ones are there yet


def test_sizes_that_do_not_fit_are_refused_as_ever(random):
    q, k, v = (torch.randn(2, H, 8, D, generator=random) for _ in range(3))
    with torch.no_grad():
        for _ in range(2):
            flex_attention(q, k, v)
        with pytest.raises(ValueError, match="value: expected the length of key, 8, found 7"):
            flex_attention(q, k, v[:, :, :7].contiguous())
        with pytest.raises(ValueError, match="key: expected the batch of query, 1, found 2"):
            flex_attention(q[:1].contiguous(), k, v)
        assert flex_attention(q, k[:, :, :0].contiguous(), v[:, :, :0].contiguous()).abs().max() == 0


def test_many_sizes_keep_few(random, monkeypatch):
    monkeypatch.setattr(repeated_calls, "_MAX_SIZES", 4)
    q, k, v = (torch.randn(1, H, 30, D, generator=random) for _ in range(3))
    q.requires_grad_()  # calls with a backward are not made of another size's
    for n in (*range(1, 30), *range(1, 30)):
        flex_attention(q, k[:, :, :n], v[:, :, :n])
    (site,) = repeated_calls._sites.values()
    (variant,) = site.variants
    assert len(variant._entries) == 4


def test_a_part_of_a_cache_is_taken_as_any_tensor(seed):
    """The short way for parts of longer caches finds what the general rule finds, for strides that overlap, repeat or leave gaps, too."""
    choose, parts = pseudo_random.Random(seed), 0
    for _ in range(5000):
        shape = [choose.randint(1, 4) for _ in range(4)]
        strides = [choose.choice([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 64]) for _ in range(3)] + [choose.choice([1, 1, 2])]
        tensor = torch.empty(1000).as_strided(shape, strides)
        found = resized_calls.Resizing._is_taken(tensor, (tensor.shape, tensor.stride()))
        assert found == (taken(tensor, is_only_read=True) is tensor)
        parts += found and not tensor.is_contiguous()
    assert parts > 500


@pytest.fixture
def settled(monkeypatch):
    """The sizes that the library was asked for beside a call."""
    made, settle = [], prepared_calls.AtNewSizes.settled

    def counted(self):
        made.append(self._sizes)
        return settle(self)

    monkeypatch.setattr(prepared_calls.AtNewSizes, "settled", counted)
    return made


def test_sizes_are_described_once_while_they_stay(random, settled, monkeypatch):
    described, of = [], prepared_calls.AtNewSizes.of
    monkeypatch.setattr(repeated_calls, "_CALLS_BEFORE_GUARD", 3)
    monkeypatch.setattr(
        prepared_calls.AtNewSizes,
        "of",
        lambda of_all, prepared, layout, sizes, *others: described.append(sizes[4]) or of(of_all, prepared, layout, sizes, *others),
    )
    q, k, v = (torch.randn(1, H, n, D, generator=random) for n in (1, 30, 30))
    with torch.no_grad():
        flex_attention(q, k, v)
        described.clear()
        for n in (29, 29, 28, 29, 27, 27, 27, 27, 27):
            tensors = q, k[:, :, :n], v[:, :, :n]
            found, sizes = flex_attention(*tensors), [*described]
            assert torch.equal(found, anew(*tensors, monkeypatch=monkeypatch))
            described[:] = sizes
    # The sizes that came often have an attention of their own, which is asked for once.
    assert described == [29, 28, 29, 27] and settled == [(1, H, H, 1, 27, 0, 0, 0, 0)]


def test_a_workspace_that_was_guessed_too_small_is_made_larger(random, settled, nothing_compiled, monkeypatch):
    """The library refuses the first call at such sizes before it writes anything."""
    q, k, v = (torch.randn(1, H, 2000, D, generator=random) for _ in range(3))
    sizes = range(1000, 1008)
    with torch.no_grad():
        for n in sizes:
            tensors = q[:, :, :n], k[:, :, :n], v[:, :, :n]
            if n == sizes[2]:
                call = next(iter(repeated_calls._sites.values())).variants[0]._resizable.route.call
                of_all = call.compiled.forward.of_all
                needed = call.compiled.forward.workspace_bytes
                assert needed > 64, "the call has no workspace: the test says nothing"
                of_all.guessed_bytes = 64
            assert torch.equal(flex_attention(*tensors), anew(*tensors, monkeypatch=monkeypatch))
    assert [keys for *_, keys, _, _, _, _ in settled] == [sizes[2]]
    assert of_all.guessed_bytes >= needed


def test_short_memory_is_refused_at_a_new_size(random):
    q, k, v = (torch.randn(1, H, n, D, generator=random) for n in (1, 30, 30))
    with torch.no_grad():
        for n in (30, 29, 28):
            flex_attention(q, k[:, :, :n].contiguous(), v[:, :, :n].contiguous())
        for begin, left in ((0, 64), (1, 64), (20, 64), (20, 0)):  # the storage ends before the tensor does, or before it begins
            short = v.repeat(2, 1, 1, 1)[1:, :, :27] if begin else v[:, :, :27].contiguous()
            short.untyped_storage().resize_(left)
            with pytest.raises(ValueError, match="expected (v|value)'s storage to have"):
                flex_attention(q, k[:, :, :27].contiguous(), short)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@pytest.mark.parametrize("says_longest", [False, True])
@pytest.mark.parametrize("kind", ["plain", "slopes", "causal", "sink"])
def test_ragged_sequences_of_other_sizes(kind, says_longest, random, resized, monkeypatch):
    options = modifiers(random)[kind] | {"enable_gqa": True}
    if says_longest:
        options["max_length"] = 24
    with torch.no_grad():
        for sequences in (2, 2, 3, 1, 4, 2, 3):
            of_queries, of_keys = (torch.randint(0, 17, (sequences,), generator=random).tolist() for _ in range(2))
            of_queries[0], of_keys[0] = 16, 16  # so that the next power of two is the same
            q = torch.randn(sum(of_queries), H, D, generator=random)
            k, v = torch.randn(2, sum(of_keys), HEADS_KV, D, generator=random).unbind()
            given = dict(options, q_offsets=offsets_of(of_queries), kv_offsets=offsets_of(of_keys))
            assert same(flex_attention(q, k, v, **given), anew(q, k, v, monkeypatch=monkeypatch, **given))
    assert resized.count(True) >= 4


def test_a_ragged_step_goes_on_with_other_tokens(random, resized, nothing_compiled):
    """Queries, keys and values of one packed tensor, whose offsets are the same tensor."""
    with torch.no_grad():
        for lengths in ([5, 9], [4, 16, 2], [16]):
            packed = torch.randn(sum(lengths), 3 * H, D, generator=random)
            q, k, v = packed.split(H, 1)
            offsets = offsets_of(lengths)
            found = flex_attention(q, k, v, q_offsets=offsets, max_length=16)
            for first, end in zip(offsets[:-1], offsets[1:]):
                one = [x[first:end].transpose(0, 1)[None] for x in (q, k, v)]
                torch.testing.assert_close(found[first:end], flex_attention(*one)[0].transpose(0, 1))


@pytest.mark.parametrize("offsets", [[0, 4, 7], [1, 4, 8], [0, 8, 8], [0, 5, 4, 8], [0, 8, 9], [0, -1, 8]])
def test_ragged_offsets_that_do_not_fit_go_the_long_way(offsets, random, resized, monkeypatch):
    """They leave tokens to no sequence, descend, or are of a longer sequence than there may be."""
    with torch.no_grad():
        for tokens in (6, 7):
            x = torch.randn(tokens, H, D, generator=random)
            flex_attention(x, x, x, q_offsets=offsets_of([3, tokens - 3]), max_length=6)
        resized.clear()
        x, given = torch.randn(8, H, D, generator=random), {"q_offsets": torch.tensor(offsets, dtype=torch.int32), "max_length": 6}
        if offsets in ([0, 4, 7], [1, 4, 8]):
            assert same(flex_attention(x, x, x, **given), anew(x, x, x, monkeypatch=monkeypatch, **given))
        else:
            with pytest.raises(ValueError, match="max_length|do not descend"):
                flex_attention(x, x, x, **given)
