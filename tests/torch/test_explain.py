"""What explain() and support() say of a call."""

import torch

from scoremod.torch import explain, support


def test_explain_names_each_operand_with_its_origin():
    q = torch.ones(2, 4, 16, 8, dtype=torch.bfloat16)
    slopes, edges, ids = torch.ones(4), torch.tensor([3, 9]), torch.zeros(2, 16, dtype=torch.int64)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx) + torch.searchsorted(edges, kv_idx) * 0.5

    explanation = explain(q, q, q, score_mod, mask_mod=lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (ids[b, q_idx] == ids[b, kv_idx]))
    found = [(x.origin, x.axes, x.shape, x.dtype, x.bytes) for x in explanation.operands]
    assert found == [
        ("captured tensor", ("h",), (4,), "float32", 16),
        ("computed by PyTorch", ("kv_idx",), (16,), "float32", 64),
        ("captured tensor", ("b", "q_idx"), (2, 16), "int32", 128),
        ("captured tensor", ("b", "kv_idx"), (2, 16), "int32", 128),
    ]
    text = str(explanation)
    assert "x0: float32[4], over h, captured tensor" in text and "accumulate x0" in text and "cpu: yes" in text
    assert explanation.problem["dtype"] == "bf16" and explanation.problem["backward"]


def test_support_gives_reasons():
    q = torch.ones(1, 1, 16, 8)
    answers = support(q, q, q)
    assert answers["cpu"] == () and answers["reference"] == ()
    assert answers.get("cudnn", ("not built",))  # it takes no float32, wherever it is
