"""A backward whose saved tensors were swapped, in all ways that PyTorch has for it: right gradients of what came back, or an error that says what is wrong."""

import contextlib
import functools
import itertools
from types import SimpleNamespace

import dense_reference as dense
import pytest
import swapped_tensors as swapped
import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper, offload_wrapper
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import scoremod
from scoremod.torch import api, eager_calls, execution, flex_attention, looks
from scoremod.torch.attention_ops import attention

B, H, H_KV, S, S_KV, D, D_V = 2, 4, 2, 11, 13, 8, 16
SHAPES = ((B, H, S, D), (B, H_KV, S_KV, D), (B, H_KV, S_KV, D_V))

pytestmark = pytest.mark.usefixtures("one_thread")

# The places of the tensors that a backward saves.
SAVED = {"query": [0], "key": [1], "value": [2], "output": [3], "lse": [4], "captured": [5, 6, 7], "all": range(8)}


def modifiers(slopes, bias, ids):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx) + bias[b, q_idx, kv_idx]

    return score_mod, lambda b, h, q_idx, kv_idx: (ids[b, kv_idx] > 0) | (q_idx > kv_idx)


def attend(q, k, v, slopes, bias, ids):
    score_mod, mask_mod = modifiers(slopes, bias, ids)
    return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True)


def reference(q, k, v, slopes, bias, ids):
    return dense.attention_and_lse(q, k, v, *modifiers(slopes, bias, ids))[0]


def gradients_from(d_o, q, k, v, o, lse, slopes, bias, ids):
    """The gradients of query, key, value, slopes and bias, computed by hand from the given o and lse."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scale = q.shape[-1] ** -0.5
    indices = dense.grid((*q.shape[:3], k.shape[2]), q.device)
    score_mod, mask_mod = modifiers(slopes, bias, ids)
    scores = score_mod(scale * q @ k.transpose(-1, -2), *indices)
    p = torch.where(mask_mod(*indices), torch.exp(scores - lse[..., None]), 0)
    d_scores = p * (d_o @ v.transpose(-1, -2) - (d_o * o).sum(-1, keepdim=True))
    dk, dv = d_scores.transpose(-1, -2) @ q * scale, p.transpose(-1, -2) @ d_o
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
    return [d_scores @ k * scale, dk, dv, (d_scores * (indices[3] - indices[2])).sum((0, 2, 3)), d_scores.sum(1)]


def places_in_memory(x, way):
    """The tensor in another memory layout that a caller may have."""
    if way == "dense":
        return x
    if way == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    whole = torch.stack([x, x]).transpose(2, 3).contiguous().transpose(2, 3)
    return whole[0] if way == "of a pair" else swapped.SAME["part of a larger one"](x)


@pytest.fixture
def leaves(random):
    """Query, key, value, slopes and bias, which require gradients, and ids. Key, value and bias are the same in all batches, so that they can be expanded."""
    lies = ("dense", "heads inside", "of a pair", "part")[int(torch.randint(4, (), generator=random))]
    q, k, v = (torch.randn(shape, generator=random) for shape in SHAPES)
    k, v = (x[:1].expand(x.shape).contiguous() for x in (k, v))
    bias = torch.randn(1, S, S_KV, generator=random).expand(B, S, S_KV).contiguous()
    ids = torch.randint(0, 2, (B, S_KV), generator=random, dtype=torch.int32)
    print(f"query, key and value lie {lies}")
    floats = [*(places_in_memory(x, lies) for x in (q, k, v)), torch.randn(H, generator=random) * 0.1, bias]
    return [*(x.detach().requires_grad_() for x in floats), ids]


@pytest.fixture
def d_o(random):
    return torch.randn(B, H, S, D_V, generator=random)


@pytest.fixture(params=["short", "by operators"])
def route(request, monkeypatch):
    """How calls go: past all that the first of a kind found out, or by PyTorch's operators."""
    monkeypatch.setattr(eager_calls, "_kept", type(eager_calls._kept)(64))
    if request.param == "by operators":
        monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
        monkeypatch.setattr(api, "repeated", lambda *request: None)


def by_pack(swap):
    places = itertools.count()
    return saved_tensors_hooks(lambda x: swap(next(places), x), lambda x: x)


def by_unpack(swap):
    places = itertools.count()
    return saved_tensors_hooks(lambda x: (next(places), x), lambda packed: swap(*packed))


