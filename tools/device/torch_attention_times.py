"""Prints, as lines of JSON, the times of PyTorch's attention at the size that attention_kernels.sh times ours at."""

import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ROUNDS = 11


def median_ms(call):
    for _ in range(2):
        call()
    times = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    q, k, v = (torch.randn(4, 4096, 16, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3))
    for name, backend in {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cudnn": SDPBackend.CUDNN_ATTENTION}.items():
        for causal in (False, True):
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                upstream = torch.randn_like(out)
                forward = median_ms(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal))  # noqa: B023
                backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True))  # noqa: B023
            for direction, ms in {"forward": forward, "backward": backward}.items():
                case = "causal" if causal else "full"
                print(json.dumps({"kind": "time", "case": case, "direction": direction, "implementation": name, "ms": round(ms, 4)}), flush=True)


if __name__ == "__main__":
    main()
