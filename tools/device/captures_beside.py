"""Whether first uses of scoremod and captures of CUDA graphs disturb each other, on a machine with a GPU.

usage: captures_beside.py REPORT.json [--machine TEXT] [--commit TEXT] [--parts torch,jax,jax_control] [--uses N]

torch: a thread captures graphs without pause, in each of CUDA's capture modes, beside first uses of N functions on each backend, with so small a cache
    of compiled attentions that they are evicted all the while. "none" is a control: the same calls of PyTorch alone, without scoremod. Afterwards a captured
    attention call is replayed whose compiled attention is evicted.
jax: N jitted value_and_grad programs with command buffers, each with another function, in one process and several threads.
jax_control: the same programs beside a thread that waits for the whole device again and again, as first uses once did. Captures break by it, so the part
    is good where something failed: with nothing to see there, "jax" would have nothing to see either.

Every fourth result is compared with a dense computation in float64. The report says for each part how many uses, captures, failures and wrong results
there were. The exit code is 0 when nothing failed, no capture broke and nothing was wrong, but for the control.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

B, H, S, D = 2, 4, 256, 64
BACKENDS = {"none": None, "default": None, "kernels": "kernels", "cudnn": "cudnn", "float32": None}
TOLERANCE = {"bfloat16": 2e-2, "float32": 1e-4}


def functions(np_like, number, arrays):
    """(score_mod, mask_mod, names of the captured arrays that learn) of a number: another form, or another constant."""
    a = 0.01 + 0.003 * number
    slopes, ids, table = arrays["slopes"], arrays["ids"], arrays["table"]

    def causal(b, h, i, j):
        return i >= j

    forms = [
        (lambda s, b, h, i, j: s - a * abs(i - j), causal, ()),
        (lambda s, b, h, i, j: s + slopes[h] * (j - i) * a, causal, ("slopes",)),
        (lambda s, b, h, i, j: s * (1 + a), lambda b, h, i, j: ids[b, i] == ids[b, j], ()),
        (lambda s, b, h, i, j: np_like.tanh(s * a) / a, None, ()),
        (lambda s, b, h, i, j: s + table[i - j + S - 1] * a, causal, ("table",)),
        (lambda s, b, h, i, j: s + slopes[h] * a * j, lambda b, h, i, j: (i >= j) & (i - j < 32 + number), ("slopes",)),
        (lambda s, b, h, i, j: np_like.where(i > j, s + a * np_like.sin(s), s), lambda b, h, i, j: (i // 16 >= j // 16) | (j < 8), ()),
    ]
    return forms[number % len(forms)]


def relative_error(found, expected):
    import numpy as np

    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))


class Capturer(threading.Thread):
    """Captures graphs until it is told to end, and counts what breaks."""

    def __init__(self, mode):
        super().__init__()
        self.mode, self.captured, self.broken, self.over = mode, 0, [], False

    def run(self):
        import torch

        stream, x = torch.cuda.Stream(), torch.zeros(1024, device="cuda")
        with torch.cuda.stream(stream):
            while not self.over:
                graph = torch.cuda.CUDAGraph()
                try:
                    graph.capture_begin(capture_error_mode=self.mode)
                    for _ in range(20):
                        x.add_(1)
                        time.sleep(1e-4)
                    graph.capture_end()
                    self.captured += 1
                except Exception as error:  # noqa: BLE001
                    self.broken.append(str(error)[:300])
                    try:
                        graph.capture_end()
                    except Exception:  # noqa: BLE001, S110 - it ends the capture, and says again that it broke
                        pass
                    return  # PyTorch's allocator takes the capture for one under way


class WholeDeviceWaits(threading.Thread):
    """The fault of the control: waits for the device's whole context until it is told to end, and counts how often a capture forbade it."""

    CAPTURING = frozenset({900, 901})  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED

    def __init__(self):
        super().__init__()
        self.waits, self.forbidden, self.over = 0, 0, False

    def run(self):
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
            assert status == 0, f"the driver's status is {status}"
        while not self.over:
            self.forbidden += cuda.cuCtxSynchronize() in self.CAPTURING
            self.waits += 1
            time.sleep(1e-4)


def torch_dense(torch, tensors, arrays, number, learned):
    import numpy as np  # noqa: F401

    q, k, v = (x.detach().double().requires_grad_() for x in tensors)
    captured = {name: x.detach().double().requires_grad_() if x.is_floating_point() else x for name, x in arrays.items()}
    score_mod, mask_mod, _ = functions(torch, number, captured)
    b, h, i, j = torch.meshgrid(*(torch.arange(n, device="cuda") for n in (B, H, S, S)), indexing="ij")
    score = score_mod(q @ k.transpose(-1, -2) / D**0.5, b, h, i, j)
    if mask_mod is not None:
        score = score.masked_fill(~mask_mod(b, h, i, j), -torch.inf)
    o = score.softmax(-1) @ v
    return o, torch.autograd.grad(o.square().sum(), (q, k, v, *(captured[name] for name in learned)))