@contextlib.contextmanager
def by_node(swap):
    """Hooks of what one call saved, whose output is put into the list that this gives."""
    outputs = []
    yield outputs
    places = itertools.count()
    for saved in outputs[0].grad_fn._raw_saved_tensors:
        with contextlib.suppress(RuntimeError):  # of None, which has no place
            saved.register_hooks(lambda x: swap(next(places), x), lambda x: x)


def gradients_of_swapped(way, swap, leaves, d_o):
    """(gradients, the tensors that the backward was given)."""
    given = {}

    def swapped_in_order(place, x):
        with torch.no_grad():
            given[place] = swap(place, x)
        return given[place]

    with way(swapped_in_order) as outputs:
        o = attend(*leaves)
        if outputs is not None:
            outputs.append(o)
    gradients = torch.autograd.grad(o, leaves[:-1], d_o)
    return gradients, [given[place].detach() for place in sorted(given)]


def assert_right(gradients, given, d_o):
    """given: what a backward was given, with the places of q, k, v, o, lse, slopes, bias and ids."""
    given = [x.inner if isinstance(x, swapped.Wrapped) else x.as_subclass(torch.Tensor).resolve_neg() for x in given]
    *floats, ids = given
    truth = gradients_from(*(x.double() for x in (d_o, *floats)), ids)
    plain = gradients_from(*(x.float() for x in (d_o, *floats)), ids)
    for name, found, p, t in zip(("dq", "dk", "dv", "of slopes", "of bias"), gradients, plain, truth, strict=True):
        error, allowed = (found - t).abs().max(), 2 * (p - t).abs().max() + dense.ROUNDING_BAND * torch.finfo(torch.float32).eps * S * t.abs().max()
        assert found.dtype == torch.float32 and error <= allowed, f"{name}: {error} from float64, {allowed} allowed"


WAYS = [by_pack, by_unpack, by_node]
in_all_ways = pytest.mark.parametrize("way", WAYS)
usable = pytest.mark.parametrize("stand_in", [pytest.param(each, id=name) for name, each in (swapped.SAME | swapped.ROUNDED).items()])


def test_the_reference_is_the_derivative(leaves, d_o):
    """gradients_from() is what PyTorch's derivative of dense attention is."""
    *floats, ids = leaves
    floats = [x.detach().double().requires_grad_() for x in floats]
    q, k, v, slopes, bias = floats
    o, lse = dense.attention_and_lse(q, k, v, *modifiers(slopes, bias, ids))
    expected = torch.autograd.grad(o, floats, d_o.double())
    for found, wanted in zip(gradients_from(d_o.double(), q, k, v, o, lse, slopes, bias, ids), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@usable
@in_all_ways
def test_gradients_are_those_of_what_came_back(way, stand_in, route, leaves, d_o):
    for name, places in SAVED.items():
        print(name)
        gradients, given = gradients_of_swapped(way, lambda place, x: stand_in(x) if place in places else x, leaves, d_o)  # noqa: B023
        assert_right(gradients, given, d_o)


@pytest.mark.parametrize(("stand_in", "found"), [pytest.param(*each, id=name) for name, each in swapped.UNUSABLE.items()])
@in_all_ways
def test_what_no_backward_can_use_is_refused(way, stand_in, found, route, leaves, d_o):
    gradients_of_swapped(way, lambda place, x: x, leaves, d_o)
    said = f"expected the .* that its forward saved, .*{found}.* hand back a tensor|Only Tensors of floating point .* can require gradients"
    for places in SAVED.values():
        with pytest.raises((scoremod.InvalidArgumentError, RuntimeError), match=said):
            gradients_of_swapped(way, lambda place, x: stand_in(x) if place in places else x, leaves, d_o)  # noqa: B023


@usable
def test_tensors_are_compared_without_pytorchs_guards_too(stand_in, leaves, d_o, monkeypatch):
    monkeypatch.setattr(looks, "TensorGuards", None)
    execution._kept.clear()
    for places in SAVED.values():
        gradients, given = gradients_of_swapped(by_unpack, lambda place, x: stand_in(x) if place in places else x, leaves, d_o)  # noqa: B023
        assert_right(gradients, given, d_o)


# How PyTorch itself swaps what was saved: name -> (attend, leaves) -> the output.


def within(context):
    def run(attend, leaves):
        with context():
            return attend(*leaves)

    return run


def pinned():
    """save_on_cpu(pin_memory=True) as it is where there is a GPU: its copies are dense, whatever they are of."""
    return saved_tensors_hooks(lambda x: torch.empty(x.shape, dtype=x.dtype, layout=x.layout).copy_(x), lambda x: x.to("cpu"))


def by_wrapper(wrapper, **options):
    class Layer(torch.nn.Module):
        def forward(self, attend, *leaves):
            return attend(*leaves)

    return lambda attend, leaves: wrapper(Layer(), **options)(attend, *leaves)


def by_choice():
    """Recomputes all but what the operator made."""
    return create_selective_checkpoint_contexts([torch.ops.scoremod.attention_forward.default])


OF_PYTORCH = {
    "save_on_cpu": within(save_on_cpu),
    "save_on_cpu, pinned": within(functools.partial(save_on_cpu, pin_memory=True)),
    "pinned": within(pinned),
    "checkpoint": lambda attend, leaves: checkpoint(attend, *leaves, use_reentrant=False),
    "reentrant checkpoint": lambda attend, leaves: checkpoint(attend, *leaves, use_reentrant=True),
    "selective checkpoint": lambda attend, leaves: checkpoint(attend, *leaves, use_reentrant=False, context_fn=by_choice),
    "checkpoint_wrapper": by_wrapper(checkpoint_wrapper),
    "reentrant checkpoint_wrapper": by_wrapper(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT),
    "offload_wrapper": by_wrapper(offload_wrapper),
    "checkpoint of offloaded": lambda attend, leaves: checkpoint(lambda *x: within(pinned)(attend, x), *leaves, use_reentrant=False),
    "offloaded checkpoint": lambda attend, leaves: within(pinned)(lambda *x: checkpoint(attend, *x, use_reentrant=False), leaves),
}
of_pytorch = pytest.mark.parametrize("run", [pytest.param(each, id=name) for name, each in OF_PYTORCH.items()])


@of_pytorch
def test_pytorchs_own_ways_give_the_dense_gradients(run, route, leaves, d_o):
    *floats, ids = leaves
    wide = [x.detach().double().requires_grad_() for x in floats]
    truth = torch.autograd.grad(reference(*wide, ids), wide, d_o.double())
    plain = torch.autograd.grad(reference(*leaves), floats, d_o)
    for _ in range(2):
        o = run(attend, leaves)
        o.backward(d_o)
        found = [x.grad for x in floats]
        dense.assert_close([o.detach(), *found], [o.detach(), *plain], [o.detach().double(), *truth], ("o", "dq", "dk", "dv", "of slopes", "of bias"))
        for x in floats:
            x.grad = None


def other_calls(random):
    """name -> (function of leaves, leaves): calls that save more than a plain one."""

    def normal(*shape):
        return torch.randn(shape, generator=random)

    offsets = torch.tensor([0, 5, 6, 17], dtype=torch.int64)
    lengths = torch.tensor([7, 12])
    table = torch.tensor([[4, 1, 5], [0, 2, 3]])
    bias = normal(H, 17)
    tokens, pool = [normal(17, H, D).requires_grad_() for _ in range(3)], [normal(6, H, 4, D).requires_grad_() for _ in range(2)]
    qkv = [normal(B, H, S, D).requires_grad_() for _ in range(3)]
    eight = [normal(B, H, S, 16).to(torch.float8_e4m3fn) for _ in range(3)]
    learned = [normal(H).requires_grad_()]

    def ragged(q, k, v, sink):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h, i], q_offsets=offsets, sink=sink)

    def with_lse(q, k, v, slopes):
        o, lse = flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * j, return_lse=True)
        return o + lse[..., None]

    def paged(q, k, v, slopes):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * j, page_table=table, lengths=lengths)

    def of_float8(slopes):
        return flex_attention(*eight, lambda s, b, h, i, j: s + slopes[h] * j, descale_q=0.5, out_dtype=torch.float32)

    return {
        "ragged": (ragged, [*tokens, *learned]),
        "sink": (lambda *x: flex_attention(*x[:3], sink=x[3]), [*qkv, *learned]),
        "dropout": (lambda *x: flex_attention(*x, dropout_p=0.5), qkv),
        "lse": (with_lse, [*qkv, *learned]),
        "paged": (paged, [qkv[0], *pool, *learned]),
        "float8": (of_float8, learned),
    }


CALLS = tuple(other_calls(torch.Generator()))


