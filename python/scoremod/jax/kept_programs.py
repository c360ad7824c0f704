"""Programs that JAX keeps on disk, which XLA loads wrongly on a CPU that plays several devices."""

import warnings

import jax


def warn_of_kept_programs(platform, stacklevel):
    """Warns of programs that JAX's compilation cache may break on a CPU: those that pass arrays around in a loop, as a ring of more than two
    shards does.

    XLA gives the collectives of a CPU program one order on all devices. In a cached program the order of those in a loop is lost. Then arrays
    of two collectives are mixed up, or the process ends ("Unexpected number of participants"). Seen with jaxlib 0.10.2 in a program
    without scoremod: tools/loaded_collectives.py."""
    if platform == "cpu" and jax.config.jax_compilation_cache_dir and jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        warnings.warn(
            "XLA may give wrong numbers where it loads this program, of several shards on a CPU, from JAX's compilation cache "
            f"({jax.config.jax_compilation_cache_dir}): collectives of loops are out of order then. Set JAX_ENABLE_COMPILATION_CACHE=0",  # pyright: ignore[reportAttributeAccessIssue]
            stacklevel=stacklevel + 1,
        )
