"""A FlexAttention script, as it is written for PyTorch. Attention of packed documents, with learned ALiBi slopes and a soft cap, learns to look
back within its own document, by a distance that each head has to find.

usage: PYTHONPATH=python python examples/torch/packed_documents.py [--device cuda] [--batch N] [--heads N] [--seq N] [--dim N] [--dtype NAME] [--steps N]

Prints the loss of each step and a line of JSON at the end. One import is scoremod's; with PyTorch's own, which stands beside it, the same script runs
on FlexAttention. tools/device/one_import.py runs both and compares them.
"""

import argparse
import json
import time
from statistics import median

import torch
from torch.nn.attention.flex_attention import create_block_mask
from scoremod.torch import flex_attention  # from torch.nn.attention.flex_attention import flex_attention

SOFT_CAP = 50.0


def packed(batch, seq, device):
    """The number of the document at each position: documents of random lengths, one after the other."""
    cuts = torch.rand(batch, seq, device=device) < 8 / seq
    return cuts.cumsum(dim=1).int()


class Attention(torch.nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(heads * dim, 3 * heads * dim, bias=False)
        self.out = torch.nn.Linear(heads * dim, heads * dim, bias=False)
        self.slopes = torch.nn.Parameter(2.0 ** -torch.linspace(1, 8, heads))

    def forward(self, x, block_mask):
        batch, seq, _ = x.shape
        q, k, v = (each.reshape(batch, seq, self.heads, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        slopes = self.slopes

        def score_mod(score, b, h, q_idx, kv_idx):
            return SOFT_CAP * torch.tanh((score - slopes[h] * (q_idx - kv_idx)) / SOFT_CAP)

        o = flex_attention(q, k, v, score_mod, block_mask)
        return self.out(o.transpose(1, 2).reshape(batch, seq, -1))


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("batch", 2), ("heads", 4), ("seq", 128), ("dim", 16), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    device, dtype = options.device, getattr(torch, options.dtype)
    torch.manual_seed(0)
    documents = packed(options.batch, options.seq, device)

    def causal_within_documents(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (documents[b, q_idx] == documents[b, kv_idx])

    block_mask = create_block_mask(causal_within_documents, options.batch, None, options.seq, options.seq, device=device)
    model = Attention(options.heads, options.dim).to(device)
    model.qkv.to(dtype), model.out.to(dtype)  # the slopes stay float32
    layer = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x = torch.randn(options.batch, options.seq, options.heads * options.dim, device=device, dtype=dtype)
    # The target is the value three positions back, where that is in the same document.
    back = torch.nn.functional.pad(x, (0, 0, 3, 0))[:, : options.seq]
    same = documents == torch.nn.functional.pad(documents, (3, 0), value=-1)[:, : options.seq]
    wanted = torch.where(same[..., None], back, 0)

    def now():
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() * 1e3

    losses, forward, backward = [], [], []
    for _ in range(options.steps):
        optimizer.zero_grad()
        begin = now()
        loss = (layer(x, block_mask) - wanted).float().square().mean()
        between = now()
        loss.backward()
        forward.append(between - begin)
        backward.append(now() - between)
        optimizer.step()
        losses.append(loss.item())
        print(f"loss {losses[-1]:.5f}")
    moved = (model.slopes.detach().cpu() - 2.0 ** -torch.linspace(1, 8, options.heads)).abs().min().item()
    times = {"forward_ms": median(forward), "backward_ms": median(backward)}
    print(json.dumps({"losses": losses, **times, "least_change_of_a_slope": moved}))


if __name__ == "__main__":
    main()
