// Tiles in shared memory as kernels of all families have them. The storage.cuh files are one text for the kernels'
// compiler and for the host's, which allocates the memory. A struct begins with the numbers that decide it, and its
// other members follow from them: offsets and sizes in bytes.
#pragma once

// Rows for ldmatrix, of head dims in blocks of 16, as MMAs take them. Each is an odd number of 16-byte words, so that
// eight rows at one column lie in different banks.
struct PaddedTile {
  int rows, dim, element_bytes;
  int padded_dim = (dim + 15) / 16 * 16;
  int row_bytes = padded_dim * element_bytes + 16;
  int bytes = rows * row_bytes;
};

// The coordinate of a tile of queries, in the heads of all batches.
struct QueryPlace {
  int b, h, query_tile;
};

// The coordinate of a tile of keys, in the KV heads of all batches.
struct KeyPlace {
  int b, head_kv, key_tile;
};

// The rows of a warp of attention_backward_rows: as many as divide each tile of queries.
constexpr int kRowsOfWarp = 8;

// The portable kernels.

struct PortableForwardStorage {
  int dim_qk, dim_v, queries, keys, element_bytes;

  PaddedTile q_tile{queries, dim_qk, element_bytes};
  PaddedTile k_tile{keys, dim_qk, element_bytes}, v_tile{keys, dim_v, element_bytes};

  int q = 0;
  int k = q + q_tile.bytes;
  int v = k + k_tile.bytes;
  size_t bytes = v + v_tile.bytes;
};

// The kernel of dq, which has two stages of k.
struct PortableQueriesStorage {
  int dim_qk, dim_v, queries, key_step, element_bytes;

  PaddedTile q_tile{queries, dim_qk, element_bytes}, d_o_tile{queries, dim_v, element_bytes};
  PaddedTile k_tile{key_step, dim_qk, element_bytes}, v_tile{key_step, dim_v, element_bytes};

  int q = 0;
  int d_o = q + q_tile.bytes;
  int v = d_o + d_o_tile.bytes;
  int k = v + v_tile.bytes;
  int other_k = k + k_tile.bytes;
  size_t bytes = other_k + k_tile.bytes;
};

// The kernels of dk and dv, and of gradients along keys: two stages of q, d_o and their row terms.
struct PortableKeysStorage {
  int dim_qk, dim_v, keys, step, element_bytes;

  PaddedTile k_tile{keys, dim_qk, element_bytes}, v_tile{keys, dim_v, element_bytes};
  PaddedTile q_tile{step, dim_qk, element_bytes}, d_o_tile{step, dim_v, element_bytes};
  int stage_bytes = q_tile.bytes + d_o_tile.bytes;

  int k = 0;
  int v = k + k_tile.bytes;
  int q = v + v_tile.bytes;  // of the first stage
  int d_o = q + q_tile.bytes;
  int terms = q + 2 * stage_bytes;
  size_t bytes = terms + 2 * step * 2 * (int)sizeof(float);
};

// Sums of operand gradients.

// A group of four warps sums relative-position tables along the diagonals of its rows of scores.
constexpr int kDiagonalRows = 64, kDiagonalThreads = 128;
// Columns that the fused backward's groups take at once: shared memory and registers have room for no more.
constexpr int kFusedDiagonalStep = 32;

// Sums along diagonals of a CTA's rows of scores, in steps of so many columns. Each warp has 16 rows and keeps its sums
// apart by column modulo 8. Eight lanes write side by side, and four of them eight words apart.
struct DiagonalStorage {
  int rows, step;
  int diagonals_of_column = step + 8, column_pitch = (diagonals_of_column + 11) / 16 * 16 + 4;
  int warp_words = 8 * column_pitch;
  int bytes = rows / 16 * warp_words * (int)sizeof(float);
};

// A table's entry, and the sum that a thread caches of it.
struct TableSlot {
  int entry;
  float sum;
};
constexpr int kTableSlotBits = 4, kTableSlots = 1 << kTableSlotBits;  // of a thread

// The sums along a row: q and d_o, two stages of k and v, and threads' slots where tables are summed.
struct OperandQueriesStorage {
  int dim_qk, dim_v, queries, key_step, element_bytes, threads;
  bool has_tables;

  PaddedTile q_tile{queries, dim_qk, element_bytes}, d_o_tile{queries, dim_v, element_bytes};
  PaddedTile k_tile{key_step, dim_qk, element_bytes}, v_tile{key_step, dim_v, element_bytes};
  int stage_bytes = k_tile.bytes + v_tile.bytes;

  int q = 0;
  int d_o = q + q_tile.bytes;
  int k = d_o + d_o_tile.bytes;  // of the first stage
  int v = k + k_tile.bytes;
  int slots = k + 2 * stage_bytes;
  size_t bytes = slots + (has_tables ? threads * kTableSlots * (int)sizeof(TableSlot) : 0);
};

// The gradient of a bias that batches or heads share.
struct SharedElementsStorage {
  int dim_qk, dim_v, queries, key_step, element_bytes;

  PaddedTile q_tile{queries, dim_qk, element_bytes}, d_o_tile{queries, dim_v, element_bytes};
  PaddedTile k_tile{key_step, dim_qk, element_bytes}, v_tile{key_step, dim_v, element_bytes};

  int q = 0;
  int d_o = q + q_tile.bytes;
  int k = d_o + d_o_tile.bytes;
  int v = k + k_tile.bytes;
  size_t bytes = v + v_tile.bytes;
};
