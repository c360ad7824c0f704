// Shared memory of the Hopper kernels, in the form that shared/memory.cuh describes.
#pragma once

#include "backend/kernels/shared/memory.cuh"

constexpr int kBarrierBytes = 8;  // an mbarrier

// Rows in the 128-byte swizzle, as TMA writes and WGMMA reads them: blocks of 128 bytes of each row, one after the
// other.
struct SwizzledTile {
  int rows, dim;
  int element_bytes = 2;
  int blocks = (dim * element_bytes + 127) / 128;
  int bytes = rows * blocks * 128;
};
constexpr int kSwizzleAlignment = 1024;

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
