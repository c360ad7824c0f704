"""XLA records attention calls in CUDA graphs, and a replay gives the same bits."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_calls_are_recorded_and_replays_are_bit_equal(tmp_path):
    flags = [
        os.environ.get("XLA_FLAGS", ""),
        # Everything that may be recorded, and be it one call.
        "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL",
        "--xla_gpu_graph_min_graph_size=1",
        f"--xla_dump_to={tmp_path}",
        "--xla_dump_hlo_as_text",
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(paths=sys.path[:2])],
        env={**os.environ, "XLA_FLAGS": " ".join(flags)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("equal")
    sequences = list(_sequences_with_attention(tmp_path))
    assert sequences, f"no program with attention among {[path.name for path in tmp_path.iterdir()][:20]}"
    for sequence in sequences:
        calls = [line for line in sequence.splitlines() if "kCustomCall" in line]
        assert len(calls) == 2, sequence  # forward and backward
        # What a command buffer holds is indented below it.
        assert all(line.startswith(" ") for line in calls) and "kCommandBuffer" in sequence, sequence


def _sequences_with_attention(folder):
    """What XLA runs for each program that has attention, a thunk a line."""
    ending = ".thunk_sequence_after_thunk_passes.txt"
    for path in folder.glob("*" + ending):
        metadata = path.with_name(path.name.removesuffix(ending) + ".thunk_metadata.txt")
        if "scoremod_attention" in metadata.read_text(encoding="utf-8"):
            yield path.read_text(encoding="utf-8")
