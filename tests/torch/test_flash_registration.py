"""PyTorch's scaled_dot_product_attention and varlen_attn by scoremod, held to float64; its operators to their meta functions."""

import random as pseudo_random

import pytest
import torch
from dense_reference import attention_and_lse
from test_flash_attn import definition
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl, restore_flash_attention_impl
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out
from torch.nn.functional import scaled_dot_product_attention

import scoremod
import scoremod.torch
from scoremod.torch import api, flash_registration

ATEN = torch.ops.aten
FLASH = ("_scaled_dot_product_flash_attention", "_flash_attention_forward", "_scaled_dot_product_flash_attention_for_cpu")


@pytest.fixture
def calls(monkeypatch):
    """The tensors of each forward that scoremod runs, while it is the active implementation."""
    made, run = [], flash_registration.flex_attention

    def seen(q, k, v, *others, **options):
        made.append((q, k, v))
        return run(q, k, v, *others, **options)

    monkeypatch.setattr(flash_registration, "flex_attention", seen)
    scoremod.torch.register()
    activate_flash_attention_impl("scoremod")
    yield made
    restore_flash_attention_impl()


def heads_of(layout, batch, heads, heads_kv, queries, keys, dim, dtype, random):
    """q, k, v [batch, heads, sequence, dim] in a layout of memory; "packed" are the parts of one projection."""
    if layout == "packed":
        whole = torch.randn(batch, queries, heads + 2 * heads_kv, dim, generator=random).to(dtype)
        return [x.transpose(1, 2) for x in whole.split([heads, heads_kv, heads_kv], dim=2)]
    shapes = [(batch, h, s, dim) for h, s in ((heads, queries), (heads_kv, keys), (heads_kv, keys))]
    if layout == "BHSD":
        return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    return [torch.randn(b, s, h, d, generator=random).to(dtype).transpose(1, 2) for b, h, s, d in shapes]


def with_gradients(attention, tensors, weight):
    tensors = [x.detach().requires_grad_() for x in tensors]
    o = attention(*tensors)
    return [o.detach(), *torch.autograd.grad((o * weight.to(o.dtype)).sum(), tensors)]


