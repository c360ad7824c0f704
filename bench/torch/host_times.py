"""Measures the host time of eager calls: flex_attention of scoremod beside PyTorch's scaled_dot_product_attention, at known and at new sizes.
It measures generation with a growing cache, too.

usage: host_times.py REPORT.json [--device cuda|cpu] [--bench PROGRAM] [--machine TEXT] [--commit TEXT] [--tokens N] [--parts known_sizes,...]

A call's time is that of the host alone: on a GPU calls are enqueued, twenty at a time, and the device is waited for between. On the CPU
tensors are tiny, so that little of a call's time is arithmetic. Each number is the median of --repeats (30) such rounds, in microseconds; all cases take turns. `new_sizes` are calls whose number of keys no call had before, and `new_tensors` those whose tensors alone are new.
`in_a_model` has calls between a model's other operations, which leave the processor's caches without a call's code. They are those of the first layer, whose
size is new, those of the others, and each of them at once again.
`generation` is a stack of decoder layers (RMS norm, grouped-query attention, gated MLP) that decodes one token after the other. Its keys are
concatenated to a cache, as in transformers' DynamicCache, or copied into a cache of full length. Both functions take turns of some tokens. It has
milliseconds a token, and the number of problems that scoremod compiled.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch
import torch.nn.functional as F

CALLS = 20
TURN = 10  # tokens
BATCH, HEADS, HEADS_KV, DIM, KEYS = 2, 8, 8, 64, 256
TINY = 1, 1, 1, 8, 32


def closures():
    """name -> a function of (q, k, v) that calls scoremod."""
    from scoremod.torch import flex_attention

    device = ARGUMENTS.device
    slopes = torch.linspace(0.1, 1.0, HEADS, device=device)
    module = torch.nn.Module()
    module.slopes = torch.nn.Parameter(slopes.clone(), requires_grad=False)
    module.by_name = torch.nn.ParameterDict({"slopes": torch.nn.Parameter(slopes.clone(), requires_grad=False)})
    module.by_number = torch.nn.ParameterList([torch.nn.Parameter(slopes.clone(), requires_grad=False)])
    lengths = torch.full((BATCH,), KEYS - 3, dtype=torch.int32, device=device)
    sink = torch.zeros(HEADS, device=device)

    def kept(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    def capped(score, b, h, q, kv):
        return 30.0 * torch.tanh(score / 30.0)

    def attribute(score, b, h, q, kv):
        return score + module.slopes[h] * (kv - q)

    def parameter_dict(score, b, h, q, kv):
        return score + module.by_name["slopes"][h] * (kv - q)

    def parameter_list(score, b, h, q, kv):
        return score + module.by_number[0][h] * (kv - q)

    def fresh(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + slopes[h] * (j - i))

    def with_function(function):
        return lambda q, k, v: flex_attention(q, k, v, function)

    return {
        "plain": lambda q, k, v: flex_attention(q, k, v),
        "capped": with_function(capped),
        "closure": with_function(kept),
        "fresh closure": fresh,
        "attribute": with_function(attribute),
        "ParameterDict": with_function(parameter_dict),
        "ParameterList": with_function(parameter_list),
        "mask by name": lambda q, k, v: flex_attention(q, k, v, mask_mod="causal_bottom_right"),
        "lengths": lambda q, k, v: flex_attention(q, k, v, lengths=lengths),
        "sink": lambda q, k, v: flex_attention(q, k, v, sink=sink),
        "ragged": ragged(flex_attention),
        "pages": paged(flex_attention),
    }


def ragged(flex_attention):
    offsets = torch.tensor([0, 100 * KEYS // 256, BATCH * KEYS], dtype=torch.int32, device=ARGUMENTS.device)
    return lambda q, k, v: flex_attention(q, k, v, q_offsets=offsets, max_length=BATCH * KEYS)


def paged(flex_attention):
    device = ARGUMENTS.device
    table = torch.randperm(64, device=device)[: BATCH * 16].reshape(BATCH, 16).to(torch.int32)
    lengths = torch.tensor([200 * KEYS // 256, 33 * KEYS // 256][:BATCH], dtype=torch.int32, device=device)
    return lambda q, k, v: flex_attention(q, k, v, page_table=table, lengths=lengths)


def wait():
    if ARGUMENTS.device == "cuda":
        torch.cuda.synchronize()


def microseconds(call, tensors):
    """The time of one call with each of the tensors' triples."""
    wait()
    start = time.perf_counter()
    for each in tensors:
        call(*each)
    spent = time.perf_counter() - start
    wait()
    return 1e6 * spent / len(tensors)


