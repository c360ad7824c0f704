// Relative-position tables: the parts of a program that depend on h (and b) and kv_idx - q_idx alone. A table has every
// difference that a tile may have. attention_differences fills it, and the attention kernels read it.
#pragma once

#include "backend/kernels/shared/tiles.cuh"

/*{position_tables}*/
constexpr int kDifferences = /*{count}*/ 1 /*{}*/;  // that are tabulated
constexpr bool kDifferencesByBatch = /*{by_batch}*/ true /*{}*/, kDifferencesByHead = /*{by_head}*/ true /*{}*/;

// Entries of a table: rows and keys of tiles that lie beyond the last have some too.
SCOREMOD_FUNCTION int difference_pitch(const AttentionArguments& call) {
  return call.query_tiles * kQueries + call.key_tiles * kKeys;
}
SCOREMOD_FUNCTION float* position_table(const AttentionArguments& call, int number, int b, int h) {
  const int heads = kDifferencesByHead ? call.heads_q : 1;
  const long long head = (long long)(kDifferencesByBatch ? b : 0) * heads + (kDifferencesByHead ? h : 0);
  return call.differences + (head * kDifferences + number) * difference_pitch(call);
}
// The entry of kv == q.
SCOREMOD_FUNCTION int difference_origin(const AttentionArguments& call) { return call.query_tiles * kQueries - 1; }
// Local indices may be those of any rows and keys of tiles.
template <int kNumber>
SCOREMOD_FUNCTION float difference_at(const Arguments& p, int b, int h, int q, int kv) {
  return position_table(p.call, kNumber, b, h)[kv - q + difference_origin(p.call)];
}
/*{}*/
