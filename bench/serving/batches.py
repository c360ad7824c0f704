"""The batches that serving libraries are timed on: how many keys and queries each sequence has, its pages, heads and dims."""

import dataclasses
import random


@dataclasses.dataclass(frozen=True)
class Batch:
    """lengths: keys of each sequence, its queries' own included, which are its last ones. The mask is causal from there.

    dim_v is None where values have a pool of their own. Else the values are the first dim_v dims of the keys (multi-head latent attention).
    """

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    page: int = 16
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    dim_v: int | None = None
    dtype_kv: str = "bfloat16"

    @property
    def is_latent(self):
        return self.dim_v is not None

    @property
    def pages(self):
        """How many pages each sequence has."""
        return [-(-length // self.page) for length in self.lengths]

    @property
    def rows(self):
        return sum(self.queries)

    @property
    def one_count(self):
        """How many queries each sequence has where all have as many, or None."""
        return self.queries[0] if len(set(self.queries)) == 1 else None

    @property
    def read_bytes(self):
        """The bytes of the keys and values that the batch reads, each once."""
        size = 2 if self.dtype_kv == "bfloat16" else 1
        return sum(self.lengths) * self.kv_heads * self.dim * size * (1 if self.is_latent else 2)

    @property
    def flops(self):
        """Two for each multiplication of Q K^T and P V that the mask keeps."""
        pairs = sum(count * length - count * (count - 1) // 2 for count, length in zip(self.queries, self.lengths, strict=True))
        return 2 * self.heads * pairs * (self.dim + (self.dim_v or self.dim))


def evenly(count, length, queries=1, **rest):
    return Batch((length,) * count, (queries,) * count, **rest)


def between(seed, count, least, most, queries=1, **rest):
    choose = random.Random(seed)
    return Batch(tuple(choose.randint(least, most) for _ in range(count)), (queries,) * count, **rest)


def batches(seed, part=1):
    """name -> Batch. part divides the numbers of keys and sequences, for machines without a GPU."""

    def size(count):
        return max(1, count // part)

    latent = {"kv_heads": 1, "dim": 576, "dim_v": 512}
    found = {}
    for page in (1, 16, 64, 256):
        found[f"64 of 128 to 8192, pages of {page}"] = between(seed, size(64), 128, size(8192) + 128, page=page)
    for queries in (4, 16):
        found[f"64 of 128 to 8192, {queries} queries"] = between(seed, size(64), 128, size(8192) + 128, queries)
    found["one of 131072 beside 31 of 512"] = Batch((size(131072),) + (512,) * size(31), (1,) * (1 + size(31)))
    found["256 of 16 to 512"] = between(seed, size(256), 16, 512)
    found["4096 of 32"] = evenly(size(4096), 32)
    found["64 of 8192"] = evenly(size(64), size(8192))
    found["64 of 8192, FP8 cache"] = evenly(size(64), size(8192), dtype_kv="float8_e4m3fn")
    for queries in (1, 2):
        name = f"latent, 128 heads, 128 of 4096, {queries} {'query' if queries == 1 else 'queries'}"
        found[name] = evenly(size(128), size(4096), queries, page=64, heads=128, **latent)
    found["latent, 16 heads, 128 of 4096"] = evenly(size(128), size(4096), page=64, heads=16, **latent)
    found["latent, 8 heads, 64 of 8192, pages of 1"] = evenly(size(64), size(8192), page=1, heads=8, **latent)
    chunk = max(2, 2048 // part)
    mixed = (1,) * size(60) + (chunk,) * 4
    found["60 decodes at 8192 beside 4 new prompts of 2048"] = Batch((size(8192),) * size(60) + (chunk,) * 4, mixed)
    found["60 decodes beside 4 chunks of 2048, all at 8192"] = Batch((max(chunk, size(8192)),) * (size(60) + 4), mixed)
    return found
