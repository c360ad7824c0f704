// The program at one element, of the problem that the kernels are made for. Indices are local; those beyond the
// problem's sizes are those of no element. Before it are the operands that the program has gradients of.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"
#include "backend/kernels/shared/dropout.cuh"
#include "backend/kernels/shared/tiles.cuh"

// Operands whose gradients are summed by tiles of scores, and the places of their partial sums. Targets of rows and of
// keys have them in `sums` of each operand. There is one for each batch, query head, and query, key or tile of queries
// (if kFused, a warp's keys). operand_gradients/totals.cuh adds them up.

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

/*{backward}*/
// exp(x factor - lse), where `exponent` is row_terms()'s form of the LSE. With 16-bit tiles it is an exponent of 2,
// which saves one product. With fp32 tiles it is the LSE, because only the rounding of the difference is small enough.
SCOREMOD_FUNCTION float weight_of(float x, float factor, float exponent) {
  return kFloatTiles ? exp2_of(multiply_add(x, factor, -exponent) * kLog2E)
                     : exp2_of(multiply_add(x, factor * kLog2E, -exponent));
}

// Factors of the gradients of scores as they are made, and of sums over them. The scale belongs to one of the two. Sums
// are fewer, but unscaled gradients might exceed f16's range.
constexpr bool kScaledGradients = !kFloatTiles && !kBf16;
SCOREMOD_FUNCTION float gradient_factor(const AttentionArguments& call) { return kScaledGradients ? call.scale : 1.0f; }
SCOREMOD_FUNCTION float sum_factor(const AttentionArguments& call) { return kScaledGradients ? 1.0f : call.scale; }

struct Differentiated {
  float weight, gradient;  // exp(value - lse), before dropout; of the score, times gradient_factor()
  bool kept;
  // Operand gradients of one element, if they are summed here; all are 0 if it is not kept. `counted` is the weight,
  // `centred` its gradient less the row's delta, and `upstream` their product. The first kRowTargets gains are those of
  // rows and come from the weight alone, to be multiplied by `centred`.
  float counted, centred, upstream, gains[kMaxTargets];
};

// Differentiates one element from the products of q and k, and of d_o and v, its dropout bit, and row_terms(). If not
// kMasked and the score is the value, an element with a value of -inf yields nothing or a NaN. A NaN makes its row or
// key be summed again. `copied` is as in value_of().
template <bool kMasked, bool kCopied = false>
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ Differentiated differentiate(const Arguments& p, float q_k, float product,
                                                                    bool stays, float exponent, float delta, int b,
                                                                    int h, int any_q, int any_kv, float copied = 0.0f) {
  product = dropped(p.call, product, stays);
  const float score = q_k * p.call.scale;
  const int q = program_query(p.call, any_q), kv = kMasked ? program_key(p.call, any_kv) : any_kv;
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  /*{forward_statements}*/ const float value = score; /*{}*/
  constexpr bool kSameQuery = kClampsQueries && kComparesClamped, kSameKey = kClampsKeys && kComparesClamped;
  const bool kept = !kMasked || ((kScoreIsValue || /*{value}*/ value /*{}*/ != -infinity()) && exponent != infinity() &&
                                 (kSameQuery ? q == any_q : any_q < p.call.seq_q) &&
                                 (kSameKey ? kv == any_kv : any_kv < p.call.seq_kv) && /*{keep}*/ kv <= q /*{}*/);
  if (kScoreIsValue) {
    const float weight = weight_of(q_k, p.call.scale, exponent);
    return {kept ? weight : 0.0f, kept ? weight * (product - delta) * gradient_factor(p.call) : 0.0f, kept};
  }
  const float weight = kept ? weight_of(/*{value}*/ value /*{}*/, 1.0f, exponent) : 0.0f;
  const float upstream = kept ? weight * (product - delta) : 0.0f;
  /*{statements}*/ const float d_score = upstream; /*{}*/
  Differentiated element{weight, kept ? /*{d_score}*/ d_score /*{}*/ * gradient_factor(p.call) : 0.0f, kept};
  /*{gains}*/
  const bool counts = kMasked ? kept : /*{value}*/ value /*{}*/ != -infinity() && exponent != infinity();
  const auto contributions = [&](float upstream) {
    /*{gains_statements}*/ const float n1 = upstream * score; /*{}*/
    return Contributions{{/*{contributions}*/ n1, n1, n1, n1, n1 /*{}*/}};
  };
  const Contributions of_weight = contributions(weight), of_upstream = contributions(upstream);
  element.counted = weight;
  element.centred = counts ? product - delta : 0.0f;
  element.upstream = counts ? upstream : 0.0f;
#pragma unroll
  for (int t = 0; t < kTargets; ++t)
    element.gains[t] = counts ? (t < kRowTargets ? of_weight : of_upstream).of[t] : 0.0f;
  /*{}*/
  return element;
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
