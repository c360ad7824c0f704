// Memory as the kernels of all families and the host lay it out: the argument of every attention kernel, and tiles in
// shared memory. It is one text for the kernels' compiler and for the host's, which fills in the one and allocates the
// other. So are the storage.cuh files of single families, in the form of the second part.
#pragma once

/// The place_step of a ragged tensor. A paged one's is never negative, so that it tells ragged queries from paged keys.
constexpr long long kOffsetsStep = -1;

/// Values of TensorArgument::aligned: rows lie densely and every row begins at a multiple of 16 bytes; and there is a
/// tensor map of them, too.
constexpr int kAlignedRows = 1, kMappedRows = 2;

/// A tensor of four dimensions; strides are in elements. A varlen tensor packs all batches one after the other. In a
/// paged KV cache `batch` is the stride between pages; RowsOf of shared/elements.cuh finds the rows.
struct TensorArgument {
  void* data;
  long long batch, head, row, dim;
  const int* places;                  ///< a ragged tensor's offsets, or a paged one's page table; else null
  long long place_batch, place_step;  ///< from a batch's place to the next batch's, from a block's to the next one's
  int count;                          ///< of all tokens, or of the pages of a paged KV cache
  int aligned;                        ///< kAlignedRows or kMappedRows, or 0
};

/// An operand of the program; dimensions in the order of its declaration. One of size 1 has stride 0.
struct OperandArgument {
  const void* data;
  long long stride[4];
  int extent[4];
  void* gradient;  ///< in the backward: laid out as the operand, or null where it is not wanted
  float* sums;     ///< of the gradient, see operand_gradients/tile_sums.cuh
};

/// DropoutMask's key and threshold (problem/dropout_mask.hpp), and the factor of a kept weight.
struct DropoutArgument {
  unsigned key[2], threshold;
  float factor;
  const unsigned* keys;   ///< the operand of dropout keys (problem/call_dropout.hpp), in place of `key`
  long long batch, word;  ///< their distances in elements, of batches and of the words of one
};

/// The alignment makes the size a multiple of 16. If operands began elsewhere, ptxas 13.0 would leave the fused
/// backward of documents too few registers.
struct alignas(16) AttentionArguments {
  TensorArgument q, k, v, o, d_o, dq, dk, dv;
  /// The operand that TMA loads, if kLoadsBias: rows are its queries, dims its keys. Strides are 0 if batches or
  /// heads share it. With kFloat8Queries it is v^T in the workspace: rows are the dims of v, dims its keys.
  TensorArgument copied;
  float* lse;             ///< [batch, heads_q, seq_q], or [tokens, heads_q]; null where none is wanted
  float* max_logit;       ///< likewise, where kMaxLogit
  float* rows;            ///< backward: [batch, heads_q, seq_q rounded up to even, 2], see shared/derivative.cuh
  unsigned char* states;  ///< of tiles, see shared/tiles.cuh
  int* order;             ///< of rows of tiles, by their states, see shared/block_mask.cuh; null where it is their own
  float* parts;           ///< split-KV partials of decode kernels, see split_kv/partials.cuh
  unsigned long long* shares;  ///< split-KV arrival counters of tiles, tagged with a call id
  float* differences;          ///< relative-position tables, see shared/program.cuh
  float* query_sums;           ///< backward: dq as it is added up where kFused, see hopper/backward_fused.cuh
  int batch, heads_q, group, seq_q, seq_kv;
  int query_tiles, key_tiles;            ///< of a sequence of the longest length
  int query_work_tiles, key_work_tiles;  ///< of a head in all sequences, see first_packed_tile() in shared/tiles.cuh
  int heads_together;                    ///< heads whose tiles CTAs take in turns, see place_of() in shared/tiles.cuh
  int splits;                            ///< split-KV: CTAs that share the keys of a head
  unsigned long long number;             ///< a call id unique across processes (48 bits), which tags `shares`
  int blocks;                            ///< kPersistent: CTAs that share all work tiles; kHeadsTakeTurns: CTAs at once
  int* taken;                            ///< kPersistent: how many tiles they have taken, beside their first ones
  const int* lengths_kv;                 ///< where kPaged, of each batch
  long long length_step;
  int offset_b, offset_h, offset_q, offset_kv;
  int lowest, highest;  ///< a band keeps lowest <= kv - q <= highest, in local indices
  float scale;
  int constants[8];         ///< of the program
  DropoutArgument dropout;  ///< where kDropout
};

// Tiles in shared memory. A struct begins with the numbers that decide it, and its other members follow from them:
// offsets and sizes in bytes.

// Rows for ldmatrix, of head dims in blocks of 16, as MMAs take them. Each is an odd number of 16-byte words, so that
// eight rows at one column lie in different banks.
struct PaddedTile {
  int rows, dim, element_bytes;
  int padded_dim = (dim + 15) / 16 * 16;
  int row_bytes = padded_dim * element_bytes + 16;
  int bytes = rows * row_bytes;
};

// Rows in the 128-byte swizzle, as TMA writes and WGMMA reads them: blocks of 128 bytes of each row, one after the
// other.
struct SwizzledTile {
  int rows, dim;
  int element_bytes = 2;
  int blocks = (dim * element_bytes + 127) / 128;
  int bytes = rows * blocks * 128;
};
constexpr int kSwizzleAlignment = 1024;

