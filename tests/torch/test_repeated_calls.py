"""Calls that differ from an earlier one in addresses alone: they ask for nothing else, and whatever else differs is seen."""

import math
import types

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from scoremod.torch import api, flex_attention, repeated_calls
from scoremod.torch.function_keys import key_of
from scoremod.torch.watches import watch_of

H, S, D = 2, 5, 8


@pytest.fixture
def tensors(random):
    return [torch.randn(1, H, S, D, generator=random) for _ in range(3)]


@pytest.fixture
def found(monkeypatch):
    """For each call, whether it was found by its arguments alone."""
    answers, repeated = [], api.repeated

    def counted(*request):
        result = repeated(*request)
        answers.append(result is not None)
        return result

    monkeypatch.setattr(api, "repeated", counted)
    return answers


class Layer(torch.nn.Module):
    factor = 2.0

    def __init__(self, random):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.randn(H, generator=random))
        self.by_name = torch.nn.ParameterDict({"slopes": torch.nn.Parameter(torch.randn(H, generator=random))})
        self.by_number = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(H, generator=random))])
        self.inner = torch.nn.Linear(H, 1)
        self.cap, self.caps, self.table = 4.0, [4.0, 8.0], {"cap": 4.0}


def doubled(x):
    return 2 * x


def readers(layer, slopes, random):
    """name -> a function, and changes after each of which it reads something else."""
    box, number = types.SimpleNamespace(slopes=slopes, cap=3), 2.5
    parameter = lambda: torch.nn.Parameter(torch.randn(H, generator=random))  # noqa: E731

    def set_inner():
        layer.inner = torch.nn.Linear(H, 1)

    def set_number(value):
        nonlocal number
        number = value

    def set_function():
        globals()["doubled"] = lambda x: 3 * x

    return {
        "tensor": (lambda s, b, h, i, j: s + slopes[h], [lambda: slopes.__setattr__("mark", 1.0)]),
        "number": (lambda s, b, h, i, j: s * number, [lambda: set_number(3.5), lambda: set_number(-0.0), lambda: set_number(0.0), lambda: set_number(0)]),
        "function": (lambda s, b, h, i, j: doubled(s), [set_function]),
        "library": (lambda s, b, h, i, j: torch.tanh(s) * math.sqrt(4.0), []),
        "attribute": (
            lambda s, b, h, i, j: s + layer.slopes[h],
            [lambda: layer.__setattr__("slopes", parameter()), lambda: layer.slopes.requires_grad_(False)],
        ),
        "constant": (lambda s, b, h, i, j: s * layer.cap, [lambda: layer.__setattr__("cap", 5.0), lambda: layer.__setattr__("cap", 5)]),
        "of the class": (lambda s, b, h, i, j: s * layer.factor, [lambda: setattr(Layer, "factor", 3.0), lambda: layer.__setattr__("factor", 4.0)]),
        "ParameterDict": (lambda s, b, h, i, j: s + layer.by_name["slopes"][h], [lambda: layer.by_name.update({"slopes": parameter()})]),
        "ParameterList": (lambda s, b, h, i, j: s + layer.by_number[0][h], [lambda: layer.by_number.__setitem__(0, parameter())]),
        "module within": (lambda s, b, h, i, j: s + layer.inner.weight[0, h], [set_inner]),
        "list": (lambda s, b, h, i, j: s * layer.caps[1], [lambda: layer.caps.__setitem__(1, 9.0)]),
        "dict": (lambda s, b, h, i, j: s * layer.table["cap"], [lambda: layer.table.update(cap=9.0)]),
        "namespace": (lambda s, b, h, i, j: s * box.cap + box.slopes[h], [lambda: setattr(box, "cap", 3.0), lambda: setattr(box, "slopes", parameter())]),
    }


KINDS = list(readers(Layer(None), torch.zeros(H), None))


@pytest.mark.parametrize("kind", KINDS)
def test_a_watch_sees_what_a_key_sees(kind, random, monkeypatch):
    """A function of which a watch says that it reads the same has the same key and the same tensors."""
    monkeypatch.setitem(globals(), "doubled", doubled)
    monkeypatch.setattr(Layer, "factor", 2.0)
    function, changes = readers(Layer(random), torch.randn(H, generator=random), random)[kind]
    key, read = key_of(function, None)
    watch, seen = watch_of(function), []
    assert watch is not None and watch(function, seen) and [*map(id, seen)] == [*map(id, read)]
    for change in changes:
        change()
        after, read = key_of(function, None)
        seen = []
        same = watch(function, seen)
        assert not same or (after == key and [*map(id, seen)] == [*map(id, read)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_comes_again_is_found_and_a_changed_one_is_right(kind, tensors, random, found, monkeypatch):
    monkeypatch.setitem(globals(), "doubled", doubled)
    monkeypatch.setattr(Layer, "factor", 2.0)
    function, changes = readers(Layer(random), torch.randn(H, generator=random), random)[kind]
    with torch.no_grad():
        for number, change in enumerate((lambda: None, *changes)):
            change()
            score = torch.einsum("bhid,bhjd->bhij", tensors[0], tensors[1]) / math.sqrt(D)
            h = torch.arange(H)
            modified = torch.vmap(lambda s, h: function(s, None, h, None, None), in_dims=(1, 0), out_dims=1)(score, h)
            expected = torch.einsum("bhij,bhjd->bhid", modified.softmax(-1), tensors[2])
            found.clear()
            outputs = [flex_attention(*tensors, function) for _ in range(3)]
            for each in outputs:
                torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-5)
            assert all(torch.equal(each, outputs[0]) for each in outputs[1:])
            assert number > 0 or found == [False, True, True]  # a number that changes becomes an operand, whose calls are not found


def test_a_fresh_closure_is_found(tensors, found, random):
    slopes = torch.randn(H, generator=random)
    for _ in range(3):
        flex_attention(*tensors, lambda score, b, h, i, j: score + slopes[h])
    assert found == [False, True, True]


@pytest.mark.parametrize("same", ["all", "query and key", "query and value", "key and value", "lengths", "sink"])
def test_one_tensor_in_several_places_is_found(same, tensors, found, random):
    """Other tensors of the same looks are not taken for it, at other sizes either."""

    def given(keys):
        q, k, v = (torch.randn(2, H, keys, D, generator=random) for _ in range(3))
        lengths, slopes = torch.tensor([keys, 1], dtype=torch.int32), torch.randn(H, generator=random)
        again = {"all": (q, q, q), "query and key": (q, q, v), "query and value": (q, k, q), "key and value": (q, k, k)}.get(same, (q, k, v))
        ids, sink = (lengths if same == "lengths" else lengths.flip(0)), (slopes if same == "sink" else slopes + 1)
        function = lambda s, b, h, i, j: s + slopes[h] * j + ids[b]  # noqa: E731
        return again, function, {"lengths": lengths, "sink": sink}

    def expected(q, k, v, function, options):
        apart = {name: each.clone() for name, each in options.items()}
        return flex_attention(q.clone(), k.clone(), v.clone(), lambda s, b, h, i, j: function(s, b, h, i, j) + 0.0 * s, **apart)

    with torch.no_grad():
        for number, keys in enumerate((5, 5, 6, 7, 5)):
            (q, k, v), function, options = given(keys)
            found.clear()
            o = flex_attention(q, k, v, function, **options)
            assert found == [number > 0]
            torch.testing.assert_close(o, expected(q, k, v, function, options), rtol=1e-5, atol=1e-5)
        for keys in (5, 8):  # negative control: no tensor comes twice
            (q, k, v), function, options = given(keys)
            q, k, v = (x + number for number, x in enumerate((q, k, v)))
            options = {name: each + 0 for name, each in options.items()}
            torch.testing.assert_close(flex_attention(q, k, v, function, **options), expected(q, k, v, function, options), rtol=1e-5, atol=1e-5)


def test_gradients_of_one_tensor_in_all_places(found, random):
    x = torch.randn(1, H, S, D, generator=random, requires_grad=True)
    apart = [x.detach().clone().requires_grad_() for _ in range(3)]
    expected = sum(torch.autograd.grad(flex_attention(*apart).square().sum(), apart))
    found.clear()
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(flex_attention(x, x, x).square().sum(), x)[0], expected, rtol=1e-4, atol=1e-5)
    assert found == [False, True, True]


def test_dtypes_take_turns(tensors, found):
    others = [each.to(torch.bfloat16) for each in tensors]
    for number in range(3):
        for each in (tensors, others):
            assert flex_attention(*each).dtype == each[0].dtype
        assert found[-2:] == [number > 0] * 2


