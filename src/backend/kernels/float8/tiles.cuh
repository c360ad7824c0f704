// Tiles of FP8 numbers in shared memory, rounding to them, and the WGMMAs of e4m3 that read them. A step of 32 numbers
// is as many bytes as one of 16 halves, so that the views of hopper/tiles.cuh serve both.
#pragma once

#include "backend/kernels/float8/storage.cuh"
#include "backend/kernels/hopper/tiles.cuh"

/*{device float8}*/
// cvt.rn.satfinite.e4m3x2.f32: four floats rounded to e4m3, the first in the lowest bits.
SCOREMOD_FUNCTION unsigned e4m3_quad_of(float x0, float x1, float x2, float x3) {
  unsigned quad;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(quad)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return quad;
}

// wgmma.mma_async.m64nNk32 for N = kColumns: d (+)= a b, 64 x 32 by 32 x kColumns numbers of e4m3. Accumulators are in
// the layout of Sums, and both factors have their columns along the sum. If `adds` is false, d is the product alone.
template <int kColumns>
struct Float8Product {
  // Both a and b come from shared memory.
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds);
  // a comes from registers: of rows l / 4 (first and third) and l / 4 + 8 lane l has columns 4 (l % 4) to the third
  // next, and those 16 beyond.
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds);
};
/*{float8_product}*/
template <>
struct Float8Product</*{columns}*/ 8 /*{}*/> {
  static constexpr int kColumns = /*{columns}*/ 8 /*{}*/;
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, /*{r2}*/%6/*{}*/, 0;\n"
        "mov.b64 a, {/*{r0}*/%4/*{}*/, " SCOREMOD_UPPER_HALF "};\nmov.b64 b, {/*{r1}*/%5/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k32.f32./*{type}*/e4m3.e4m3/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, a, b, p, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a), "r"(b), "r"((int)adds));
  }
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, /*{r5}*/%9/*{}*/, 0;\n"
        "mov.b64 b, {/*{r4}*/%8/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k32.f32./*{type}*/e4m3.e4m3/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, {/*{quad}*/%4, %5, %6, %7/*{}*/}, b, p, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)adds));
  }
};
/*{}*/
/*{}*/

constexpr int kRowBytes = 128;  // of a block of a tile
static_assert(sizeof(Float8) == 1, "as the tiles have it");

SCOREMOD_FUNCTION unsigned float8_view(const Float8* tile, int rows) { return tile_view((const Half*)tile, rows); }

// Issues the TMA loads of a tile: kTileRows rows from `row` on, and kDim numbers of each from `dim` on. It completes a
// phase of `full` with one arrival. One thread calls it.
template <int kTileRows, int kDim>
SCOREMOD_FUNCTION void load_float8_tile(Float8* tile, const TensorMap& map, Barrier* full, int dim, int row, int h,
                                        int b) {
  constexpr SwizzledTile kTile{kTileRows, kDim, 1};
  arrive_and_expect(full, kTile.bytes);
#pragma unroll
  for (int block = 0; block < kTile.blocks; ++block)
#pragma unroll
    for (int i = 0; i < kTileRows; i += kBoxRows)
      tma_load(tile + (block * kTileRows + i) * kRowBytes, &map, full, dim + block * kRowBytes, row + i, h, b);
}

// The address of a number in the 128-byte swizzle.
template <int kTileRows>
SCOREMOD_FUNCTION Float8* number_of_tile(Float8* tile, int row, int dim) {
  const int word = dim % kRowBytes / 16 ^ row % 8;
  return tile + (dim / kRowBytes * kTileRows + row) * kRowBytes + word * 16 + dim % 16;
}

// fill_tile() of rows of q or k: by TMA, or number by number if a row is not aligned. All producers call it. Rows from
// `end` on are zeros.
template <int kTileRows, int kDim>
SCOREMOD_FUNCTION void fill_float8_tile(Float8* tile, const TensorArgument& tensor, const TensorMap& map, Barrier* full,
                                        int b, int h, int first, int end) {
  const int thread = threadIdx.x - kThreads;
  if (tensor.aligned) {
    if (thread == 0) load_float8_tile<kTileRows, kDim>(tile, map, full, 0, first, h, b);
    return;
  }
  const RowsOf<Float8> from = rows_of<Float8>(tensor, b, h);
#pragma unroll 1
  for (int i = thread; i < kTileRows * kDim; i += kGroup) {
    const int row = i / kDim, dim = i % kDim;
    *number_of_tile<kTileRows>(tile, row, dim) =
        first + row < end ? from.at(first + row)[dim * from.dim] : Float8{(unsigned char)0};
  }
  fence_proxy_async();
  meet(kProducerBarrier, kGroup);
  if (thread == 0) arrive(full);
}

// Issues the WGMMAs of sums = a b^T. The warpgroup has 64 rows of kRowsA of a, and b has kColumns rows; both have kDim.
template <int kDim, int kRowsA, int kColumns>
SCOREMOD_FUNCTION void issue_float8_abt(Sums<1, kColumns>& sums, unsigned a, unsigned b) {
#pragma unroll
  for (int k = 0; k < kDim; k += 32)
    Float8Product<kColumns>::of_rows(sums.at[0], moved_by(a, k / kRowBytes * kRowsA * kRowBytes + k % kRowBytes),
                                     moved_by(b, k / kRowBytes * kColumns * kRowBytes + k % kRowBytes), k != 0);
}

