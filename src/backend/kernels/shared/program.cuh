// The program at one element, of the problem that the kernels are made for. Indices are local; those beyond the
// problem's sizes are those of no element.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"
#include "backend/kernels/shared/dropout.cuh"
#include "backend/kernels/shared/tiles.cuh"

// Relative-position tables: the parts of a program that depend on h (and b) and kv_idx - q_idx alone. A table has every
// difference that a tile may have. attention_differences fills it, and the attention kernels read it.

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

/*{kernel attention_differences}*/
// One thread for each difference of each head.
SCOREMOD_KERNEL(128, 1) attention_differences(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int pitch = difference_pitch(call), heads = kDifferencesByHead ? call.heads_q : 1;
  const long long number = (long long)blockIdx.x * 128 + threadIdx.x, head = number / pitch;
  if (head >= (long long)heads * (kDifferencesByBatch ? call.batch : 1)) return;
  const int b = (int)(head / heads), h = (int)(head % heads), at = (int)(number % pitch);
  const int difference = at - difference_origin(call);
  const int q = difference < 0 ? -difference : 0, kv = difference > 0 ? difference : 0;
  const int offset_b = index_offset(call.offset_b), offset_h = index_offset(call.offset_h),
            offset_q = index_offset(call.offset_q), offset_kv = index_offset(call.offset_kv);
  /*{position_statements}*/ const float n1 =
      (float)(kv - q + b + h + offset_b + offset_h + offset_q + offset_kv); /*{}*/
  const float values[kDifferences] = {/*{position_values}*/ n1 /*{}*/};
  for (int i = 0; i < kDifferences; ++i) position_table(call, i, b, h)[at] = values[i];
}
/*{}*/

/*{forward}*/
// The modified score, -inf where the key is masked. Unless kMasked, no element of the tile is. Where kCopied, `copied`
// is what would be read of the operand whose tiles are copied.
template <bool kMasked, bool kCopied = false>
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ float value_of(const Arguments& p, float score, int b, int h, int any_q,
                                                      int any_kv, float copied = 0.0f) {
  const int q = program_query(p.call, any_q), kv = kMasked ? program_key(p.call, any_kv) : any_kv;
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  /*{statements}*/ const float value = score; /*{}*/
  return !kMasked || (any_kv < p.call.seq_kv && /*{keep}*/ kv <= q /*{}*/ && has_page(p.call, b, any_kv))
             ? /*{value}*/ value /*{}*/
             : -infinity();
}
/*{}*/

// The scale of a row of k or v among block scales of its memory, [batch or pages, KV heads, rows, 1]. Each row has one,
// or 32 rows share one, or all do.
SCOREMOD_FUNCTION const float* row_scale_at(const OperandArgument& scales, const TensorArgument& tensor,
                                            const AttentionArguments& call, int b, int kv_head, int kv) {
  int first = b, row = kv, rows = call.seq_kv;
  if (kPaged) {
    first = clamped(tensor.places[b * tensor.place_batch + kv / kBlockRows * tensor.place_step], 0, tensor.count - 1);
    row = kv % kBlockRows;
    rows = kBlockRows;
  } else if (kRaggedKeys) {
    first = 0;
    row = tokens_of(tensor, b).first + kv;
    rows = tensor.count;
  }
  const long long in_head = (scales.extent[2] == rows ? row : row / 32) * scales.stride[2];
  return (const float*)scales.data + first * scales.stride[0] + kv_head * scales.stride[1] + in_head;
}

/*{key_factors}*/
// The scales of a KV head's keys, and of its values: value = stored * scale. With kFloat8Queries score_scale() has that
// of keys.
SCOREMOD_FUNCTION float key_factor(const Arguments& p, int kv_head) { return /*{of_keys}*/ 1.0f /*{}*/; }
SCOREMOD_FUNCTION float value_factor(const Arguments& p, int kv_head) { return /*{of_values}*/ 1.0f /*{}*/; }
// The scales of a key and of its value in memory, with kRowScales, whose key_factor() and value_factor() are 1.
SCOREMOD_FUNCTION const float* key_scale_at(const Arguments& p, int b, int kv_head, int kv) {
  return /*{key_scale}*/ nullptr /*{}*/;
}
SCOREMOD_FUNCTION const float* value_scale_at(const Arguments& p, int b, int kv_head, int kv) {
  return /*{value_scale}*/ nullptr /*{}*/;
}
// The factor that turns a product of q and k into a score. Kernels with kFloat8Queries set it to scale_of_products().
SCOREMOD_FUNCTION float score_scale(const Arguments& p) { return p.call.scale; }
// The call's scale times those of FP8 queries and keys, which lie in memory.
SCOREMOD_FUNCTION float scale_of_products(const Arguments& p) { return /*{scale_of_products}*/ p.call.scale /*{}*/; }
/*{}*/

/*{sink}*/
// The term of the learned sink in the row sums of a query head; -inf means none.
SCOREMOD_FUNCTION float sink_of(const Arguments& p, int h) {
  /*{statements}*/ /*{}*/
  return /*{sink}*/ 0.0f /*{}*/;
}
/*{}*/

/*{keeps}*/
// The mask of an element, wherever its key lies.
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ bool mask_keeps(const Arguments& p, int b, int h, int q, int kv) {
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  /*{statements}*/ const bool keep = kv <= q; /*{}*/
  return /*{keep}*/ keep /*{}*/;
}
// For kernels that make the block mask, or walk over keys without one.
SCOREMOD_FUNCTION bool keeps(const Arguments& p, int b, int h, int q, int kv) {
  const bool page = has_page(p.call, b, kv);
  return mask_keeps(p, b, h, q, kv) && page;
}
/*{}*/
