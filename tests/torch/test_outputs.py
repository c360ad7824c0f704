"""flex_attention into a tensor of the caller's."""

import pytest
import torch

from scoremod.torch import api, flex_attention

H, S, D = 2, 5, 8


@pytest.fixture
def tensors(random):
    return [torch.randn(1, H, S, D, generator=random) for _ in range(3)]


def named(score, b, h, i, j):
    return score * 0.5


@pytest.mark.parametrize(
    "options",
    [{}, {"score_mod": named}, {"return_lse": True}, {"q_start": 3, "mask_mod": lambda b, h, i, j: i >= j}],
    ids=["plain", "modifier", "lse", "start"],
)
@pytest.mark.parametrize("road", ["eager", "operator"])
def test_the_output_is_written_to_it(tensors, options, road, monkeypatch):
    if road == "operator":
        monkeypatch.setattr(api, "is_plain", lambda *tensors: False)
        monkeypatch.setattr(api, "repeated", lambda *request: None)
    with torch.no_grad():
        expected = flex_attention(*tensors, **options)
        for _ in range(3):
            out = torch.full_like(tensors[0], 7)
            address = out.data_ptr()
            found = flex_attention(*tensors, out=out, **options)
            if "return_lse" in options:
                assert torch.equal(found[1], expected[1])
                found = found[0]
            assert found is out and out.data_ptr() == address
            assert torch.equal(out, expected[0] if "return_lse" in options else expected)


def test_other_strides_are_copied_to(tensors):
    with torch.no_grad():
        out = torch.zeros(1, S, H, D).transpose(1, 2)
        assert flex_attention(*tensors, out=out) is out
        assert torch.equal(out, flex_attention(*tensors)) and out.stride() == (S * H * D, D, H * D, 1)


@pytest.mark.parametrize("lies", ["as an output", "otherwise"])
def test_memory_that_was_given_back_is_refused(tensors, lies):
    with torch.no_grad():
        for _ in range(3):
            flex_attention(*tensors)
        out = torch.zeros(1, H, S, D) if lies == "as an output" else torch.zeros(1, S, H, D).transpose(1, 2)
        whole = out.untyped_storage().nbytes()
        out.untyped_storage().resize_(whole - 4)
        with pytest.raises(ValueError, match=f"out: expected its storage to have the {whole} bytes of memory that it reaches, found {whole - 4}"):
            flex_attention(*tensors, out=out)


def test_tokens_of_no_sequence_are_cleared(random):
    q, k, v = (torch.randn(9, H, D, generator=random) for _ in range(3))
    offsets = torch.tensor([0, 4, 8], dtype=torch.int32)
    with torch.no_grad():
        for _ in range(3):
            out = torch.full_like(q, 7)
            assert torch.equal(flex_attention(q, k, v, q_offsets=offsets, out=out), flex_attention(q, k, v, q_offsets=offsets))
            assert (out[8] == 0).all()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            lambda q: torch.empty(1, H, S + 1, D),
            "out: expected float32 of shape \\(1, 2, 5, 8\\) on cpu, as the output is, found float32 of shape \\(1, 2, 6, 8\\)",
        ),
        (lambda q: q.half(), "out: expected float32 .* found float16"),
        (lambda q: [0.0], "out: expected a torch.Tensor, found list"),
        (lambda q: q[:, :1].expand(q.shape), "out: expected elements in places of their own, found shape .* with strides \\(80, 0, 8, 1\\)"),
    ],
    ids=["shape", "dtype", "list", "expanded"],
)
def test_what_is_no_output_is_refused(tensors, out, message):
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(ValueError, match=message):
                flex_attention(*tensors, out=out(tensors[0]))
            flex_attention(*tensors)


def test_it_is_refused_where_gradients_are_on_and_where_it_overlaps(tensors):
    out = torch.empty_like(tensors[0])
    with pytest.raises(ValueError, match="out: expected gradients to be off, found them on"):
        flex_attention(*tensors, out=out)
    with torch.no_grad(), pytest.raises(ValueError, match="overlap"):
        flex_attention(*tensors, out=tensors[1])
