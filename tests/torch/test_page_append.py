"""New keys and values in the pages of a cache, against a loop over tokens."""

import random as pseudo_random

import pytest
import torch

import scoremod
from scoremod.torch import append_to_pages, flex_attention


def draw(seed):
    """Arguments of append_to_pages, and what a loop over the tokens makes of the pages."""
    choose, random = pseudo_random.Random(seed), torch.Generator().manual_seed(seed)
    batch, page, width, heads = choose.randint(1, 4), choose.choice([1, 3, 4]), choose.randint(1, 4), choose.randint(1, 3)
    pages = batch * width + 2
    pools = [torch.randn(pages, page, heads, dim, generator=random).transpose(1, 2) for dim in (4, 6)]
    pools = [pool.contiguous() for pool in pools] if choose.random() < 0.5 else pools
    table = torch.randperm(pages, generator=random)[: batch * width].reshape(batch, width)
    lengths = torch.tensor([choose.randint(0, width * page) for _ in range(batch)])
    counts = [choose.randint(0, int(length)) for length in lengths]
    before, after = choose.choice([(0, 0), (1, 2)])
    offsets = torch.tensor([0, *counts]).cumsum(0) + before
    tokens = int(offsets[-1]) + after
    new = [torch.randn(tokens, heads, pool.shape[-1], generator=random) for pool in pools]
    expected = [pool.clone() for pool in pools]
    for b, (count, length) in enumerate(zip(counts, lengths.tolist())):
        for i in range(count):
            place = length - count + i
            for pool, each in zip(expected, new):
                pool[table[b, place // page], :, place % page] = each[offsets[b] + i]
    return (*pools, *new, table, lengths, offsets), expected


@pytest.mark.parametrize("road", ["eager", "compiled", "no check"])
def test_random_appends(road, seed, monkeypatch):
    run = append_to_pages
    if road == "compiled":
        torch._dynamo.reset()
        run = torch.compile(append_to_pages, fullgraph=True, backend="aot_eager", dynamic=True)
    if road == "no check":  # as on a device
        monkeypatch.setattr("scoremod.torch.page_append.on_host", lambda tensor: False)
    for number in range(4 if road == "compiled" else 60):
        print("draw", number)
        arguments, expected = draw(seed + number)
        assert run(*arguments) is None
        for pool, each in zip(arguments, expected):
            assert torch.equal(pool, each)


def test_equally_many_tokens_of_each_sequence_and_attention_to_them(seed):
    """A step: the new keys are written, and the queries see them."""
    random = torch.Generator().manual_seed(seed)
    pools = list(torch.zeros(2, 9, 2, 4, 8).unbind())
    keys, values = torch.randn(2, 2, 2, 7, 8, generator=random).unbind()
    table, lengths = torch.randperm(9, generator=random)[:6].reshape(2, 3), torch.tensor([5, 5])
    append_to_pages(*pools, keys[:, :, :5], values[:, :, :5], table, lengths)
    append_to_pages(*pools, keys[:, :, 5:], values[:, :, 5:], table, lengths + 2)
    query = torch.randn(2, 2, 2, 8, generator=random)
    found = flex_attention(query, *pools, page_table=table, lengths=lengths + 2, mask_mod="causal_bottom_right")
    torch.testing.assert_close(found, flex_attention(query, keys, values, mask_mod="causal_bottom_right"))


def arguments(**changed):
    pool, new = torch.zeros(6, 2, 4, 8), torch.ones(5, 2, 8)
    given = dict(k_pages=pool, v_pages=pool.clone(), key=new, value=new, page_table=torch.tensor([[0, 1], [2, 3]]), lengths=torch.tensor([5, 8]), offsets=torch.tensor([0, 1, 5]))  # fmt: skip
    return given | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(page_table=torch.tensor([[0, 1], [2, 6]])), "found none for token 1 of sequence 1"),
        (dict(page_table=torch.tensor([[0, -1], [2, 3]])), "found none for token 0 of sequence 0"),
        (dict(lengths=torch.tensor([5, 9])), "found none for token 4 of sequence 1"),
        (dict(lengths=torch.tensor([5, 3])), "found none for token 1 of sequence 1"),
        (dict(lengths=torch.tensor([5])), "lengths: expected a length for each of page_table's 2 rows"),
        (dict(offsets=torch.tensor([0, 5])), "offsets: expected 3 numbers"),
        (dict(offsets=None), r"key: expected \[batch, KV heads, sequence, dim\] without offsets"),
        (dict(key=torch.ones(5, 1, 8)), "key: expected 2 heads and a head dim of 8"),
        (dict(value=torch.ones(4, 2, 8)), "value: expected 2 heads .* alike for key and value"),
        (dict(value=torch.ones(5, 2, 8, dtype=torch.bfloat16)), "value: expected torch.float32 on cpu"),
        (dict(v_pages=torch.zeros(6, 2, 5, 8)), "v_pages: expected"),
    ],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_what_does_not_fit_is_refused_and_writes_nothing(changed, message, compiled):
    given = arguments(**changed)
    if compiled and "found none" not in message:
        pytest.skip("what shapes tell is refused in the same lines")
    run = torch.compile(append_to_pages, backend="aot_eager") if compiled else append_to_pages
    with pytest.raises(scoremod.InvalidArgumentError, match=message):
        run(**given)
    assert not given["k_pages"].any()


