"""The sizes that cases are timed at. They are named in a case's name (`causal_1k`, `full_d64`); those without a name are today's default."""

from dataclasses import asdict, dataclass, replace

DEFAULT = {"batch": 4, "heads": 16, "seq": 4096, "dim": 128}


@dataclass(frozen=True)
class Shape:
    batch: int = DEFAULT["batch"]
    heads: int = DEFAULT["heads"]
    kv_heads: int | None = None  # as many as query heads without it
    queries: int = DEFAULT["seq"]
    keys: int | None = None  # as many as queries without it
    dim: int = DEFAULT["dim"]
    dim_v: int | None = None  # of the value; as the others' without it
    dtype: str | None = None  # the options' without it

    def scaled(self, options):
        """This shape where the default shape is the options' one: all of it by the same factors, so that a small copy can be checked on a CPU.
        16-bit types are the options' type where that is another one than bfloat16."""
        of_batch, of_heads = options.batch / DEFAULT["batch"], options.heads / DEFAULT["heads"]
        of_seq, of_dim = options.seq / DEFAULT["seq"], options.dim / DEFAULT["dim"]
        queries, dim = round(self.queries * of_seq), round(self.dim * of_dim)
        kv_heads = max(1, round((self.kv_heads or self.heads) * of_heads))
        group = self.heads // (self.kv_heads or self.heads)
        dtype = str(options.dtype).removeprefix("torch.")
        return replace(
            self,
            batch=max(1, round(self.batch * of_batch)),
            heads=kv_heads * group,
            kv_heads=kv_heads,
            queries=queries if self.keys is None else self.queries,
            keys=queries if self.keys is None else round(self.keys * of_seq),
            dim=dim,
            dim_v=dim if self.dim_v is None else round(self.dim_v * of_dim),
            dtype=self.dtype if self.dtype is not None and dtype == "bfloat16" else dtype,
        )

    def sizes(self):
        """As a record has them."""
        return asdict(self)


# Each has 16384 tokens, or fewer where heads are many.
SHAPES = {
    "": Shape(),
    "1k": Shape(batch=16, queries=1024),
    "2k": Shape(batch=8, queries=2048),
    "8k": Shape(batch=2, queries=8192),
    "16k": Shape(batch=1, queries=16384),
    "d64": Shape(heads=32, dim=64),
    "d96": Shape(dim=96),
    "d256": Shape(heads=8, dim=256),
    "d192_128": Shape(dim=192, dim_v=128),
    "gqa_32_8": Shape(batch=1, heads=32, kv_heads=8, queries=8192),
    "gqa_64_8": Shape(batch=1, heads=64, kv_heads=8),
    "f16": Shape(dtype="float16"),
    "packed": Shape(batch=1, queries=16384),
    # Decode steps of up to 16 queries against long KV caches, with four query heads for each KV head.
    **{
        f"{queries}_of_{keys}": Shape(batch=batch, heads=32, kv_heads=8, queries=queries, keys=keys)
        for batch, keys in ((16, 8192), (4, 32768))
        for queries in (1, 4, 8, 16)
    },
}
