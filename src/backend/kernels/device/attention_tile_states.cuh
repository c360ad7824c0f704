// attention_tile_states: which tiles the mask leaves, one warp for each, exactly: it evaluates the mask at every
// element until it has seen a kept key and a masked one.
#pragma once

#include "backend/kernels/device/attention_program.cuh"

SCOREMOD_KERNEL(128, 1) attention_tile_states(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  const long long number = (long long)blockIdx.x * 4 + threadIdx.x / 32;
  const long long of_plane = (long long)call.query_tiles * call.key_tiles;
  const int heads = kMaskVariesWithHead ? call.heads_q : 1, batches = kMaskVariesWithBatch ? call.batch : 1;
  if (number >= of_plane * heads * batches) return;
  const int plane = (int)(number / of_plane), b = plane / heads, h = plane % heads;
  const int query_tile = (int)(number % of_plane / call.key_tiles), key_tile = (int)(number % call.key_tiles);
  const int first_q = query_tile * kQueries, first_kv = key_tile * kKeys;
  const int end_q = first_q + kQueries < call.seq_q ? first_q + kQueries : call.seq_q;
  bool kept = false, masked = false;
  const bool there = first_q < queries_of(call, b) && first_kv < keys_of(call, b);
  if (there && band_state(call, query_tile, key_tile) != kEmptyTile) {
    for (int q = first_q; q < end_q; ++q) {
      for (int kv = first_kv + lane; kv < first_kv + kKeys; kv += 32) {
        if (kv < call.seq_kv && keeps(p, b, h, q, kv))
          kept = true;
        else
          masked = true;
      }
      if (q % 8 == 7 && ballot(kept) != 0 && ballot(masked) != 0) break;
    }
  }
  const bool some = ballot(kept) != 0, all = ballot(masked) == 0;
  if (lane == 0) call.states[number] = (unsigned char)(!some ? kEmptyTile : all ? kFullTile : kPartialTile);
}
