"""Work of a framework in threads of its own beside those of threads.py, with results that are known."""

import random
import threading
import time

import torch

THREADS = 3


def captured(run):
    """(graph, results) of what run() enqueues on the current stream. torch.cuda.graph() would begin with a wait for the whole device, which ends each
    capture of other threads, XLA's too: CUDA forbids it in every mode."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        results = run()
    finally:
        graph.capture_end()
    return graph, results


class Beside(threading.Thread):
    """Does a framework's work until the round ends; the first error ends it, too."""

    def __init__(self, shared, work, number):
        super().__init__(name=f"beside {number}")
        self._shared, self._work, self._choose = shared, work, random.Random(f"{shared.seed} {shared.round} beside {number}")

    def run(self):
        while time.monotonic() < self._shared.end:
            try:
                for action, wrong in self._work(self._shared, self._choose):
                    self._shared.log.did(action, wrong)
            except Exception:  # noqa: BLE001 - it is named in the record
                self._shared.log.raised("beside")
                return


class TorchBeside:
    """Products of whole numbers, which are exact, tensors of any size, and graphs of PyTorch's own."""

    def __init__(self, device):
        random_numbers = torch.Generator().manual_seed(1)
        self._device, self._size = device, 512 if device == "cuda" else 48
        numbers = [torch.randint(-8, 9, (self._size, self._size), generator=random_numbers).float() for _ in range(2)]
        self._product = (numbers[0].double() @ numbers[1].double()).float().to(device)
        self._numbers = [each.to(device) for each in numbers]

    def workers(self, shared):
        return [Beside(shared, self._work, number) for number in range(THREADS)]

    def _work(self, shared, choose):
        with torch.cuda.stream(torch.cuda.Stream() if self._device == "cuda" else None):
            yield "torch product", "" if torch.equal(self._numbers[0] @ self._numbers[1], self._product) else "a product of PyTorch's is wrong"
            kept = [torch.full((choose.randrange(1, 1 << choose.randrange(1, 22 if self._device == "cuda" else 14)),), 3.0, device=self._device)]
            kept += [each + 1 for each in kept for _ in range(4)]
            yield "torch allocation", "" if all(bool((each >= 3).all()) for each in kept) else "memory of PyTorch's has another content"
            if self._device == "cuda":
                yield "torch graph", self._graph(shared)

    def _graph(self, shared):
        with shared.capturing:
            x = torch.zeros(1024, device="cuda")
            torch.cuda.current_stream().synchronize()
            graph, _ = captured(lambda: [x.add_(1) for _ in range(20)])
            torch.cuda.empty_cache()
        graph.replay()
        return "" if bool((x == 20).all()) else "a graph of PyTorch's computes something else"


class JaxBeside:
    """Programs that XLA runs as command buffers: attention with its gradients by scoremod.jax, and a program of JAX's own. Each repeats the bits of the
    first run. A new function is compiled now and then. Inputs change: a result that nobody writes would else often be that of an earlier run."""

    PROGRAMS, INPUTS = 6, 3

    def __init__(self, device):
        import jax
        import jax.numpy as jnp

        from scoremod.jax import flex_attention

        self._jax, self._np = jax, jnp
        queries, dim = (128, 64) if device == "cuda" else (12, 8)
        keys = jax.random.split(jax.random.key(1), 3)
        dtype = jnp.bfloat16 if device == "cuda" else jnp.float32
        tensors = [jax.random.normal(key, (2, queries, 2, dim), dtype) for key in keys]
        self._inputs = [[tensor * (1 + number) for tensor in tensors] for number in range(self.INPUTS)]

        def loss(factor):
            def of(q, k, v):
                o = flex_attention(q, k, v, lambda s, b, h, i, j: s - factor * abs(i - j), lambda b, h, i, j: i >= j, deterministic=True)
                return (o.astype(jnp.float32) ** 2).sum()

            return of

        self._losses = [loss(0.01 * (1 + number)) for number in range(self.PROGRAMS)]
        self._programs = [jax.jit(jax.value_and_grad(each, argnums=(0, 1, 2))) for each in self._losses]
        self._programs.append(jax.jit(lambda q, k, v: jnp.tanh(q + k) * v))
        self._first = [[self._leaves(program, number) for number in range(self.INPUTS)] for program in self._programs]

    def workers(self, shared):
        return [Beside(shared, self._work, number) for number in range(THREADS)]

    def _leaves(self, program, inputs):
        return [jax_leaf.tobytes() for jax_leaf in self._jax.device_get(self._jax.tree.leaves(program(*self._inputs[inputs])))]

    def _work(self, shared, choose):
        number, inputs = choose.randrange(len(self._programs)), choose.randrange(self.INPUTS)
        yield "jax program", self._wrong(self._programs[number], number, inputs)
        if choose.random() < 0.05:
            number = choose.randrange(len(self._losses))
            program = self._jax.jit(self._jax.value_and_grad(self._losses[number], argnums=(0, 1, 2)))
            yield "jax compile", self._wrong(program, number, inputs)

    def _wrong(self, program, number, inputs):
        return "" if self._leaves(program, inputs) == self._first[number][inputs] else f"JAX's program {number} has other bits than before"


KINDS = {"torch": TorchBeside, "jax": JaxBeside}
