"""Eager calls of a kind that was seen before: the same numbers by the short way, and PyTorch's operators where there is more than a call."""

import functools
import threading

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import and_masks, or_masks
from torch.utils._python_dispatch import TorchDispatchMode

import scoremod
from scoremod import library
from scoremod.torch import api, eager_calls, flex_attention, kept_traces, prepared_calls

B, H, S, D = 2, 4, 13, 8


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(eager_calls, "_kept", {})


@pytest.fixture
def tensors(random):
    return [torch.randn(B, H, S, D, generator=random) for _ in range(3)]


@pytest.fixture
def by_operator(monkeypatch):
    """flex_attention without the short way."""

    def attend(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(api, "is_plain", lambda *tensors: False)
            patch.setattr(api, "repeated", lambda *request: None)
            return flex_attention(*arguments, **options)

    return attend


def alibi(slopes, factor=1.0):
    return lambda score, b, h, q_idx, kv_idx: factor * score + slopes[h] * (kv_idx - q_idx)


def test_the_second_call_of_a_kind_neither_traces_nor_dispatches(tensors, monkeypatch):
    slopes = torch.randn(H)
    first = flex_attention(*tensors, alibi(slopes), mask_mod=causal)
    monkeypatch.setattr(kept_traces.Tracer, "trace", None)
    monkeypatch.setattr(api, "attention", None)
    assert torch.equal(flex_attention(*tensors, alibi(slopes), mask_mod=causal), first)
    assert len(eager_calls._kept) == 1


def test_what_changes_is_seen(tensors, by_operator, random):
    """Each of these follows a call that differs in one thing."""
    q, k, v = tensors
    slopes, ids = torch.randn(H, generator=random), torch.zeros(B, S + 1, dtype=torch.int64)
    factor, shift = 1.0, torch.tensor(0.5)

    def score_mod(score, b, h, q_idx, kv_idx):
        return factor * score + slopes[h] * (kv_idx - q_idx) * shift

    def same_document(b, h, q_idx, kv_idx):
        return ids[b, q_idx] == ids[b, kv_idx]

    seen = []

    def check(**options):
        arguments = (q, k, v, score_mod), {"mask_mod": same_document, **options}
        found = flex_attention(*arguments[0], **arguments[1])
        found = found if isinstance(found, tuple) else (found,)
        expected = by_operator(*arguments[0], **arguments[1])
        expected = expected if isinstance(expected, tuple) else (expected,)
        assert all(map(torch.equal, found, expected)) and not any(torch.equal(found[0], each) for each in seen)
        seen.append(found[0].clone())

    check()
    slopes += 1
    check()
    slopes.data.mul_(0.5)  # which PyTorch's version of the tensor doesn't count
    check()
    slopes = slopes * 3  # another tensor that looks the same
    check()
    slopes = torch.randn(2 * H, generator=random)[::2]  # which lies otherwise
    check()
    slopes = slopes.double() * 1.5
    check()
    ids[:, S // 2 :] = 1
    check()
    ids = ids.int()
    ids[1] = torch.arange(S + 1) // 3
    check()
    factor = 2.0
    check()
    factor = -2
    check()
    shift = 0.25
    check()
    check(scale=0.125)
    check(offsets=scoremod.Offsets(query=0, key=1))
    q = torch.randn(B, S, H, D, generator=random).transpose(1, 2)
    check(return_lse=True)
    k, v = k[:, :2], v[:, :2]
    check(enable_gqa=True)
    q, k, v = (torch.cat([x, x], dim=2)[:, :, : S - 3] for x in (q, k, v))
    check(enable_gqa=True)
    q = torch.zeros(1).expand(q.shape)  # whose elements share memory
    check(enable_gqa=True)


def test_integers_are_looked_at_whenever_they_were_written(tensors):
    ids = torch.zeros(B, S, dtype=torch.int64)

    def attend():
        return flex_attention(*tensors, mask_mod=lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx])

    first = attend()
    assert torch.equal(attend(), first)
    ids[0, 3] = 2**31
    with pytest.raises(scoremod.InvalidArgumentError, match="found 2147483648"):
        attend()
    ids[0, 3] = 2**31 - 1
    assert not torch.equal(attend(), first)
    ids = ids + 2**40  # another tensor
    with pytest.raises(scoremod.InvalidArgumentError, match="expected integers"):
        attend()


def test_gradients_are_the_same_bits(tensors, by_operator, random):
    slopes, cap = torch.randn(H, generator=random), torch.tensor(3.0)

    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh((score + slopes[h] * (kv_idx - q_idx)) / cap)

    leaves = [*tensors, slopes, cap]
    d_o = torch.randn(B, S, H, D, generator=random).transpose(1, 2)
    for wanted in ([0], [3], [0, 1, 2], [1, 4], [0, 1, 2, 3, 4]):
        for x in leaves:
            x.requires_grad_(False)
        inputs = [leaves[i].requires_grad_() for i in wanted]
        for _ in range(2):
            results = []
            for attend in (flex_attention, by_operator):
                o, lse = attend(*tensors, score_mod, mask_mod=causal, return_lse=True)
                results.append([*torch.autograd.grad(o, inputs, d_o, retain_graph=True), *torch.autograd.grad(lse.sum(), inputs, allow_unused=True)])
            for found, expected in zip(*results, strict=True):
                assert (found is None and expected is None) or torch.equal(found, expected)
    with torch.no_grad():
        assert not flex_attention(*tensors, score_mod, mask_mod=causal).requires_grad


def test_a_captured_tensor_that_is_changed_before_the_backward_is_noticed(tensors):
    slopes = torch.randn(H, requires_grad=True)
    for _ in range(2):
        o = flex_attention(*tensors, alibi(slopes))
        with torch.no_grad():
            slopes += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()


def test_second_and_batched_derivatives_go_by_the_operators(tensors, random):
    q, k, v = tensors
    q.requires_grad_()
    for _ in range(2):
        o = flex_attention(q, k, v, mask_mod=causal)
        (gradient,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
        with pytest.raises(scoremod.UnsupportedError, match="differentiated twice"):
            gradient.sum().backward()
    d_o = torch.randn(3, *o.shape, generator=random)
    with pytest.raises(scoremod.UnsupportedError, match="found a batch of them"):
        torch.autograd.grad(flex_attention(q, k, v, mask_mod=causal), q, d_o, is_grads_batched=True)


def test_modes_and_traces_see_an_operator(tensors):
    class Record(TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            self.names += (str(function),)
            return function(*arguments, **(options or {}))

    def attend(q, k, v):
        return flex_attention(q, k, v, mask_mod=causal)

    expected = attend(*tensors)
    with Record() as record:
        assert torch.equal(attend(*tensors), expected)
    assert "scoremod.attention_forward.default" in record.names
    for pre_dispatch in (False, True):
        graph = make_fx(attend, pre_dispatch=pre_dispatch)(*tensors)
        assert torch.equal(graph(*(2 * x for x in tensors)), attend(*(2 * x for x in tensors)))
    traced = torch.jit.trace(attend, tensors)
    assert torch.equal(traced(*(2 * x for x in tensors)), attend(*(2 * x for x in tensors)))


def test_forward_derivatives_are_not_lost(tensors):
    q, k, v = tensors
    flex_attention(q, k, v)
    with forward_ad.dual_level(), pytest.raises(scoremod.UnsupportedError, match="reverse mode only"):
        flex_attention(forward_ad.make_dual(q, q), k, v)
    o = flex_attention(q.requires_grad_(), k, v)
    with forward_ad.dual_level(), pytest.raises(scoremod.UnsupportedError, match="reverse mode only"):
        torch.autograd.grad(o, q, forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))


def test_the_environment_is_asked_at_each_call(tensors, monkeypatch):
    flex_attention(*tensors)
    monkeypatch.setenv("SCOREMOD_BACKENDS", "-cpu,-reference")
    with pytest.raises(scoremod.UnsupportedError, match="SCOREMOD_BACKENDS"):
        flex_attention(*tensors)
    monkeypatch.delenv("SCOREMOD_BACKENDS")
    flex_attention(*tensors)


def test_deterministic_algorithms_are_asked_for_at_each_call(tensors):
    flex_attention(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        flex_attention(*tensors)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(eager_calls._kept) == 2


def test_threads_have_arguments_of_their_own(random):
    """Several calls of one kind at once."""
    given = [[torch.randn(B, H, 150, D, generator=random) for _ in range(3)] for _ in range(4)]
    expected = [flex_attention(*each, mask_mod=causal) for each in given]
    wrong = []

    def work(tensors, result):
        for _ in range(20):
            if not torch.equal(flex_attention(*tensors, mask_mod=causal), result):
                wrong.append(1)  # noqa: PERF401

    threads = [threading.Thread(target=work, args=each) for each in zip(given, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_of_a_call_is_raised_and_forgotten(tensors, monkeypatch):
    """The structs of a call that failed hold no error of it for the next."""
    expected = flex_attention(*tensors)
    (call,) = eager_calls._kept.values()
    direction = call.compiled.forward
    prepared = direction.owner, direction.handle, tuple(look.nbytes() for look in direction.of_all.looks.values()), direction.workspace_bytes
    direction.fix(direction.of_all.signature, prepared[0], 0, *prepared[2:])
    with pytest.raises(scoremod.InvalidArgumentError, match="attention: expected a pointer"):
        flex_attention(*tensors)
    direction.fix(direction.of_all.signature, *prepared)
    assert torch.equal(flex_attention(*tensors), expected)
    with pytest.raises(scoremod.BugError, match="no memory for a message"):
        library.raise_error("scoremod_attention_forward", 4, library.c_void_p())


class Layer(torch.nn.Module):
    """Whose functions read its parameters, buffers, numbers, modules and methods."""

    scale_of_class = 1.0

    def __init__(self, random):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.randn(H, generator=random))
        self.register_buffer("ids", torch.zeros(B, S, dtype=torch.int64))
        self.cap, self.factors = 4.0, [1.0, 0.5]
        self.inner = torch.nn.Linear(H, 1)

    def soft_cap(self, score):
        return self.cap * torch.tanh(score / self.cap)

    def score_mod(self, score, b, h, q_idx, kv_idx):
        score = score * self.scale_of_class + self.slopes[h] * (kv_idx - q_idx) * self.factors[1]
        return self.soft_cap(score + self.inner.weight[0, h])

    def forward(self, q, k, v):
        def same_document(b, h, q_idx, kv_idx):
            return self.ids[b, q_idx] == self.ids[b, kv_idx]

        return flex_attention(q, k, v, self.score_mod, mask_mod=same_document)


def test_functions_that_read_a_modules_attributes_are_traced_once(tensors, random, traces, monkeypatch):
    layer = Layer(random)
    first = layer(*tensors)
    other = Layer(random)  # of the same program
    assert not torch.equal(other(*tensors), first) and torch.equal(layer(*tensors), first)
    assert len(traces) == 1 and len(eager_calls._kept) == 1
    (gradient,) = torch.autograd.grad(layer(*tensors).square().sum(), layer.slopes)
    monkeypatch.setattr(api, "key_of", lambda *functions: (None, []))
    (expected,) = torch.autograd.grad(layer(*tensors).square().sum(), layer.slopes)
    torch.testing.assert_close(gradient, expected)


def test_changed_attributes_are_seen(tensors, random, traces, monkeypatch):
    layer, seen = Layer(random), []
    counts = []

    def changed(name, change):
        change()
        found, before = layer(*tensors), len(traces)
        with monkeypatch.context() as patch:
            patch.setattr(api, "key_of", lambda *functions: (None, []))
            assert torch.equal(found, layer(*tensors)), name
        assert not any(torch.equal(found, each) for each in seen), name
        seen.append(found)
        counts.append((name, before - (counts[-1][2] if counts else 0), len(traces)))

    changed("nothing", lambda: None)
    changed("in place", lambda: layer.slopes.data.mul_(2))
    changed("a new parameter", lambda: setattr(layer, "slopes", torch.nn.Parameter(torch.randn(H, generator=random))))
    changed("a buffer", lambda: setattr(layer, "ids", torch.arange(S).expand(B, S) // 5))
    changed("a number", lambda: setattr(layer, "cap", 2.0))
    changed("an item", lambda: layer.factors.__setitem__(1, 0.25))
    changed("of the class", lambda: monkeypatch.setattr(Layer, "scale_of_class", 0.5))
    changed("a module", lambda: setattr(layer, "inner", torch.nn.Linear(H, 1)))
    changed("a method", lambda: monkeypatch.setattr(Layer, "soft_cap", lambda self, score: score + self.cap * 0.1 * score))
    changed("another dtype", lambda: setattr(layer, "slopes", torch.nn.Parameter(3 * torch.randn(H, dtype=torch.float16, generator=random))))
    traced = {name for name, count, _ in counts if count}
    assert traced == {"nothing", "a number", "an item", "of the class", "a method", "another dtype"}


def test_what_an_object_decides_itself_is_traced_each_time(tensors, traces):
    class Fickle:
        def __init__(self):
            self.count, self.box = 0, {"slope": 1.0}

        @property
        def slope(self):
            self.count += 1
            return float(self.count)

        def __getitem__(self, h):
            return self.slope

    class Answers:
        def __getattr__(self, name):
            return fickle.slope

    fickle, answers = Fickle(), Answers()
    functions = [
        lambda score, b, h, q_idx, kv_idx: score * fickle.slope,
        lambda score, b, h, q_idx, kv_idx: score * fickle[h],
        lambda score, b, h, q_idx, kv_idx: score * answers.anything,
        lambda score, b, h, q_idx, kv_idx: score * fickle.slope,
        lambda score, b, h, q_idx, kv_idx: score * vars(fickle)["box"].setdefault("count", fickle.slope),
    ]
    for function in functions[:4]:
        outputs = [flex_attention(*tensors, function) for _ in range(3)]
        assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])
    flex_attention(*tensors, functions[4])
    fickle.box["count"] = 7.5
    assert torch.equal(flex_attention(*tensors, functions[4]), flex_attention(*tensors, lambda score, b, h, q_idx, kv_idx: score * 7.5))


def test_objects_of_other_kinds_are_read_by_their_fields(tensors, traces):
    import dataclasses
    import types
    from typing import NamedTuple

    @dataclasses.dataclass
    class Options:
        cap: float

    @dataclasses.dataclass(slots=True)
    class Slotted:
        cap: float

    class Pair(NamedTuple):
        cap: float

    for make in (Options, Slotted, Pair, lambda cap: types.SimpleNamespace(cap=cap)):
        traces.clear()
        kept_traces._kept.clear()
        eager_calls._kept.clear()

        def run(cap):
            options = make(cap)  # noqa: B023
            return flex_attention(*tensors, lambda score, b, h, q_idx, kv_idx: options.cap * torch.tanh(score / options.cap))

        first = run(2.0)
        assert torch.equal(run(2.0), first) and len(traces) == 1
        assert not torch.equal(run(1.0), first) and len(traces) in (2, 3)  # as a constant, and as an operand where the copy has it


def test_what_begins_between_multiples_of_sixteen_bytes_is_copied_with_its_gaps(random):
    wide = torch.randn(3, 4, 8, generator=random)
    tensors = [wide, wide[:, 1:3, 1:6], wide.transpose(0, 1), wide[0, 0, 3].expand(5), wide[:0, :, 1:]]
    words = [each.data_ptr() for each in tensors]
    copies = prepared_calls._put_aligned(words, tensors)
    copied = [place for place, each in enumerate(tensors) if words[place] != each.data_ptr()]
    assert copied == [1, 3] and all(word % 16 == 0 for word in words)
    for place, copy in zip(copied, copies, strict=True):
        found = copy.as_strided(tensors[place].shape, tensors[place].stride())
        assert copy.data_ptr() == words[place] and torch.equal(found, tensors[place])


def test_numbers_that_memory_holds_with_another_sign_are_read(tensors, random):
    """PyTorch's views of conjugates put off their sign, and its tensors of zeros have no memory."""
    q, k, v = tensors
    slopes = torch.complex(torch.zeros(H), torch.randn(H, generator=random)).conj().imag
    assert slopes.is_neg()
    negated = [torch._neg_view(tensor) for tensor in tensors]
    for _ in range(2):
        assert torch.equal(flex_attention(*tensors, alibi(slopes)), flex_attention(*tensors, alibi(slopes.resolve_neg())))
        for at, tensor in enumerate(negated):
            given, plain = ([*tensors[:at], each, *tensors[at + 1 :]] for each in (tensor, -tensors[at]))
            assert torch.equal(flex_attention(*given), flex_attention(*plain))
    q = q.requires_grad_()
    d_o = torch.randn(q.shape, generator=random)
    gradients = [torch.autograd.grad(flex_attention(q, k, v), q, each)[0] for each in (d_o, torch._neg_view(-d_o), torch._efficientzerotensor(q.shape))]
    assert torch.equal(gradients[0], gradients[1]) and not gradients[2].any()


@pytest.mark.parametrize("modify", [lambda s, x: s * x, lambda s, x: torch.where(s > 0, x, s), lambda s, x: s + x.exp() * x])
def test_a_captured_number_with_another_sign_has_its_gradient(tensors, random, modify):
    """PyTorch hands operations below autograd a copy of such a tensor, which has no gradient."""
    d_o = torch.randn(tensors[0].shape, generator=random)
    gradients = []
    for number in (torch._neg_view(torch.tensor(-1.5)), torch.tensor(1.5)):
        leaf = number.detach().requires_grad_()
        o = flex_attention(*tensors, lambda s, b, h, i, j, leaf=leaf: modify(s, leaf))
        gradients += torch.autograd.grad(o, leaf, d_o)
    assert gradients[1] != 0
    torch.testing.assert_close(*gradients)


_number = 1


def test_what_library_functions_hold_is_looked_at(tensors):
    """A function that PyTorch makes of the user's own, and one of the user's that has a library's name, hang on what the user's do."""
    global _number
    q, k, v = tensors

    def window(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() < _number

    @functools.wraps(torch.nn.functional.silu)
    def scaled(score, b, h, q_idx, kv_idx):
        return score * _number

    for options in ({"mask_mod": and_masks(window, causal)}, {"mask_mod": or_masks(window, window)}, {"score_mod": scaled}):
        results = []
        for _number in (1, 1, 3):
            results.append(flex_attention(q, k, v, **options))
        afresh = {name: lambda *arguments, of=function: of(*arguments) for name, function in options.items()}
        assert not torch.equal(results[1], results[2]) and torch.equal(results[2], flex_attention(q, k, v, **afresh))