def test_a_mask_by_name_is_found(tensors, found):
    expected = flex_attention(*tensors, mask_mod=lambda b, h, i, j: i >= j)
    found.clear()
    assert all(torch.equal(flex_attention(*tensors, mask_mod="causal"), expected) for _ in range(3))
    assert found == [False, True, True]


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


class _Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(
    "state",
    [_Dispatch, _Functions, forward_ad.dual_level, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad],
    ids=["dispatch mode", "function mode", "dual level", "inference mode", "autocast", "no_grad"],
)
def test_a_call_within_another_state_is_another(tensors, found, state):
    def sum_of(score, b, h, i, j):
        return score + 1.0

    for _ in range(2):
        flex_attention(*tensors, sum_of)
    with state():
        flex_attention(*tensors, sum_of)
    assert found == [False, True, False]


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_a_call_within_a_transformation_is_another(tensors, found, transform):
    for _ in range(2):
        flex_attention(*tensors)

    def call(x):
        return (flex_attention(*tensors) * x).sum()

    torch.func.vmap(call)(torch.ones(2)) if transform == "vmap" else torch.func.grad(call)(torch.ones(()))
    assert found == [False, True, False]


def test_settings_are_asked_for_at_each_call(tensors, found, monkeypatch):
    for _ in range(2):
        flex_attention(*tensors)
    monkeypatch.setenv("SCOREMOD_THREADS", "1")
    flex_attention(*tensors)
    monkeypatch.delenv("SCOREMOD_THREADS")
    flex_attention(*tensors)
    assert found == [False, True, False, True]


def test_tensors_of_another_look_are_another_call(tensors, found, random):
    q, k, v = tensors
    for _ in range(2):
        flex_attention(q, k, v)
    q_of_heads = q.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(flex_attention(q_of_heads, k, v), flex_attention(q, k, v))
    flex_attention(q.double().float().requires_grad_(), k, v)
    flex_attention(q.half(), k.half(), v.half())
    assert found == [False, True, True, True, False, False]  # the third has other strides alone


def test_lengths_in_host_memory_are_looked_at_each_time(tensors, found):
    lengths = torch.tensor([3])
    whole = flex_attention(*tensors, lengths=lengths)
    assert torch.equal(flex_attention(*tensors, lengths=lengths), whole) and found == [False, True]
    lengths[0] = S + 1
    with pytest.raises(ValueError, match="expected lengths of keys from 0 to 5"):
        flex_attention(*tensors, lengths=lengths)
    lengths[0] = 2
    assert not torch.equal(flex_attention(*tensors, lengths=lengths), whole)


def test_offsets_in_host_memory_are_looked_at_each_time(found, random):
    q, k, v = (torch.randn(9, H, D, generator=random) for _ in range(3))
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    for _ in range(2):
        flex_attention(q, k, v, q_offsets=offsets)
    offsets[1] = 3
    moved = flex_attention(q, k, v, q_offsets=offsets)
    torch.testing.assert_close(moved[:3], flex_attention(q[:3], k[:3], v[:3], q_offsets=torch.tensor([0, 3], dtype=torch.int32)))
    assert found[:3] == [False, True, True]
    offsets[2] = 8  # the last token is in no sequence
    assert (flex_attention(q, k, v, q_offsets=offsets)[8] == 0).all()
    offsets[1] = 9
    with pytest.raises(ValueError, match="that do not descend"):
        flex_attention(q, k, v, q_offsets=offsets)


def test_gradients_of_a_call_that_is_found_are_those_of_the_first(tensors, found, random):
    tensors = [each.requires_grad_() for each in tensors]
    slopes, upstream = torch.randn(H, generator=random, requires_grad=True), torch.randn(1, H, S, D, generator=random)

    def score_mod(score, b, h, i, j):
        return score + slopes[h] * j

    first, *others = [torch.autograd.grad(flex_attention(*tensors, score_mod), (*tensors, slopes), upstream) for _ in range(3)]
    assert found == [False, True, True]
    assert all(torch.equal(x, y) for other in others for x, y in zip(first, other, strict=True))


def test_sites_stay_few(tensors, monkeypatch):
    monkeypatch.setattr(repeated_calls, "_MAX_REMEMBERED", 4)
    for cap in range(1, 9):
        flex_attention(*tensors, lambda score, b, h, i, j: score * cap)  # noqa: B023
    (site,) = repeated_calls._sites.values()
    assert len(site.variants) == 4
