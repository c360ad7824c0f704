"""Prints the times of PyTorch's attention in float32, as lines of JSON, at the sizes that attention_kernels.sh times ours at.

It times PyTorch's own kernels, and FlexAttention with float32 MMA and with TF32, which has three digits. `error` is the output's relative
distance from float64."""

import json
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch_attention_times import median_ms


def error_of(out, q, k, v, causal):
    """The relative error of the first batch and head."""
    wide = [x[:1, :1].detach().double() for x in (q, k, v)]
    truth = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    return float((out[:1, :1].double() - truth).norm() / truth.norm())


def report(case, implementation, tensors, call, causal):
    try:
        out = call()
        upstream = torch.randn_like(out)
        times = {"forward": median_ms(call), "backward": median_ms(lambda: torch.autograd.grad(out, tensors, upstream, retain_graph=True))}
    except Exception as error:  # whatever a peer cannot do is said, and the rest goes on
        print(json.dumps({"kind": "time", "case": case, "implementation": implementation, "refused": str(error).splitlines()[0][:160]}), flush=True)
        return
    error = error_of(out, *tensors, causal)
    for direction, ms in times.items():
        line = {"kind": "time", "case": case, "direction": direction, "implementation": implementation, "ms": round(ms, 4), "error": error}
        print(json.dumps(line), flush=True)


def main():
    for length, dim in ((4096, 128), (1024, 64)):
        tensors = [torch.randn(4, length, 16, dim, device="cuda").transpose(1, 2).requires_grad_() for _ in range(3)]
        for causal in (False, True):
            case = ("causal f32" if causal else "full f32") + ("" if length == 4096 else f", {length} of {dim}")
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                report(case, "torch efficient", tensors, lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal), causal)  # noqa: B023
            mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length) if causal else None
            for precision in ("highest", "high"):
                torch.set_float32_matmul_precision(precision)
                torch.compiler.reset()
                flex = torch.compile(flex_attention)
                name = "flex with float32's products" if precision == "highest" else "flex with TF32's products"
                report(case, name, tensors, lambda: flex(*tensors, block_mask=mask), causal)  # noqa: B023
            torch.set_float32_matmul_precision("highest")


if __name__ == "__main__":
    sys.exit(main())