def near(found, plain, truth):
    """Errors are up to four times those of plain attention in the same dtype, beside what the dtype rounds to: of one key, gradients are rounding alone."""
    largest = max(t.abs().max() for t in truth)
    for x, p, t in zip(found, plain, truth, strict=True):
        assert x.dtype == p.dtype and x.shape == p.shape
        allowed = 4 * (p.double() - t).abs().max() + 32 * torch.finfo(x.dtype).eps * largest
        assert (x.double() - t).abs().max() <= allowed


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize("layout", ["BHSD", "BSHD", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa_is_right(layout, dtype, calls, seed, random, monkeypatch):
    monkeypatch.setattr(api, "copied_to", None)  # an output is written where it is returned
    choose = pseudo_random.Random(seed)
    for number in range(4):
        print("draw", number)
        heads_kv, queries, is_causal = choose.choice([1, 2]), choose.randint(2, 40), choose.random() < 0.5
        group = 3 if heads_kv == 1 else choose.choice([1, 3])  # strides of a single head, or query, say nothing
        keys = queries if layout == "packed" else choose.randint(1, 40)
        q, k, v = heads_of(layout, choose.choice([1, 3]), heads_kv * group, heads_kv, queries, keys, 16, dtype, random)
        options = dict(is_causal=is_causal, scale=choose.choice([None, 0.3]), enable_gqa=group > 1)
        weight = torch.randn(q.shape, generator=random)
        count = len(calls)
        found = with_gradients(lambda *each: scaled_dot_product_attention(*each, **options), (q, k, v), weight)  # noqa: B023
        # PyTorch repeats the keys of groups before it calls its operator of the CPU.
        assert len(calls) == count + 1 and (group > 1 or all(x.data_ptr() == y.data_ptr() for x, y in zip(calls[-1], (q, k, v))))
        dense = lambda *each: attention_and_lse(*each, mask_mod=causal if is_causal else None, scale=options["scale"])[0]  # noqa: E731, B023
        near(found, *(with_gradients(dense, [x.to(kind) for x in (q, k, v)], weight) for kind in (dtype, torch.float64)))


def test_another_mask_would_be_seen(calls, random):
    q, k, v = heads_of("BHSD", 2, 2, 2, 9, 9, 16, torch.float32, random)
    weight = torch.randn(q.shape, generator=random)
    found = with_gradients(lambda *each: scaled_dot_product_attention(*each, is_causal=True), (q, k, v), weight)
    dense = [with_gradients(lambda *each: attention_and_lse(*each)[0], [x.to(kind) for x in (q, k, v)], weight) for kind in (torch.float32, torch.float64)]
    with pytest.raises(AssertionError):
        near(found, *dense)


def test_what_is_not_taken_stays_pytorchs(calls, random):
    q, k, v = heads_of("BHSD", 2, 2, 2, 9, 9, 16, torch.float32, random)
    mask = torch.rand(9, 9, generator=random) < 0.7
    cases = [((q, k, v), {"attn_mask": mask}), ((q.double(), k.double(), v.double()), {"is_causal": True})]
    weight = torch.randn(q.shape, generator=random)
    found = [with_gradients(lambda *each: scaled_dot_product_attention(*each, **options), tensors, weight) for tensors, options in cases]  # noqa: B023
    assert not calls
    restore_flash_attention_impl()
    for (tensors, options), results in zip(cases, found):
        own = with_gradients(lambda *each: scaled_dot_product_attention(*each, **options), tensors, weight)  # noqa: B023
        assert all(map(torch.equal, results, own))


def test_the_implementation_is_active_from_one_call_to_another(random):
    q, k, v = heads_of("BHSD", 1, 2, 2, 9, 9, 16, torch.float32, random)
    scoremod.torch.register("another name")
    own = scaled_dot_product_attention(q, k, v)
    assert current_flash_attention_impl() is None
    activate_flash_attention_impl("another name")
    assert current_flash_attention_impl() == "another name"
    restore_flash_attention_impl()
    assert current_flash_attention_impl() is None and torch.equal(scaled_dot_product_attention(q, k, v), own)


def test_varlen_attn_is_right(calls, seed, random):
    choose = pseudo_random.Random(seed)
    for number in range(5):
        print("draw", number)
        heads_kv, group, batch, window = choose.choice([1, 2]), choose.choice([1, 2]), 3, choose.choice([(-1, -1), (-1, 0), (3, 0), (2, 4)])
        queries = [choose.randint(0, 9) for _ in range(batch - 1)] + [choose.randint(1, 9)]
        keys = queries if choose.random() < 0.5 else [choose.randint(1, 9) for _ in range(batch)]
        of_q, of_k = (torch.tensor([0, *each], dtype=torch.int32).cumsum(0, dtype=torch.int32) for each in (queries, keys))
        of_k = of_q if keys is queries and choose.random() < 0.5 else of_k
        draw = lambda *shape: torch.randn(shape, generator=random)  # noqa: E731
        tensors = draw(sum(queries), heads_kv * group, 8), draw(sum(keys), heads_kv, 8), draw(sum(keys), heads_kv, 8)
        weight = draw(*tensors[0].shape)
        options = dict(window_size=window, enable_gqa=group > 1)

        def attend(q, k, v):
            return varlen_attn(q, k, v, of_q, of_k, max(queries), max(keys), return_aux=AuxRequest(lse=True), **options)  # noqa: B023

        def dense(q, k, v):
            parts = [slice(*each) for each in zip(of_q, of_q[1:])], [slice(*each) for each in zip(of_k, of_k[1:])]  # noqa: B023
            own = [definition(q[a], k[b], v[b], window == (-1, 0), window, 0.0, None, None) for a, b in zip(*parts)]  # noqa: B023
            return torch.cat([o for o, _ in own]), torch.cat([lse for _, lse in own], 1)

        lse, true_lse = attend(*tensors)[1], dense(*tensors)[1]
        torch.testing.assert_close(lse.double(), true_lse, rtol=1e-4, atol=1e-5)
        found = with_gradients(lambda *each: attend(*each)[0], tensors, weight)
        truth = with_gradients(lambda *each: dense(*each)[0], [x.double() for x in tensors], weight.double())
        for x, t in zip(found, truth):
            torch.testing.assert_close(x.double(), t, rtol=1e-4, atol=1e-5)
        # The keys of a cache, in pages.
        pages_k, pages_v, page = draw(15, 2, heads_kv, 8), draw(15, 2, heads_kv, 8), torch.randperm(15, generator=random).int().reshape(3, 5)
        used, out = torch.tensor([choose.randint(1, 10) for _ in range(batch)], dtype=torch.int32), draw(*tensors[0].shape)
        o = varlen_attn_out(out, tensors[0], pages_k, pages_v, of_q, None, max(queries), 10, seqused_k=used, block_table=page, **options)
        assert o is out
        for b in range(batch):
            rows, (k, v) = slice(of_q[b], of_q[b + 1]), (pool[page[b].long()].flatten(0, 1)[: used[b]] for pool in (pages_k, pages_v))
            expected, _ = definition(tensors[0][rows], k, v, window == (-1, 0), window, 0.0, None, None)
            torch.testing.assert_close(o[rows].double(), expected, rtol=1e-4, atol=1e-5)
    assert calls


def operator_arguments(name, random, layout="BHSD", **options):
    q, k, v = heads_of(layout, 2, 2, 2, 9, 9, 16, torch.float32, random)
    if name == "_flash_attention_forward":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return [q, k, v, None, None, 9, 9, options.get("dropout_p", 0.0), True, False]
    return [q, k, v, options.get("dropout_p", 0.0), True]


@pytest.mark.parametrize("layout", ["BHSD", "BSHD", "packed"])
@pytest.mark.parametrize("name", FLASH)
def test_operators_are_as_their_meta_functions_say(name, layout, calls, random):
    operator, arguments = getattr(ATEN, name).default, operator_arguments(name, random, layout)
    arguments[:3] = [x.requires_grad_() for x in arguments[:3]]
    torch.library.opcheck(operator, tuple(arguments))
    found, expected = operator(*arguments), operator(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments))
    for x, m in zip(found, expected):
        if isinstance(x, torch.Tensor):
            assert (x.shape, x.stride(), x.dtype) == (m.shape, m.stride(), m.dtype)
    gradients = torch.autograd.grad(found[0].sum(), arguments[:3])
    if not name.endswith("cpu"):
        assert [x.stride() for x in gradients] == [torch.empty_like(x).stride() for x in arguments[:3]]


@pytest.mark.parametrize("name", FLASH[:2])
def test_dropout_has_the_gradients_of_what_it_kept(name, calls, random):
    """The output is linear in v, and its derivative in q is a quotient of differences with the same weights dropped."""
    operator, arguments = getattr(ATEN, name).default, operator_arguments(name, random, dropout_p=0.4)
    weight, step = torch.randn(arguments[0].shape, generator=random), torch.randn(arguments[0].shape, generator=random)

    def loss(q, k, v):
        torch.manual_seed(3)
        return (operator(q, k, v, *arguments[3:])[0] * weight).sum()

    q, k, v = (x.detach().requires_grad_() for x in arguments[:3])
    whole = (operator(q, k, v, *(0.0 if each == 0.4 else each for each in arguments[3:]))[0] * weight).sum()
    value = loss(q, k, v)
    assert (value - whole).abs() > 1e-3
    dq, dk, dv = torch.autograd.grad(value, (q, k, v))
    torch.testing.assert_close((dv * v).sum(), value, rtol=1e-3, atol=1e-3)
    for i, gradient in ((0, dq), (1, dk)):
        ends = [[q, k, v], [q, k, v]]
        for end, sign in zip(ends, (1, -1)):
            end[i] = end[i] + sign * 1e-2 * step
        difference = (loss(*ends[0]) - loss(*ends[1])) / 2e-2
        torch.testing.assert_close((gradient * step).sum(), difference, rtol=2e-2, atol=2e-2)


def test_graphs_are_served(calls, random):
    q, k, v = (x.requires_grad_() for x in heads_of("BSHD", 2, 2, 2, 9, 9, 16, torch.float32, random))
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)

    def both(q, k, v):
        tokens = [x[0].transpose(0, 1) for x in (q, k, v)]
        return scaled_dot_product_attention(q, k, v, is_causal=True).sum() + varlen_attn(*tokens, ends, ends, 5, 5, window_size=(-1, 0)).square().sum()

    expected = torch.autograd.grad(both(q, k, v), (q, k, v))
    count = len(calls)
    found = torch.autograd.grad(torch.compile(both, fullgraph=True, backend="aot_eager")(q, k, v), (q, k, v))
    assert len(calls) > count
    torch.testing.assert_close(found, expected)


def test_what_is_not_there_is_refused(calls, monkeypatch, random):
    q = torch.randn(1, 9, 2, 16, generator=random)
    with pytest.raises(scoremod.UnsupportedError, match="return_debug_mask"):
        ATEN._flash_attention_forward(q, q, q, None, None, 9, 9, 0.0, False, True)
    with pytest.raises(scoremod.UnsupportedError, match="seqused_k"):
        ATEN._flash_attention_forward(q, q, q, None, None, 9, 9, 0.0, False, False, seqused_k=torch.tensor([3], dtype=torch.int32))
    monkeypatch.delattr(torch.nn.attention, "register_flash_attention_impl")
    with pytest.raises(scoremod.UnsupportedError, match=r"register_flash_attention_impl.*found 2"):
        scoremod.torch.register()
