// Operands whose gradients are summed by tiles of scores, and the places of their partial sums. Targets of rows and of
// keys have them in `sums` of each operand. There is one for each batch, query head, and query, key or tile of queries
// (if kFused, a warp's keys). operand_gradients/totals.cuh adds them up.
#pragma once

#include "backend/kernels/shared/tiles.cuh"

// No array has no elements.
constexpr int kMaxRowTargets = kRowTargets > 0 ? kRowTargets : 1, kMaxKeyTargets = kKeyTargets > 0 ? kKeyTargets : 1;
constexpr int kMaxTargets = kTargets > 0 ? kTargets : 1;
// Targets that are written once come last, and have no sums.
constexpr int kFirstTableRead = kRowTargets + kKeyTargets + kDifferenceTargets;
constexpr int kFirstSharedTarget = kFirstTableRead + kTableReads;
constexpr int kFirstElementTarget = kFirstSharedTarget + kSharedTargets;
constexpr int kElementTargets = kTargets - kFirstElementTarget;

struct Contributions {
  float of[kMaxTargets];
};

// Sums of a target of rows; of one that does not vary along queries they are of tiles.
SCOREMOD_FUNCTION float* row_target_sums(const Arguments& p, int target) {
  constexpr int kNumbers[] = {/*{row_operands}*/ 0 /*{}*/};
  return p.operands[kNumbers[target]].sums;
}
SCOREMOD_FUNCTION constexpr bool row_target_is_total(int target) {
  return (/*{row_totals}*/ 1ull /*{}*/ >> target & 1ull) != 0;
}
// How many of these there are for each batch and head.
SCOREMOD_FUNCTION int totals_of_head(const AttentionArguments& call) {
  return kFused ? call.key_tiles * kWarps : call.query_tiles;
}
SCOREMOD_FUNCTION float* key_target_sums(const Arguments& p, int target) {
  constexpr int kNumbers[] = {/*{key_operands}*/ 0 /*{}*/};
  return p.operands[kNumbers[target]].sums;
}

SCOREMOD_FUNCTION long long entries_of(const OperandArgument& operand, int rank) {
  long long entries = 1;
  for (int d = 0; d < rank; ++d) entries *= operand.extent[d];
  return entries;
}
// The partial sums of a relative-position table, which lie behind the exact sums of its entries.
SCOREMOD_FUNCTION float* difference_target_sums(const Arguments& p) {
  const OperandArgument& operand = p.operands[/*{difference_operand}*/ 0 /*{}*/];
  constexpr int kExactSumFloats = 26;  // 13 words
  return operand.sums + entries_of(operand, /*{difference_rank}*/ 1 /*{}*/) * kExactSumFloats;
}

SCOREMOD_FUNCTION void store_f32(void* data, long long i, float value) { ((float*)data)[i] = value; }
SCOREMOD_FUNCTION void store_f16(void* data, long long i, float value) {
  ((unsigned short*)data)[i] = (unsigned short)f16_pair_of(value, 0.0f);
}
SCOREMOD_FUNCTION void store_bf16(void* data, long long i, float value) {
  ((unsigned short*)data)[i] = (unsigned short)bf16_pair_of(value, 0.0f);
}

// The gradients of one element whose operands vary along queries and keys.
struct ElementGains {
  float of[kElementTargets > 0 ? kElementTargets : 1];
};
SCOREMOD_FUNCTION void store_element_gains(const Arguments& p, const ElementGains& gains, int b, int h, int q, int kv) {
  if (q >= p.call.seq_q || kv >= p.call.seq_kv) return;
  /*{stores}*/
  if (p.operands[/*{operand}*/ 0 /*{}*/].gradient != nullptr)
    /*{store}*/ store_f32 /*{}*/ (p.operands[/*{operand}*/ 0 /*{}*/].gradient, /*{offset}*/ 0 /*{}*/,
                                  gains.of[/*{number}*/ 0 /*{}*/]);
  /*{}*/
}
// They are zero where nobody walks: in a row's tile of keys that is empty. By all of a block's threads but producers.
SCOREMOD_FUNCTION void clear_tile_gains(const Arguments& p, int b, int h, int query_tile, int key_tile) {
  if ((int)threadIdx.x >= kThreads) return;
  for (int i = threadIdx.x; i < kQueries * kKeys; i += kThreads)
    store_element_gains(p, ElementGains{}, b, h, query_tile * kQueries + i / kKeys, key_tile * kKeys + i % kKeys);
}
SCOREMOD_FUNCTION void clear_empty_tiles(const Arguments& p, int b, int h, int query_tile) {
  if (kElementTargets == 0) return;
  for (int tile = 0; tile < p.call.key_tiles; ++tile)
    if (state_of(p.call, b, h, query_tile, tile) == kEmptyTile) clear_tile_gains(p, b, h, query_tile, tile);
}
// clear_empty_tiles() for a column of tiles.
SCOREMOD_FUNCTION void clear_empty_tiles_of_keys(const Arguments& p, int b, int h, int key_tile) {
  if (kElementTargets == 0) return;
  for (int tile = 0; tile < p.call.query_tiles; ++tile)
    if (state_of(p.call, b, h, tile, key_tile) == kEmptyTile) clear_tile_gains(p, b, h, tile, key_tile);
}

// Adds a warp's sums of one kind over its threads.
SCOREMOD_FUNCTION float sum_of_warp(float x) {
  for (int distance = 1; distance < 32; distance *= 2) x += exchange(x, distance);
  return x;
}