def triple(more=0, name="plain"):
    """Query, key and value of a case, with so many keys, tokens or pages more than it has by default."""
    shapes = {
        "ragged": [(BATCH * KEYS + more, HEADS, DIM)] * 3,
        "pages": [(BATCH, HEADS, 1, DIM), *[(64 + more, HEADS, KEYS // 16, DIM)] * 2],
    }
    shapes = shapes.get(name, [(BATCH, HEADS, 1, DIM), *[(BATCH, HEADS_KV, KEYS + more, DIM)] * 2])
    return [torch.randn(shape, device=ARGUMENTS.device, dtype=ARGUMENTS.dtype) for shape in shapes]


def known_sizes():
    calls = {"sdpa": F.scaled_dot_product_attention} | closures()
    tensors = {name: [triple(name=name)] * CALLS for name in calls}
    times = {name: [] for name in calls}
    with torch.no_grad():
        for name, call in calls.items():
            for _ in range(3):
                call(*tensors[name][0])
        for _ in range(ARGUMENTS.repeats):
            for name, call in calls.items():
                times[name].append(microseconds(call, tensors[name]))
    return {name: round(statistics.median(each), 2) for name, each in times.items()}


def new_sizes():
    """Microseconds of calls of new numbers of keys, tokens or pages, and of the same calls again."""
    from scoremod import cache

    calls, found = {"sdpa": F.scaled_dot_product_attention} | closures(), {}
    more = 1
    with torch.no_grad():
        # Tensors that nobody has read or written cost SDPA something, too.
        for name in ("sdpa", "plain", "capped", "closure", "mask by name", "lengths", "sink", "ragged", "pages"):
            calls[name](*triple(more, name))
            new, known, before = [], [], cache.statistics()["compiled"]["problems"]
            for _ in range(ARGUMENTS.repeats // 2):
                tensors = [triple(more + i + 1, name) for i in range(CALLS)]
                more += CALLS
                new.append(microseconds(calls[name], tensors))
                known.append(microseconds(calls[name], tensors))
            compiles = cache.statistics()["compiled"]["problems"] - before
            found[name] = {"new": round(statistics.median(new), 2), "known": round(statistics.median(known), 2), "compiles": compiles}
    return found


def new_tensors():
    """Microseconds of calls of a known size with tensors that no call had before, and of the same calls again."""
    calls, found = {"sdpa": F.scaled_dot_product_attention} | closures(), {}
    with torch.no_grad():
        for name in ("sdpa", "plain", "closure"):
            for _ in range(3):
                calls[name](*triple())
            kept, new, known = [], [], []
            for _ in range(ARGUMENTS.repeats // 2):
                kept.append([triple() for _ in range(CALLS)])  # so that none has the address of an earlier one
                new.append(microseconds(calls[name], kept[-1]))
                known.append(microseconds(calls[name], kept[-1]))
            found[name] = {"new": round(statistics.median(new), 2), "known": round(statistics.median(known), 2)}
    return found


def c_interface():
    """Microseconds of scoremod_attention_at, which gives the attention of a call's sizes, called from C: of known sizes and of new ones."""
    memory = "cuda" if ARGUMENTS.device == "cuda" else "host"
    done = subprocess.run([ARGUMENTS.bench, "--time-new-sizes", memory], capture_output=True, text=True, check=True)
    return {name: {kind: round(time, 2) for kind, time in times.items()} for name, times in json.loads(done.stdout).items()}


class Layer(torch.nn.Module):
    """A decoder layer of Llama's shape."""

    def __init__(self, width, heads, heads_kv, hidden):
        super().__init__()
        self.heads, self.heads_kv, self.dim = heads, heads_kv, width // heads
        self.q, self.o = torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False)
        self.k, self.v = (torch.nn.Linear(width, heads_kv * self.dim, bias=False) for _ in range(2))
        self.gate, self.up, self.down = (
            torch.nn.Linear(width, hidden, bias=False),
            torch.nn.Linear(width, hidden, bias=False),
            torch.nn.Linear(hidden, width, bias=False),
        )
        self.before, self.after = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)

    def forward(self, x, cache, attend):
        batch, queries, width = x.shape
        y = self.before(x)
        q, k, v = (linear(y).view(batch, queries, -1, self.dim).transpose(1, 2) for linear in (self.q, self.k, self.v))
        x = x + self.o(attend(q, *cache.update(k, v)).transpose(1, 2).reshape(batch, queries, width))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Growing:
    """Keys and values concatenated to those before, as in transformers' DynamicCache."""

    def __init__(self, *_):
        self.keys = self.values = None

    def update(self, k, v):
        self.keys = k if self.keys is None else torch.cat([self.keys, k], 2)
        self.values = v if self.values is None else torch.cat([self.values, v], 2)
        return self.keys, self.values


class Static:
    """A cache of full length; calls see the part that is filled."""

    def __init__(self, longest, heads, dim):
        self.keys, self.values = (torch.zeros(1, heads, longest, dim, device=ARGUMENTS.device, dtype=ARGUMENTS.dtype) for _ in range(2))
        self.length = 0

    def update(self, k, v):
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end], self.values[:, :, self.length : end] = k, v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Generation:
    """Tokens of a stack of layers, one after the other."""

    def __init__(self, layers, cache, attend, prompt, tokens):
        self.layers, self.attend = layers, attend
        first = layers[0]
        self.caches = [cache(prompt.shape[1] + tokens, first.heads_kv, first.dim) for _ in layers]
        x = prompt
        for layer, each in zip(layers, self.caches):
            x = layer(x, each, attend)
        self.state = x[:, -1:]
        wait()

    def seconds_of(self, tokens):
        """The time of so many tokens more."""
        start = time.perf_counter()
        for _ in range(tokens):
            y = self.state
            for layer, each in zip(self.layers, self.caches):
                y = layer(y, each, self.attend)
            self.state = F.normalize(y, dim=-1) * 8
        wait()
        return time.perf_counter() - start


def generate(layers, cache, functions, prompt, tokens):
    """({name: last hidden state}, {name: milliseconds a token}) of attention by each of the functions. They take turns, TURN tokens long."""
    with torch.no_grad():
        each = {name: Generation(layers, cache, function, prompt, tokens) for name, function in functions.items()}
        seconds = dict.fromkeys(functions, 0.0)
        for done in range(0, tokens, TURN):
            # The one that begins has the caches of the processor as the other left them.
            for name in list(functions)[:: 1 if done // TURN % 2 == 0 else -1]:
                seconds[name] += each[name].seconds_of(min(TURN, tokens - done))
    return {name: one.state for name, one in each.items()}, {name: 1e3 * spent / tokens for name, spent in seconds.items()}


def decoder(counts):
    """(a stack of decoder layers, a prompt) of each of these numbers of layers."""
    width, heads, heads_kv, hidden = (64, 4, 2, 128) if ARGUMENTS.device == "cpu" else (2048, 16, 8, 5632)
    for count in counts:
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(Layer(width, heads, heads_kv, hidden) for _ in range(count)).to(ARGUMENTS.device, ARGUMENTS.dtype)
        yield layers, torch.randn(1, 64, width, device=ARGUMENTS.device, dtype=ARGUMENTS.dtype)


def decoder_functions():
    """name -> attention as a decoder calls it."""
    from scoremod.torch import flex_attention

    def sdpa(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)

    def causal(b, h, q, kv):
        return q >= kv

    def ours(q, k, v):
        return flex_attention(q, k, v, mask_mod=causal if q.shape[2] > 1 else None, enable_gqa=True)

    return {"sdpa": sdpa, "scoremod": ours}


def in_a_model():
    """{name: {where: microseconds of a call}} within a decoder whose cache grows."""
    found, layers = {}, 4 if ARGUMENTS.device == "cpu" else 24
    ((stack, prompt),) = decoder([layers])
    for name, attend in decoder_functions().items():
        spent = []

        def timed(q, k, v):
            start = time.perf_counter()
            o = attend(q, k, v)
            middle = time.perf_counter()
            attend(q, k, v)
            spent.append((1e6 * (middle - start), 1e6 * (time.perf_counter() - middle)))
            return o

        with torch.no_grad():
            for _ in range(2):  # SDPA builds a plan for each size
                one = Generation(stack, Growing, timed, prompt, ARGUMENTS.tokens)
                spent.clear()
                one.seconds_of(ARGUMENTS.tokens)
        places = {"first layer": spent[::layers], "other layers": [each for i, each in enumerate(spent) if i % layers]}
        found[name] = {
            f"{place}{again}": round(statistics.median(each[i] for each in calls), 2)
            for place, calls in places.items()
            for i, again in enumerate(("", ", again"))
        }
    return found


def generation():
    from scoremod import cache

    rows, functions = [], decoder_functions()
    for layers, prompt in decoder((2,) if ARGUMENTS.device == "cpu" else (8, 24)):
        for kind in (Growing, Static):
            generate(layers, kind, {"sdpa": functions["sdpa"]}, prompt, 20)
            before = cache.statistics()["compiled"]["problems"]
            ends, times = {}, {"sdpa": [], "scoremod": []}
            for _ in range(3):
                ends, spent = generate(layers, kind, functions, prompt, ARGUMENTS.tokens)
                for name, milliseconds in spent.items():
                    times[name].append(milliseconds)
            row = {"layers": len(layers), "cache": kind.__name__.lower(), "tokens": ARGUMENTS.tokens, "first_ms": round(times["scoremod"][0], 3)}
            row |= {f"{name}_ms": round(statistics.median(each), 3) for name, each in times.items()}
            row["ratio"] = round(row["scoremod_ms"] / row["sdpa_ms"], 4)
            row["compiles"] = cache.statistics()["compiled"]["problems"] - before
            row["largest_difference"] = float((ends["sdpa"] - ends["scoremod"]).abs().max())
            rows.append(row)
            print(row, flush=True)
    return rows


def main():
    global ARGUMENTS, BATCH, HEADS, HEADS_KV, DIM, KEYS
    parts = {each.__name__: each for each in (known_sizes, new_sizes, new_tensors, c_interface, in_a_model, generation)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--bench", default="build/release/bin/scoremod_bench", help="the program that calls the C interface")
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default=os.environ.get("SCOREMOD_COMMIT", "unknown"))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--parts", default=",".join(parts), help="what is measured, with commas")
    ARGUMENTS = parser.parse_args()
    if ARGUMENTS.device == "cpu":
        BATCH, HEADS, HEADS_KV, DIM, KEYS = TINY
    ARGUMENTS.dtype = torch.bfloat16 if ARGUMENTS.device == "cuda" else torch.float32
    report = {"machine": ARGUMENTS.machine, "torch": torch.__version__, "device": ARGUMENTS.device, "commit": ARGUMENTS.commit}
    for name in ARGUMENTS.parts.split(","):
        report[name] = parts[name]()
        print(name, json.dumps(report[name]), flush=True)
        Path(ARGUMENTS.report).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
