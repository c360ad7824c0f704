"""Continuous batching: requests come and go, and each step is one call for prompts and steps of decoding, over a paged KV cache.

usage: PYTHONPATH=python python examples/torch/continuous_batching.py [--device cuda] [--dtype NAME] [--requests N] [--new N] [--heads N] [--dim N]

The model is one layer of random weights, which continues texts of numbers. Its attention is causal and has ALiBi slopes. Prints a line of JSON: the
steps, the tokens, and how many problems were compiled. Batches, lengths and page tables of all sizes share one.
"""

import argparse
import json

import torch

import scoremod
from scoremod.torch import append_to_pages, flex_attention

VOCABULARY, PAGE, MOST_AT_ONCE = 64, 16, 8


class Model(torch.nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.heads = heads
        self.embedding = torch.nn.Embedding(VOCABULARY, heads * dim)
        self.qkv = torch.nn.Linear(heads * dim, 3 * heads * dim, bias=False)
        self.slopes = torch.nn.Parameter(2.0 ** -torch.linspace(1, 8, heads))

    def forward(self, tokens, attend):
        """The next token after each of these. attend: a function of query, key and value [tokens, heads, dim]."""
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in self.qkv(self.embedding(tokens)).chunk(3, dim=-1))
        return (attend(q, k, v).flatten(-2) @ self.embedding.weight.T).argmax(dim=-1)

    def alibi(self, score, b, h, q_idx, kv_idx):
        return score + self.slopes[h] * (kv_idx - q_idx)


class Request:
    def __init__(self, prompt):
        self.prompt, self.tokens, self.cached, self.pages = prompt, list(prompt), 0, []


class Server:
    """Requests in turn, with a pool of pages that they share."""

    def __init__(self, model, pages):
        weight = model.qkv.weight
        self.model, self.free = model, list(range(pages))
        shape = 2, pages, model.heads, PAGE, weight.shape[1] // model.heads
        self.k_pages, self.v_pages = torch.zeros(shape, device=weight.device, dtype=weight.dtype).unbind()

    def step(self, requests):
        """Computes the tokens that are new: all of a prompt, or the last one. Each request then has one more."""
        new = [len(each.tokens) - each.cached for each in requests]
        for each in requests:
            each.pages += [self.free.pop() for _ in range(-(-len(each.tokens) // PAGE) - len(each.pages))]
        device = self.k_pages.device
        width = max(len(each.pages) for each in requests)
        table = torch.tensor([each.pages + [0] * (width - len(each.pages)) for each in requests], device=device)
        lengths = torch.tensor([len(each.tokens) for each in requests], device=device)
        ends = torch.tensor([0, *new], device=device).cumsum(0)

        def attend(q, k, v):
            append_to_pages(self.k_pages, self.v_pages, k, v, table, lengths, offsets=ends)
            return flex_attention(
                q, self.k_pages, self.v_pages, self.model.alibi, mask_mod="causal_bottom_right", q_offsets=ends, page_table=table, lengths=lengths, max_length=64
            )  # fmt: skip

        tokens = torch.tensor([token for each in requests for token in each.tokens[each.cached :]], device=device)
        for each, token in zip(requests, self.model(tokens, attend)[ends[1:] - 1].tolist()):
            each.cached = len(each.tokens)
            each.tokens.append(token)

    def leave(self, request):
        self.free += request.pages


@torch.inference_mode()
def serve(model, prompts, new, pages=256):
    """(the tokens of each prompt and so many new ones, the number of steps). One request comes in each step, while there is room."""
    server, waiting, running, steps = Server(model, pages), [Request(each) for each in prompts], [], 0
    requests = list(waiting)
    while waiting or running:
        if waiting and len(running) < MOST_AT_ONCE:
            running.append(waiting.pop(0))
        server.step(running)
        steps += 1
        for each in [each for each in running if len(each.tokens) == len(each.prompt) + new]:
            server.leave(each)
            running.remove(each)
    return [each.tokens for each in requests], steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    for name, value in (("requests", 20), ("new", 12), ("heads", 4), ("dim", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = Model(given.heads, given.dim).to(given.device, getattr(torch, given.dtype))
    prompts = [torch.randint(VOCABULARY, (int(torch.randint(1, 60, ())),)).tolist() for _ in range(given.requests)]
    before = scoremod.cache.statistics()["compiled"]["problems"]
    tokens, steps = serve(model, prompts, given.new)
    compiled = scoremod.cache.statistics()["compiled"]["problems"] - before
    print(json.dumps({"steps": steps, "tokens": sum(map(len, tokens)), "compiled": compiled}))


if __name__ == "__main__":
    main()