def test_learned_keys_leave_the_cache_without_a_gradient():
    given = arguments(key=torch.ones(5, 2, 8, requires_grad=True))
    append_to_pages(**given)
    assert not given["k_pages"].requires_grad and given["k_pages"].any()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_pages_take_what_is_divided_by_the_scale(dtype, seed):
    for number in range(20):
        print("draw", number)
        (k_pages, v_pages, key, value, *places), _ = draw(seed + number)
        scales = torch.rand(k_pages.shape[1]) * 0.01 + 1e-3, 0.05
        stored = []
        for new, scale in ((key, scales[0][:, None]), (value, scales[1])):
            largest = torch.finfo(dtype).max
            stored.append((new / scale).clamp(-largest, largest).to(dtype))
        pools, expected = ([each.to(dtype) for each in (k_pages, v_pages)] for _ in range(2))
        append_to_pages(*expected, *stored, *places)
        append_to_pages(*pools, key, value, *places, descale_k=scales[0], descale_v=scales[1])
        for found, each in zip(pools, expected):
            assert torch.equal(found.view(torch.uint8), each.view(torch.uint8))


def test_what_is_said_of_scales():
    pools, new, places = torch.zeros(2, 2, 1, 4, 8).unbind(), torch.ones(2, 1, 1, 1, 8).unbind(), (torch.tensor([[0]]), torch.tensor([1]))
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_k: expected none but for FP8 pages"):
        append_to_pages(*pools, *new, *places, descale_k=1.0)
    pools = [each.to(torch.float8_e4m3fn) for each in pools]
    with pytest.raises(scoremod.InvalidArgumentError, match="found torch.float32 on cpu; give descale_k"):
        append_to_pages(*pools, *new, *places)
    scales = {"descale_k": torch.ones(2), "descale_v": torch.ones(2)}
    for wrong, message in ((torch.ones(1, 3, 1, 8), "key: expected 1 heads"), (torch.ones(8), "key: expected .batch, KV heads")):
        with pytest.raises(scoremod.InvalidArgumentError, match=message):
            append_to_pages(*pools, wrong, new[1], *places, **scales)
    with pytest.raises(scoremod.InvalidArgumentError, match="k_pages: expected"):
        append_to_pages(pools[0][0, 0, 0], pools[1], *new, *places, **scales)
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_v: expected a positive finite number"):
        append_to_pages(*pools, *new, *places, descale_k=1.0, descale_v=0)
    new = new[0] * torch.tensor([1e9, float("nan")] * 4), new[1]
    append_to_pages(*pools, *new, *places, descale_k=1.0, descale_v=0.5)
    assert pools[0][0, 0, 0, ::2].float().eq(448).all() and pools[0][0, 0, 0, 1::2].float().isnan().all() and pools[1][0, 0, 0].float().eq(2).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_each_token_gets_a_scale_of_its_own(dtype, seed):
    for number in range(20):
        print("draw", number)
        (k_pages, v_pages, key, value, *places), _ = draw(seed + number)
        key, value = (each * 10 ** (torch.rand(each.shape[:-1]) * 6 - 3)[..., None] for each in (key, value))
        pools = [each.to(dtype) for each in (k_pages, v_pages)]
        scales = [torch.rand(*k_pages.shape[:3], 1) for _ in range(2)]
        wide = [pool.float() * scale for pool, scale in zip(pools, scales)]
        append_to_pages(*wide, key, value, *places)
        append_to_pages(*pools, key, value, *places, descale_k=scales[0], descale_v=scales[1])
        step = 2**-4 if dtype == torch.float8_e4m3fn else 2**-3
        for pool, scale, expected in zip(pools, scales, wide):
            # Half of a step of the token's largest number.
            most = expected.abs().amax(-1, keepdim=True)
            assert ((pool.float() * scale - expected).abs() <= step * most).all()
            assert torch.equal(pool.float().abs().amax(-1).eq(0), expected.abs().amax(-1).eq(0))