@pytest.mark.parametrize("call", CALLS)
@in_all_ways
def test_all_that_other_calls_save_may_be_swapped(call, way, route, random):
    """Offsets, lengths, sinks, factors and dropout's numbers are saved, too: whatever lies otherwise gives the same gradients, one tensor after the other."""
    attend, leaves = other_calls(random)[call]

    def gradients(swap):
        torch.manual_seed(7)
        with way(swap) as outputs:
            o = attend(*leaves)
            if outputs is not None:
                node = o.grad_fn
                while not hasattr(node, "_raw_saved_tensors"):
                    node = node.next_functions[0][0]
                outputs.append(SimpleNamespace(grad_fn=node))
        return torch.autograd.grad(o, leaves, torch.ones_like(o))

    saved = {}
    expected = gradients(lambda place, x: saved.setdefault(place, x))
    for place in saved:
        for name in ("dense", "packed", "backwards in memory", "part of a larger one", "between addresses"):
            found = gradients(lambda at, x: swapped.SAME[name](x) if at == place else x)  # noqa: B023
            print(place, name)
            for each, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(each, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("change", "is_usable"), [
    (lambda x: x.clone(memory_format=torch.contiguous_format), True),
    (swapped.SAME["part of a larger one"], True),
    (swapped.SAME["packed"], True),
    (lambda x: x.double(), True),
    (lambda x: x[:1], False),
    (lambda x: torch.cat([x, x]), False),
])  # fmt: skip
def test_new_data_of_a_leaf_is_seen(change, is_usable, route, leaves, d_o):
    """Under everybody's tensor, saved ones included, other memory may be put before the backward."""
    expected = torch.autograd.grad(attend(*leaves), leaves[:-1], d_o)
    for place in range(5):
        given = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad) for x in leaves]
        o = attend(*given)
        given[place].data = change(given[place].data)
        if is_usable:
            o.backward(d_o)
            for found, wanted in zip(given, expected):
                torch.testing.assert_close(found.grad, wanted, rtol=1e-5, atol=1e-5, check_dtype=False)
        else:
            with pytest.raises(scoremod.InvalidArgumentError, match="expected the .* that its forward saved"):
                o.backward(d_o)


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_memory_that_was_given_back_is_refused(part, route, leaves, d_o):
    """Before the backward, and before a forward."""
    for place in range(5):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in leaves]
        o = attend(*given)
        storage = given[place].untyped_storage()
        storage.resize_(int(part * storage.nbytes()) // 4 * 4)
        for call in (functools.partial(o.backward, d_o), functools.partial(attend, *given)):
            with pytest.raises(scoremod.InvalidArgumentError, match="expected .* storage to have the .* bytes of memory that .* reaches, found"):
                call()


def test_memory_behind_a_part_of_a_packed_tensor(route, d_o):
    """The end of the part counts: a storage that was cut behind it is no mistake."""
    packed = torch.randn(3, B, H, S, D)
    query, key, value = packed
    expected = flex_attention(query, key, value)
    behind = packed.untyped_storage().nbytes()
    packed.untyped_storage().resize_(behind - 4)
    with pytest.raises(scoremod.InvalidArgumentError, match=f"expected v's storage to have the {behind} bytes of memory .* found {behind - 4}"):
        flex_attention(query, key, value)
    torch.testing.assert_close(flex_attention(query, key, expected), flex_attention(query.clone(), key.clone(), expected), rtol=0, atol=0)


@pytest.mark.parametrize(
    "stand_in", [pytest.param(each, id=name) for name, each in swapped.SAME.items() if name not in ("float64", "parameter", "marked", "wrapped")]
)
def test_the_outputs_gradient_may_lie_anyhow(stand_in, route, leaves, d_o):
    """Hooks of a tensor and of a node put another one into its place."""
    d_o[1:] = d_o[:1]  # so that it can be expanded
    expected = torch.autograd.grad(attend(*leaves), leaves[:-1], d_o)
    for hooked in ("tensor", "node", "given"):
        o = attend(*leaves)
        if hooked == "tensor":
            o.register_hook(stand_in)
        elif hooked == "node":
            o.grad_fn.register_prehook(lambda gradients: tuple(each if each is None else stand_in(each) for each in gradients))
        for found, wanted in zip(torch.autograd.grad(o, leaves[:-1], stand_in(d_o) if hooked == "given" else d_o), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_one_tensor_may_come_in_several_places(route, random):
    x = torch.randn(B, S, H, D, generator=random).transpose(1, 2).requires_grad_()
    parts = [x.detach().clone().requires_grad_() for _ in range(3)]
    expected = sum(torch.autograd.grad(dense.attention_and_lse(*parts)[0].sum(), parts))
    for context in (contextlib.nullcontext, save_on_cpu, pinned):
        with context():
            o = flex_attention(x, x, x)
        torch.testing.assert_close(torch.autograd.grad(o.sum(), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_what_is_changed_while_mutation_is_allowed_was_saved(route, leaves, d_o):
    expected = torch.autograd.grad(attend(*leaves), leaves[:-1], d_o)
    with allow_mutation_on_saved_tensors():
        whole = [torch.stack([x, x], dim=-1) for x in leaves]
        parts = [x[..., 0] for x in whole]
        o = attend(*parts)
        doubled = 2 * o
        for x in (*whole, o.detach()):
            x.zero_()
        gradients = torch.autograd.grad(doubled, leaves[:-1], d_o / 2)
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_hooks_are_asked_once_for_each_backward(route, leaves, d_o):
    """Checkpoints hand a tensor back once; a hook may be expensive, such as a copy from another memory."""
    asked = []

    def unpack(packed):
        asked.append(packed[0])
        return packed[1].clone(memory_format=torch.contiguous_format)

    places = itertools.count()
    with saved_tensors_hooks(lambda x: (next(places), x), unpack):
        o = attend(*leaves)
    first = torch.autograd.grad(o, leaves[:-1], d_o, retain_graph=True)
    assert sorted(asked) == list(range(8))
    for found, wanted in zip(torch.autograd.grad(o, leaves[:-1], d_o), first):
        assert torch.equal(found, wanted)
    assert len(asked) == 16


def test_second_derivatives_are_refused_of_swapped_tensors(route, leaves, d_o):
    with pinned():
        o = attend(*leaves)
    gradient, *_ = torch.autograd.grad(o, leaves[:-1], d_o, create_graph=True)
    with pytest.raises(scoremod.UnsupportedError, match="differentiated twice"):
        gradient.sum().backward()


def test_operators_refuse_tensors_of_another_call(leaves, d_o, monkeypatch):
    """The operators refuse tensors that need conversion, before a kernel reads them."""
    calls = []
    monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
    monkeypatch.setattr(api, "repeated", lambda *request: None)
    monkeypatch.setattr(api, "attention", lambda *arguments: calls.append(arguments) or attention(*arguments))
    attend(*leaves)
    ((q, k, v, operands, dropout, wanted, _, _, call),) = calls
    q, k, v, *operands = (x.detach() for x in (q, k, v, *operands))
    forward, backward = torch.ops.scoremod.attention_forward, torch.ops.scoremod.attention_backward
    o, lse, *_ = forward(q, k, v, operands, dropout, wanted, True, True, call)
    given = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": d_o}
    wrong = {
        "bfloat16": lambda x: x.bfloat16(),
        "float64": lambda x: x.double(),
        "shorter": lambda x: x[:1],
        "narrow": lambda x: x[..., : x.shape[-1] // 2],
        "one number": lambda x: x[(slice(0, 1),) * x.dim()],
        "no dimension": lambda x: x.flatten()[0],
    }
    for name, tensor in given.items():
        for kind, change in wrong.items():
            tensors = {**given, name: change(tensor)}
            if kind in ("bfloat16", "float64") and name in ("lse", "d_o"):
                continue  # which are converted
            print(name, kind)
            with pytest.raises((scoremod.InvalidArgumentError, IndexError), match="expected|range"):
                backward(*tensors.values(), operands, dropout, wanted, call)
            if name in "qkv" and (name, kind) != ("v", "narrow"):  # a value of another head dim is a call, too
                with pytest.raises((scoremod.InvalidArgumentError, IndexError), match="expected|range"):
                    forward(*(tensors[each] for each in "qkv"), operands, dropout, wanted, True, True, call)


def test_a_compiled_call_takes_what_hooks_hand_back(leaves, d_o):
    expected = torch.autograd.grad(attend(*leaves), leaves[:-1], d_o)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for context in (save_on_cpu, pinned):
        with context():
            o = compiled(*leaves)
        for found, wanted in zip(torch.autograd.grad(o, leaves[:-1], d_o), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
