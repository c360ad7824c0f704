// v^T for WGMMA, which reads FP8 operands along the sum alone: [batch, KV heads, dims of v, keys in whole tiles] in a
// call's workspace. The keys of each kReordered are in the order of key_of_position(), and those beyond the last are
// zeros.
#pragma once

#include "backend/kernels/float8/tiles.cuh"

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

/*{kernel float8_transpose_values}*/
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
