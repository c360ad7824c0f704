// The program at one element, of the problem that the kernels are made for, and dropout of its weight. Indices are
// local; those beyond the problem's sizes are those of no element.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"
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

// Dropout. One evaluation of Philox is for four neighbouring keys of a query, which several threads of a warp's tile
// hold. Each of them makes some, and they exchange what came of it. Weights are left bit for bit as
// problem/dropout_mask.hpp has it, of global indices.

struct DropoutKey {
  unsigned key[2], threshold;
};

// Philox4x32-10 of the counter (kv / 4, q, h, b): of bit i, whether the weight of the i-th of these four keys is left.
SCOREMOD_FUNCTION unsigned four_stay(const DropoutKey& call, unsigned b, unsigned h, unsigned q, unsigned four) {
  unsigned word0 = four, word1 = q, word2 = h, word3 = b, key0 = call.key[0], key1 = call.key[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long product0 = 0xD2511F53ull * word0, product1 = 0xCD9E8D57ull * word2;
    word0 = (unsigned)(product1 >> 32) ^ word1 ^ key0;
    word1 = (unsigned)product1;
    word2 = (unsigned)(product0 >> 32) ^ word3 ^ key1;
    word3 = (unsigned)product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return (word0 >= call.threshold ? 1u : 0u) | (word1 >= call.threshold ? 2u : 0u) |
         (word2 >= call.threshold ? 4u : 0u) | (word3 >= call.threshold ? 8u : 0u);
}
SCOREMOD_FUNCTION bool one_stays(const DropoutKey& call, unsigned b, unsigned h, unsigned q, unsigned kv) {
  return (four_stay(call, b, h, q, kv / 4u) >> kv % 4u & 1u) != 0;
}

// The places of a part's queries, or keys, in the whole sequence: DropoutPlaces of problem/call_dropout.hpp.
struct DropoutPlaces {
  unsigned first, tokens, step;

  SCOREMOD_MEMBER unsigned at(unsigned i) const {
    if (!kDropoutPlaces) return i;
    return tokens == 0 ? first + i : first + i / tokens * step + i % tokens;
  }
  // Whether four neighbours from a multiple of four on are so in the whole, too.
  SCOREMOD_MEMBER bool by_fours() const { return !kDropoutPlaces || (first | tokens | step) % 4u == 0; }
};

// The Philox key and index offsets of one batch.
struct BatchDropout {
  DropoutKey key;
  unsigned b, first_h, offset_q, offset_kv;
  DropoutPlaces queries = {}, keys = {};

  SCOREMOD_MEMBER BatchDropout(const AttentionArguments& call, int batch)
      : key{{call.dropout.key[0], call.dropout.key[1]}, call.dropout.threshold},
        b((unsigned)batch + (unsigned)call.offset_b),
        first_h((unsigned)call.offset_h),
        offset_q((unsigned)call.offset_q),
        offset_kv((unsigned)call.offset_kv) {
    if (!kDropoutKeys) return;
    const unsigned* words = call.dropout.keys + batch * call.dropout.batch;
    key.key[0] = words[0];
    key.key[1] = words[call.dropout.word];
    b = words[2 * call.dropout.word];
    first_h += words[3 * call.dropout.word];
    if (!kDropoutPlaces) return;
    queries = {words[4 * call.dropout.word], words[5 * call.dropout.word], words[6 * call.dropout.word]};
    keys = {words[7 * call.dropout.word], words[8 * call.dropout.word], words[9 * call.dropout.word]};
  }
  // Whether four() is told a tile's keys.
  SCOREMOD_MEMBER bool by_fours() const { return offset_kv % 4u == 0 && keys.by_fours(); }
  SCOREMOD_MEMBER bool one(int h, int q, int kv) const {
    return one_stays(key, b, (unsigned)h + first_h, queries.at((unsigned)q + offset_q),
                     keys.at((unsigned)kv + offset_kv));
  }
  // The dropout bits of four neighbouring keys that share an evaluation.
  SCOREMOD_MEMBER unsigned four(int h, int q, int first_kv) const {
    return four_stay(key, b, (unsigned)h + first_h, queries.at((unsigned)q + offset_q),
                     keys.at((unsigned)first_kv + offset_kv) / 4u);
  }
};

SCOREMOD_FUNCTION bool weight_stays(const AttentionArguments& call, int b, int h, int q, int kv) {
  return !kDropout || BatchDropout(call, b).one(h, q, kv);
}

// The dropout bits of 16 rows by kColumns keys, as Sums has them: bit 4 n + e is of at[.][n][e]. first_key is a
// multiple of 8.
template <int kColumns>
SCOREMOD_FUNCTION unsigned rows_stay(const AttentionArguments& call, int b, int h, int first_row, int first_key) {
  static_assert(kColumns <= 64, "four bits for each 8 columns");
  if (!kDropout) return ~0u;
  const BatchDropout dropout(call, b);
  const int lane = threadIdx.x % 32;
  unsigned bits = 0;
  if (!dropout.by_fours()) {
#pragma unroll 1
    for (int i = 0; i < kColumns / 2; ++i) {
      const RowOwner of = owner_of(call, h, first_row + i % 4 / 2 * 8 + lane / 4);
      if (dropout.one(of.h, of.q, first_key + i / 4 * 8 + lane % 4 * 2 + i % 2)) bits |= 1u << i;
    }
    return bits;
  }
  const RowOwner of = owner_of(call, h, first_row + lane % 2 * 8 + lane / 4);
  // Two threads have two keys each of both rows: one makes the four of the first row, the other of the second.
#pragma unroll 2
  for (int n = 0; n < kColumns / 8; ++n)
    bits |= dropout.four(of.h, of.q, first_key + n * 8 + lane % 4 / 2 * 4) << (4 * n);
  const unsigned others = exchange_bits(bits, 1);
  const unsigned first = lane % 2 == 0 ? bits : others, second = lane % 2 == 0 ? others : bits;
  const int own = lane % 2 * 2;
  return (first >> own & 0x33333333u) | (second >> own & 0x33333333u) << 2;
}

// The dropout bits of 16 keys by kColumns queries, in the layout of rows_stay().
template <int kColumns>
SCOREMOD_FUNCTION unsigned columns_stay(const AttentionArguments& call, int b, int h, int first_query, int first_key) {
  static_assert(kColumns <= 64, "four bits for each 8 columns");
  if (!kDropout) return ~0u;
  const BatchDropout dropout(call, b);
  const int lane = threadIdx.x % 32;
  unsigned bits = 0;
  if (!dropout.by_fours()) {
#pragma unroll 1
    for (int i = 0; i < kColumns / 2; ++i) {
      const int q = first_query + i / 4 * 8 + lane % 4 * 2 + i % 2, kv = first_key + i % 4 / 2 * 8 + lane / 4;
      if (dropout.one(h, q, kv)) bits |= 1u << i;
    }
    return bits;
  }
  // Four threads have one of four keys each, of four elements: each makes one of these for all four keys.
  const int own = lane / 4 % 4;
#pragma unroll 2
  for (int n = 0; n < kColumns / 8; ++n)
    bits |= dropout.four(h, first_query + n * 8 + lane % 4 * 2 + own % 2, first_key + own / 2 * 8 + lane / 16 * 4)
            << (4 * n);
  unsigned all = 0;
#pragma unroll
  for (int distance = 0; distance < 4; ++distance) {
    const unsigned from = distance == 0 ? bits : exchange_bits(bits, 4 * distance);
    all |= (from >> own & 0x11111111u) << (own ^ distance);
  }
  return all;
}

// The bits of rows_stay() for rows of any length.
template <int kColumns>
struct RowsStay {
  unsigned bits[(kColumns + 63) / 64];

  SCOREMOD_MEMBER RowsStay(const AttentionArguments& call, int b, int h, int first_row, int first_key) {
#pragma unroll
    for (int i = 0; i < (kColumns + 63) / 64; ++i)
      bits[i] = rows_stay < kColumns < 64 ? kColumns : 64 > (call, b, h, first_row, first_key + i * 64);
  }
  SCOREMOD_MEMBER bool at(int n, int e) const { return !kDropout || (bits[n / 8] >> (n % 8 * 4 + e) & 1u) != 0; }
};
template <int kColumns>
struct ColumnsStay {
  unsigned bits[(kColumns + 63) / 64];

  SCOREMOD_MEMBER ColumnsStay(const AttentionArguments& call, int b, int h, int first_query, int first_key) {
#pragma unroll
    for (int i = 0; i < (kColumns + 63) / 64; ++i)
      bits[i] = columns_stay < kColumns < 64 ? kColumns : 64 > (call, b, h, first_query + i * 64, first_key);
  }
  SCOREMOD_MEMBER bool at(int n, int e) const { return !kDropout || (bits[n / 8] >> (n % 8 * 4 + e) & 1u) != 0; }
};

// Applies dropout to a weight, or to a factor of one.
SCOREMOD_FUNCTION float dropped(const AttentionArguments& call, float x, bool stays) {
  return !kDropout ? x : stays ? x * call.dropout.factor : 0.0f;
}