// Issues the WGMMAs of sums = w b, with w in registers and kDim rows of kInner of b^T in shared memory, in a tile of
// kTileRows.
template <int kDim, int kInner, int kTileRows>
SCOREMOD_FUNCTION void issue_float8_ab(Sums<1, kDim>& sums, const unsigned (&w)[kInner / 32][4], unsigned b) {
#pragma unroll
  for (int k = 0; k < kInner; k += 32)
    Float8Product<kDim>::of_registers(sums.at[0], w[k / 32],
                                      moved_by(b, k / kRowBytes * kTileRows * kRowBytes + k % kRowBytes), k != 0);
}

// The key, of 16 neighbours, at a position of rows of v^T. Of these keys' scores in a row, a thread has four: two each
// of both blocks of eight. They take four neighbouring positions, as a left operand has them.
SCOREMOD_FUNCTION constexpr int key_of_position(int position) {
  return position / 4 * 2 + position % 2 + position % 4 / 2 * 8;
}

// Rounds accumulators to e4m3, as the left operand of a WGMMA whose right one has its rows by key_of_position().
template <int kInner>
SCOREMOD_FUNCTION void round_to_8bit(unsigned (&w)[kInner / 32][4], const Sums<1, kInner>& sums) {
#pragma unroll
  for (int k = 0; k < kInner / 32; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& low = sums.at[0][4 * k + i / 2 * 2];
      const auto& high = sums.at[0][4 * k + i / 2 * 2 + 1];
      const int e = i % 2 * 2;
      w[k][i] = e4m3_quad_of(low[e], low[e + 1], high[e], high[e + 1]);
    }
}

/*{kernel float8_transpose_values}*/
// v^T for WGMMA, which reads FP8 operands along the sum alone: [batch, KV heads, dims of v, keys in whole tiles] in a
// call's workspace. The keys of each kReordered are in the order of key_of_position(), and those beyond the last are
// zeros.

constexpr TransposeStorage kTransposeStorage{kKeys, kDimV};

// Sixteen bytes as words.
struct alignas(16) FourWords {
  unsigned of[4];
};

SCOREMOD_FUNCTION unsigned* word_of_values(unsigned* tile, int key, int word) {
  return tile + key / kReordered * kTransposeStorage.stretch_words + key % kReordered * kTransposeStorage.row_words +
         word;
}

// Loads keys first, first + 1, ... of a tile; those from `end` on are zeros.
SCOREMOD_FUNCTION void load_values(unsigned* tile, const RowsOf<Float8>& from, int first, int end) {
  if (from.aligned) {
    constexpr int kOfRow = kDimV / 16;
#pragma unroll 2
    for (int i = threadIdx.x; i < kKeys * kOfRow; i += kTransposeThreads) {
      const int key = i / kOfRow, n = i % kOfRow;
      FourWords words{};
      if (first + key < end) words = *(const FourWords*)(from.at(first + key) + n * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) *word_of_values(tile, key, n * 4 + j) = words.of[j];
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kKeys * kDimV / 4; i += kTransposeThreads) {
    const int key = i / (kDimV / 4), word = i % (kDimV / 4);
    unsigned bits = 0;
    for (int j = 0; j < 4 && first + key < end; ++j)
      bits |= (unsigned)from.at(first + key)[(word * 4 + j) * from.dim].bits << 8 * j;
    *word_of_values(tile, key, word) = bits;
  }
}

// Byte `number` of four words.
SCOREMOD_FUNCTION unsigned bytes_of(const unsigned* words, int number) {
  unsigned bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes |= (words[i] >> 8 * number & 0xffu) << 8 * i;
  return bytes;
}

// Stores a tile's columns as rows of v^T. A thread has four dims of kReordered keys.
SCOREMOD_FUNCTION void store_values(unsigned char* to, long long row, unsigned* tile) {
  constexpr int kStretches = kKeys / kReordered;
#pragma unroll 1
  for (int i = threadIdx.x; i < kStretches * kDimV / 4; i += kTransposeThreads) {
    const int stretch = i % kStretches, word = i / kStretches;
    unsigned words[kReordered];
#pragma unroll
    for (int j = 0; j < kReordered; ++j)
      words[j] = *word_of_values(tile, stretch * kReordered + key_of_position(j), word);
#pragma unroll
    for (int dim = 0; dim < 4; ++dim) {
      FourWords out;
#pragma unroll
      for (int j = 0; j < 4; ++j) out.of[j] = bytes_of(words + 4 * j, dim);
      *(FourWords*)(to + (word * 4 + dim) * row + stretch * kReordered) = out;
    }
  }
}

// A CTA for each tile of keys of a batch and KV head.
SCOREMOD_KERNEL(kTransposeThreads, 4) float8_transpose_values(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const int tile = blockIdx.x % call.key_tiles, head = blockIdx.x / call.key_tiles;
  const int heads_kv = call.heads_q / call.group, b = head / heads_kv, h = head % heads_kv;
  load_values((unsigned*)shared, rows_of<Float8>(call.v, b, h), tile * kKeys, call.seq_kv);
  cta_sync();
  const TensorArgument& transposed = call.copied;
  unsigned char* const to = (unsigned char*)transposed.data + b * transposed.batch + h * transposed.head;
  store_values(to + tile * kKeys, transposed.row, (unsigned*)shared);
}
/*{}*/