constexpr int kBarrierBytes = 8;  // an mbarrier

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

// The Hopper kernels.

// A work tile of the persistent kernel, as the producers pass it to the consumers. It has the first tiles of its
// TileWalk too, for which the consumers then need not wait. Its query_tile is below 0 if no work is left.
struct GivenItem {
  QueryPlace item;
  unsigned some, full;
};
// A backward's work tile likewise. Its key_tile is below 0 if no work is left.
struct GivenKeys {
  KeyPlace place;
  unsigned some, full;
};
// A note that the CTA's work tile number `count` has a sum that is not finite.
struct ItemNote {
  int count;
  QueryPlace item;
};

// Both forwards. The persistent kernel has a work tile for each stage of q, some notes, and the work tile that the
// producers took.
struct HopperForwardStorage {
  int dim_qk, dim_v, queries, keys, stages, query_stages;
  bool persistent, loads_bias;

  SwizzledTile q_tile{queries, dim_qk}, k_tile{keys, dim_qk}, v_tile{keys, dim_v}, copied_tile{queries, keys};
  int copied_stages = loads_bias ? stages : 0, items = persistent ? query_stages : 0;
  int notes_count = persistent ? query_stages + 1 : 0;  // as look_back() needs them

  int q = 0;
  int k = q + query_stages * q_tile.bytes;
  int v = k + stages * k_tile.bytes;
  int copied = v + stages * v_tile.bytes;
  int q_full = copied + copied_stages * copied_tile.bytes;
  int q_empty = q_full + query_stages * kBarrierBytes;
  int k_full = q_empty + items * kBarrierBytes;
  int k_empty = k_full + stages * kBarrierBytes;
  int v_full = k_empty + stages * kBarrierBytes;
  int v_empty = v_full + stages * kBarrierBytes;
  int copied_full = v_empty + stages * kBarrierBytes;
  int copied_empty = copied_full + copied_stages * kBarrierBytes;
  int given = copied_empty + copied_stages * kBarrierBytes;
  int notes = given + items * (int)sizeof(GivenItem);
  int taken = notes + notes_count * (int)sizeof(ItemNote);
  size_t bytes = kSwizzleAlignment + taken + (persistent ? (int)sizeof(int) : 0);
};

// The kernel of dq.
struct HopperQueriesStorage {
  int dim_qk, dim_v, queries, key_step, stages;
  bool has_diagonals;

  SwizzledTile q_tile{queries, dim_qk}, d_o_tile{queries, dim_v}, k_tile{key_step, dim_qk}, v_tile{key_step, dim_v};
  DiagonalStorage sums{queries, key_step};

  int q = 0;
  int d_o = q + q_tile.bytes;
  int k = d_o + d_o_tile.bytes;
  int v = k + stages * k_tile.bytes;
  int own_full = v + stages * v_tile.bytes;
  int k_full = own_full + kBarrierBytes;
  int k_empty = k_full + stages * kBarrierBytes;
  int v_full = k_empty + stages * kBarrierBytes;
  int v_empty = v_full + stages * kBarrierBytes;
  int diagonals = v_empty + stages * kBarrierBytes;
  size_t bytes = kSwizzleAlignment + diagonals + (has_diagonals ? sums.bytes : 0);
};

// The kernels of dk and dv, and the fused one of dq too. A consumer warpgroup has 64 keys. The persistent kernel has
// the work tile that the consumers are at, the next one, and the number that the producers took.
struct HopperKeysStorage {
  int dim_qk, dim_v, keys, step, stages;
  bool fused, loads_bias, has_diagonals, persistent;

  SwizzledTile k_tile{keys, dim_qk}, v_tile{keys, dim_v}, q_tile{step, dim_qk}, d_o_tile{step, dim_v};
  SwizzledTile gradient_tile{keys, step}, copied_tile{step, 64};
  DiagonalStorage sums{keys, kFusedDiagonalStep};
  int term_bytes = step * 2 * (int)sizeof(float);
  int gradient_tiles = fused ? 3 : 0;  // of FusedGroup, in flight
  int copied_groups = loads_bias ? keys / 64 : 0, items = persistent ? 2 : 0;

  int k = 0;
  int v = k + k_tile.bytes;
  int q = v + v_tile.bytes;
  int d_o = q + stages * q_tile.bytes;
  int gradients = d_o + stages * d_o_tile.bytes;
  int copied = gradients + gradient_tiles * gradient_tile.bytes;
  int terms = copied + copied_groups * copied_tile.bytes;
  int own_full = terms + stages * term_bytes;
  int full = own_full + kBarrierBytes;
  int empty = full + stages * kBarrierBytes;
  int copied_full = empty + stages * kBarrierBytes;
  int copied_empty = copied_full + copied_groups * kBarrierBytes;
  int own_empty = copied_empty + copied_groups * kBarrierBytes;
  int given = own_empty + (persistent ? kBarrierBytes : 0);
  int taken = given + items * (int)sizeof(GivenKeys);
  int diagonals = taken + (persistent ? kBarrierBytes : 0);
  size_t bytes = kSwizzleAlignment + diagonals + (has_diagonals ? sums.bytes : 0);
};