def torch_part(uses):
    import torch

    import scoremod
    from scoremod.torch import flex_attention

    results = []
    for name, backends in BACKENDS.items():
        dtype = torch.float32 if name == "float32" else torch.bfloat16
        for mode in ("relaxed", "thread_local", "global"):
            result = {"part": "torch", "backends": name, "capture_mode": mode, "uses": 0, "failures": [], "wrong": []}
            random = torch.Generator("cuda").manual_seed(1)
            tensors = [torch.randn(B, H, S, D, generator=random, device="cuda", dtype=dtype).requires_grad_() for _ in range(3)]
            arrays = {
                "slopes": torch.rand(H, generator=random, device="cuda").requires_grad_(),
                "ids": torch.randint(0, 3, (B, S), generator=random, device="cuda", dtype=torch.int32),
                "table": torch.randn(2 * S - 1, generator=random, device="cuda").requires_grad_(),
            }
            warm = torch.nn.functional.scaled_dot_product_attention(*tensors)
            torch.autograd.grad(warm.float().square().sum(), tensors)  # PyTorch loads what it needs
            torch.cuda.current_stream().synchronize()
            kept, start = [], time.perf_counter()
            capturer = Capturer(mode)
            capturer.start()
            first = len(results) * uses
            for number in range(first, first + uses):
                score_mod, mask_mod, learned = functions(torch, number, arrays)
                try:
                    if name == "none":
                        o, learned = torch.nn.functional.scaled_dot_product_attention(*tensors), ()
                    else:
                        o = flex_attention(*tensors, score_mod, mask_mod=mask_mod, backends=backends)
                    gradients = torch.autograd.grad(o.float().square().sum(), (*tensors, *(arrays[x] for x in learned)))
                    result["uses"] += 1
                    if number % 4 == 0 and name != "none":
                        kept.append((number, learned, o, gradients))
                except Exception as error:  # noqa: BLE001
                    result["failures"].append(f"{number}: {str(error)[:300]}")
            result["captures"] = capturer.captured
            capturer.over = True
            capturer.join()
            result.update(seconds=round(time.perf_counter() - start, 1), broken_captures=capturer.broken)
            for number, learned, o, gradients in kept if not capturer.broken else ():
                expected, wanted = torch_dense(torch, tensors, arrays, number, learned)
                for found, right in zip((o, *gradients), (expected, *wanted), strict=True):
                    error = relative_error(found.detach().cpu().float().numpy(), right.detach().cpu().numpy())
                    if not error < TOLERANCE[str(dtype).removeprefix("torch.")]:
                        result["wrong"].append(f"{number}: {error:.3g}")
            result["compared"] = len(kept)
            results.append(result)
            print(json.dumps(result), flush=True)
    results.append(torch_replay(torch, scoremod, flex_attention))
    print(json.dumps(results[-1]), flush=True)
    return results


