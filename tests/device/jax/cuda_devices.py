"""The GPUs of this machine."""

import jax


def cuda_devices():
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []
