// Shared memory of the kernels with FP8 products, in the form that shared/memory.cuh describes.
#pragma once

#include "backend/kernels/shared/memory.cuh"

// The forward. Its tiles of v are of v^T: rows are dims, and keys lie along them.
struct Float8ForwardStorage {
  int dim_qk, dim_v, queries, keys, stages;

  SwizzledTile q_tile{queries, dim_qk, 1}, k_tile{keys, dim_qk, 1}, v_tile{dim_v, keys, 1};

  int q = 0;
  int k = q + q_tile.bytes;
  int v = k + stages * k_tile.bytes;
  int q_full = v + stages * v_tile.bytes;
  int k_full = q_full + kBarrierBytes;
  int k_empty = k_full + stages * kBarrierBytes;
  int v_full = k_empty + stages * kBarrierBytes;
  int v_empty = v_full + stages * kBarrierBytes;
  size_t bytes = kSwizzleAlignment + v_empty + stages * kBarrierBytes;
};

constexpr int kTransposeThreads = 256;
// Neighbouring keys of v that are reordered among themselves, see key_of_position().
constexpr int kReordered = 16;

// A tile of v, as the kernel that transposes it holds it. Its rows, and stretches of kReordered rows, begin in such
// banks that eight stretches of four words of a row each are read at once.
struct TransposeStorage {
  int keys, dim_v;

  int row_words = dim_v / 4 + 1;
  int stretch_words = kReordered * row_words + 4;
  int words = keys / kReordered * stretch_words;
  size_t bytes = (size_t)words * 4;
};