def torch_replay(torch, scoremod, flex_attention):
    """A graph of an attention call, replayed after its compiled attention was evicted and others took its memory."""
    q, k, v = (torch.randn(B, H, S, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    result = {"part": "torch replay after eviction", "failures": [], "wrong": [], "broken_captures": []}

    def call(x, limit=64):
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s - 0.125 * abs(i - j), mask_mod=lambda b, h, i, j: (i - j < x) & (i % 3 != 1) | (j < 4), backends="kernels"
        )

    call(40)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call(40)
    graph.replay()
    torch.cuda.current_stream().synchronize()
    before = o.clone()
    for x in range(60, 72):
        call(x)
    scoremod.cache.clear()
    for x in range(72, 84):
        call(x)
    q.mul_(1)
    o.zero_()
    graph.replay()
    torch.cuda.current_stream().synchronize()
    if not torch.equal(o, before):
        result["wrong"].append("the replay differs")
    return result


def jax_control_part(uses):
    waits = WholeDeviceWaits()
    waits.start()
    try:
        (result,) = jax_part(uses)
    finally:
        waits.over = True
        waits.join()
    result.update(part="jax_control", waits=waits.waits, forbidden_waits=waits.forbidden)
    print(json.dumps(result), flush=True)
    return [result]


def jax_part(uses, threads=4):
    import jax
    import jax.numpy as jnp
    import numpy as np

    from scoremod.jax import flex_attention

    result = {"part": "jax", "threads": threads, "flags": os.environ.get("XLA_FLAGS", ""), "uses": 0, "failures": [], "wrong": [], "broken_captures": []}
    random = np.random.default_rng(1)
    q, k, v = (jnp.asarray(random.normal(size=(B, S, H, D)), jnp.bfloat16) for _ in range(3))
    arrays = {
        "slopes": jnp.asarray(random.uniform(size=H), jnp.float32),
        "ids": jnp.asarray(random.integers(0, 3, (B, S)), jnp.int32),
        "table": jnp.asarray(random.normal(size=2 * S - 1), jnp.float32),
    }

    def loss(number, tensors, arrays):
        score_mod, mask_mod, _ = functions(jnp, number, arrays)
        o = flex_attention(*tensors, score_mod, mask_mod)
        return (o.astype(jnp.float32) ** 2).sum()

    def dense(number, tensors, arrays):
        score_mod, mask_mod, _ = functions(jnp, number, arrays)
        q, k, v = (jnp.moveaxis(x, 2, 1) for x in tensors)
        b, h, i, j = jnp.meshgrid(*(jnp.arange(n) for n in (B, H, S, S)), indexing="ij")
        score = score_mod(jnp.einsum("bhid,bhjd->bhij", q, k) / D**0.5, b, h, i, j)
        if mask_mod is not None:
            score = jnp.where(mask_mod(b, h, i, j), score, -jnp.inf)
        return (jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(score), v) ** 2).sum()

    def use(number):
        learned = functions(jnp, number, arrays)[2]

        def both(function, tensors, learning):
            return jax.value_and_grad(lambda tensors, learning: function(number, tensors, {**arrays, **learning}), argnums=(0, 1))(tensors, learning)

        learning = {name: arrays[name] for name in learned}
        try:
            step = jax.jit(lambda *at: both(loss, *at))
            found = [jax.tree.leaves(step((q, k, v), learning)) for _ in range(3)]  # XLA captures a program after its first run
            found = [np.asarray(x, np.float64) for x in found[-1]]
        except Exception as error:  # noqa: BLE001
            result["failures"].append(f"{number}: {str(error)[:300]}")
            return
        result["uses"] += 1
        if number % 4:
            return
        host = jax.devices("cpu")[0]
        with jax.default_device(host):
            as_float = [jax.device_put(np.asarray(x, np.float32), host) for x in (q, k, v)]
            on_host = {name: jax.device_put(np.asarray(x), host) for name, x in arrays.items()}
            expected = jax.jit(
                lambda tensors, learning: jax.value_and_grad(lambda t, w: dense(number, t, {**on_host, **w}), argnums=(0, 1))(tensors, learning)
            )(as_float, {name: on_host[name] for name in learned})
        errors = [relative_error(one, other) for one, other in zip(found, jax.tree.leaves(expected), strict=True)]
        if not max(errors) < TOLERANCE["bfloat16"]:
            result["wrong"].append(f"{number}: {max(errors):.3g}")

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(use, range(uses)))
    result["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps(result), flush=True)
    return [result]


# Each part: the function that runs it, and its first uses.
PARTS = {"torch": (torch_part, 34), "jax": (jax_part, 300), "jax_control": (jax_control_part, 300)}


def is_good(result):
    """Whether a part's result is what it should be. PyTorch's control says what its own calls do to captures, and may be anything."""
    if result["part"] == "jax_control":
        return bool(result["failures"] or result["broken_captures"])
    return result.get("backends") == "none" or (not result["failures"] and not result["wrong"] and not result["broken_captures"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("report")
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default="")
    parser.add_argument("--parts", default="torch,jax,jax_control")
    parser.add_argument("--uses", type=int, help="first uses of each part, and in torch's of each backend and mode (100; 300 in JAX)")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        part, uses = PARTS[arguments.run]
        results = part(arguments.uses or uses)
        with open(arguments.report, "w", encoding="utf-8") as report:
            json.dump(results, report)
        return 0
    results = []
    for part in arguments.parts.split(","):
        environment = {**os.environ, "SCOREMOD_CACHE_ATTENTIONS": "16"}
        if part.startswith("jax"):
            # XLA makes a command buffer of each program, also of a small one.
            flags = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_graph_min_graph_size=1"
            environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": flags.strip()}
        done = subprocess.run(
            [sys.executable, __file__, arguments.report + "." + part, "--run", part] + (["--uses", str(arguments.uses)] if arguments.uses else []),
            env=environment,
            check=False,
        )
        try:
            with open(arguments.report + "." + part, encoding="utf-8") as report:
                results += json.load(report)
        except OSError:
            # A process that a broken capture takes with it says nothing more.
            results.append({"part": part, "failures": [f"the process ended with {done.returncode}"], "wrong": [], "broken_captures": []})
    good = all(map(is_good, results))
    with open(arguments.report, "w", encoding="utf-8") as report:
        json.dump({"machine": arguments.machine, "commit": arguments.commit, "good": good, "results": results}, report, indent=1)
    print("good" if good else "NOT good")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