def test_what_is_said_of_scales_of_tokens():
    pools, new, places = torch.zeros(2, 2, 3, 4, 8).unbind(), torch.ones(2, 1, 3, 1, 8).unbind(), (torch.tensor([[0]]), torch.tensor([1]))
    scales = torch.ones(2, 3, 4, 1)
    with pytest.raises(scoremod.InvalidArgumentError, match="descale_k: expected none but for FP8 pages"):
        append_to_pages(*pools, *new, *places, descale_k=scales)
    pools = [each.to(torch.float8_e4m3fn) for each in pools]
    for wrong in (scales[:1], scales[:, :, :2], scales.double(), scales.expand(2, 3, 4, 8)):
        with pytest.raises(scoremod.InvalidArgumentError, match=r"descale_v: expected a scale of each position of the pages, float32 \(2, 3, 4, 1\)"):
            append_to_pages(*pools, *new, *places, descale_k=scales, descale_v=wrong)
    new = torch.tensor([0.0, -0.0] * 4).expand(1, 3, 1, 8), torch.tensor([float("inf"), float("nan"), 1e-44, 1.0] * 2).expand(1, 3, 1, 8)
    found = scales.clone(), scales.clone()
    append_to_pages(*pools, *new, *places, descale_k=found[0], descale_v=found[1])
    assert found[0].eq(1).all() and pools[0].float().eq(0).all()
    infinite, not_a_number = (pools[1].float() * found[1])[0, 0, 0, :2]
    assert infinite.isnan() or infinite > 3e38
    assert not_a_number.isnan()


def test_attention_over_scales_of_tokens(seed):
    """Equals attention over the numbers that the pages stand for."""
    torch.manual_seed(seed)
    pools = [torch.zeros(6, 2, 16, 32).to(torch.float8_e4m3fn) for _ in range(2)]
    scales = [torch.zeros(6, 2, 16, 1) for _ in range(2)]
    table, lengths = torch.tensor([[4, 0], [1, 5]]), torch.tensor([20, 31])
    key, value = torch.randn(2, 2, 2, 31, 32).unbind()
    offsets = torch.tensor([0, 20, 51])
    tokens = [torch.cat([each[0, :, :20], each[1]], 1).transpose(0, 1) for each in (key, value)]
    append_to_pages(*pools, *tokens, table, lengths, offsets, descale_k=scales[0], descale_v=scales[1])
    query = torch.randn(2, 4, 1, 32)
    options = {"page_table": table, "lengths": lengths, "enable_gqa": True}
    found = flex_attention(query, *pools, **options, descale_k=scales[0], descale_v=scales[1])
    expected = flex_attention(query, *(pool.float() * scale for pool, scale in zip(pools, scales)), **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
