"""XLA records attention calls in CUDA graphs, and a replay gives the same bits."""

import os
import subprocess
import sys

import pytest
from cuda_devices import cuda_devices

pytestmark = pytest.mark.skipif(not cuda_devices(), reason="no NVIDIA GPU")

PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import jax, jax.numpy as jnp, numpy as np
from scoremod.jax import flex_attention

q, k, v = (jax.random.normal(jax.random.key(i), (2, 256, 4, 64), jnp.bfloat16) for i in range(3))
slopes = jnp.linspace(0.1, 0.4, 4)

def loss(slopes, q, k, v):
    o = flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), lambda b, h, i, j: i >= j, deterministic=True)
    return (o.astype(jnp.float32) ** 2).sum()

step = jax.jit(jax.value_and_grad(loss, argnums=(1, 2, 3)))
runs = [jax.tree.leaves(step(slopes, q, k, v)) for _ in range(4)]
for run in runs[1:]:
    for one, other in zip(runs[0], run):
        assert np.array_equal(np.asarray(one), np.asarray(other)), "a replay differs"
print("equal")
"""

# Kernels of this program are refused for what ptxas says of them: a device that chose others than the first one would need another workspace.
SEVERAL = """
import sys
sys.path[:0] = {paths!r}
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scoremod.jax import flex_attention, zoo
from scoremod.jax.context_parallel import context_parallel_attention, stripe, unstripe

devices = jax.devices("cuda")[:2]
tensors = [jax.random.normal(jax.random.key(i), (1, 2048, 4, 128), jnp.bfloat16) for i in range(4)]
mods = zoo.alibi(zoo.alibi_slopes(4)), zoo.causal()

def both(attention, q, k, v, d_o):
    o, pull_back = jax.vjp(attention, q, k, v)
    return o, *pull_back(d_o)

def alone(attention, q, k, v, d_o):
    return (attention(q, k, v),)

mesh, spec = Mesh(np.asarray(devices), ("seq",)), P(None, "seq")
part = functools.partial(context_parallel_attention, score_mod=mods[0], mask_mod=mods[1], axis_name="seq", strategy={strategy!r}, striped=True)
sharded = jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec)
placed = [jax.device_put(stripe(x, 2, 1), NamedSharding(mesh, spec)) for x in tensors]
for run in (both, alone):
    expected = jax.jit(functools.partial(run, lambda q, k, v: flex_attention(q, k, v, *mods)))(*tensors)
    step = jax.jit(functools.partial(run, sharded))
    for _ in range(4):
        for one, other in zip(step(*placed), expected):
            one, other = (np.asarray(x, np.float32) for x in (unstripe(np.asarray(one), 2, 1), other))
            assert np.linalg.norm(one - other) <= 2e-2 * np.linalg.norm(other)
print("equal")
"""

# Results that are kept make XLA take other buffers, and record anew. Inputs change, for a result that is not written to be seen.
ENDED = """
import sys
sys.path[:0] = {paths!r}
import ctypes, threading
import jax, jax.numpy as jnp, numpy as np
from scoremod.jax import flex_attention

q, k, v = (jax.random.normal(jax.random.key(i), (2, 256, 4, 64), jnp.bfloat16) for i in range(3))
step = jax.jit(lambda q, k, v: jnp.tanh(flex_attention(q, k, v, lambda s, b, h, i, j: s - 0.01 * abs(i - j), deterministic=True)))
queries = [q * factor for factor in (1, 2, 3)]
expected, is_over = [np.asarray(step(q, k, v)) for q in queries], threading.Event()

def wait_for_the_device():
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
        assert status == 0
    while not is_over.is_set():
        cuda.cuCtxSynchronize()

kept, failures = [], []
thread = threading.Thread(target=wait_for_the_device)
thread.start()
try:
    for run in range(5000):
        try:
            result = step(queries[run % 3], k, v)
            found = np.asarray(result)
        except Exception as error:
            failures.append(str(error))
            if len(failures) == 50:
                break
            continue
        assert np.array_equal(found, expected[run % 3]), f"run {{run}} is wrong, after {{len(failures)}} failures"
        kept = [*kept[-(run % 7):], result]
finally:
    is_over.set()
    thread.join()
assert len(failures) == 50, "no recording was ended"
assert all("failed while XLA recorded it" in failure for failure in failures[1:]), failures[:3]
jax.clear_caches()
for _ in range(4):
    for q, right in zip(queries, expected):
        assert np.array_equal(np.asarray(step(q, k, v)), right)
print("right")
"""


def test_a_recording_that_another_thread_ends_gives_no_wrong_results():
    done = _run(ENDED.format(paths=sys.path[:2]))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("right")


@pytest.mark.skipif(len(cuda_devices()) < 2, reason="one NVIDIA GPU")
@pytest.mark.parametrize("strategy", ["all_gather", "ring"])
def test_each_device_records_its_calls_at_once(tmp_path, strategy):
    """Also where nothing was compiled before: neither scoremod nor CUDA has kept anything."""
    kept = {"SCOREMOD_CACHE_DIR": str(tmp_path / "plans"), "CUDA_CACHE_PATH": str(tmp_path / "cuda")}
    done = _run(SEVERAL.format(paths=sys.path[:2], strategy=strategy), **kept)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("equal")


def test_calls_are_recorded_and_replays_are_bit_equal(tmp_path):
    dump = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    done = _run(PROGRAM.format(paths=sys.path[:2]), dump)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("equal")
    sequences = list(_sequences_with_attention(tmp_path))
    assert sequences, f"no program with attention among {[path.name for path in tmp_path.iterdir()][:20]}"
    for sequence in sequences:
        calls = [line for line in sequence.splitlines() if "kCustomCall" in line]
        assert len(calls) == 2, sequence  # forward and backward
        # The contents of a command buffer are indented below it.
        assert all(line.startswith(" ") for line in calls) and "kCommandBuffer" in sequence, sequence


def _run(program, more_flags="", **environment):
    """A Python of its own, whose XLA records everything that may be recorded, and be it one call."""
    flags = [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL",
        "--xla_gpu_graph_min_graph_size=1",
        more_flags,
    ]
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment, "XLA_FLAGS": " ".join(flags)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _sequences_with_attention(folder):
    """The thunks that XLA runs for each program with attention, one a line."""
    ending = ".thunk_sequence_after_thunk_passes.txt"
    for path in folder.glob("*" + ending):
        metadata = path.with_name(path.name.removesuffix(ending) + ".thunk_metadata.txt")
        if "scoremod_attention" in metadata.read_text(encoding="utf-8"):
            yield path.read_text(encoding="utf-8")
