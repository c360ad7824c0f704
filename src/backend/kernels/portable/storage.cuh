// Shared memory of the portable kernels, in the form that shared/storage.cuh describes.
#pragma once

#include "backend/kernels/shared/storage.cuh"

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
