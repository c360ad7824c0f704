// What operands' gradients gain at one element, and where it goes: the part of a program that
// attention_operand_gradients.cuh calls. Targets whose gradient does not vary along keys come first, then those that
// vary along keys, then those that vary along both.
#pragma once

#include "backend/kernels/device/attention_key_gradients.cuh"
#include "backend/kernels/device/attention_query_gradients.cuh"

constexpr int kRowTargets = /*{row_targets}*/ 1 /*{}*/, kKeyTargets = /*{key_targets}*/ 1 /*{}*/;
constexpr int kTargets = /*{targets}*/ 3 /*{}*/;
// One text of a large program for all tiles: with its mask, which keeps all of a tile that is full.
constexpr bool kAlwaysMasked = /*{always_masked}*/ false /*{}*/;
constexpr bool kStores = kTargets > kRowTargets + kKeyTargets;
// No array has no elements.
constexpr int kMostRowTargets = kRowTargets > 0 ? kRowTargets : 1, kMostKeyTargets = kKeyTargets > 0 ? kKeyTargets : 1;
constexpr int kMostElementTargets = kTargets > kRowTargets ? kTargets - kRowTargets : 1;

struct Contributions {
  float of[kTargets > 0 ? kTargets : 1];
};

// At one element: its weight before dropout; and what the targets gain, which is proportional to the gradient of the
// element's value. Those of rows gain of the weight's gradient what is left when the row's delta is known.
struct Gains {
  bool kept;
  float weight;
  float of_weight[kMostRowTargets], of_product[kMostRowTargets];
  float of_element[kMostElementTargets];
};

// From the score, the gradient of the weight (the product of d_o and v, after dropout), and the row's terms.
template <bool kMasked>
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ Gains gains_of(const Arguments& p, float score, float product, float lse,
                                                      float delta, int b, int h, int any_q, int any_kv) {
  const int q = any_q < p.call.seq_q ? any_q : p.call.seq_q - 1;
  const int kv = any_kv >= p.call.seq_kv ? p.call.seq_kv - 1 : any_kv;
  const int offset_b = p.call.offset_b, offset_h = p.call.offset_h, offset_q = p.call.offset_q,
            offset_kv = p.call.offset_kv;
  Gains gains{};
  /*{forward_statements}*/ const float value = score; /*{}*/
  gains.kept = /*{value}*/ value /*{}*/ != -infinity() && lse != infinity() && q == any_q && kv == any_kv;
  if (kMasked) gains.kept = gains.kept && /*{keep}*/ kv <= q /*{}*/;
  if (!gains.kept) return gains;
  const float weight = exp2_of((/*{value}*/ value /*{}*/ - lse) * kLog2E);
  const auto contributions = [&](float upstream) {
    /*{statements}*/ const float n1 = upstream * score; /*{}*/
    return Contributions{{/*{contributions}*/ n1, n1, n1 /*{}*/}};
  };
  gains.weight = weight;
  const Contributions of_weight = contributions(weight);
#pragma unroll
  for (int t = 0; t < kRowTargets; ++t) {
    gains.of_weight[t] = of_weight.of[t];
    gains.of_product[t] = of_weight.of[t] * product;
  }
#pragma unroll
  for (int t = kRowTargets; t < kTargets; ++t) gains.of_element[t - kRowTargets] = of_weight.of[t] * (product - delta);
  return gains;
}

// Sums of a target of rows; of one that does not vary along queries they are of tiles.
SCOREMOD_FUNCTION float* row_target_sums(const Arguments& p, int target) {
  constexpr int kNumbers[] = {/*{row_operands}*/ 0 /*{}*/};
  return p.operands[kNumbers[target]].sums;
}
SCOREMOD_FUNCTION constexpr bool row_target_is_total(int target) {
  return (/*{totals}*/ 1ull /*{}*/ >> target & 1ull) != 0;
}
SCOREMOD_FUNCTION float* key_target_sums(const Arguments& p, int target) {
  constexpr int kNumbers[] = {/*{key_operands}*/ 0 /*{}*/};
  return p.operands[kNumbers[target]].sums;
}

SCOREMOD_FUNCTION void store_f32(void* data, long long i, float value) { ((float*)data)[i] = value; }
SCOREMOD_FUNCTION void store_f16(void* data, long long i, float value) {
  ((unsigned short*)data)[i] = (unsigned short)f16_pair_of(value, 0.0f);
}
SCOREMOD_FUNCTION void store_bf16(void* data, long long i, float value) {
  ((unsigned short*)data)[i] = (unsigned short)bf16_pair_of(value, 0.0f);
}

// Adds a warp's sums of one kind over its threads.
SCOREMOD_FUNCTION float sum_of_warp(float x) {
  for (int distance = 1; distance < 32; distance *= 2) x += exchange(x, distance);
  return x;
}

// Of an element, to the targets that vary along queries and keys.
SCOREMOD_FUNCTION void store_gains(const Arguments& p, const Gains& gains, int b, int h, int q, int kv) {
  /*{stores}*/
  if (p.operands[/*{operand}*/ 0 /*{}*/].gradient != nullptr)
    /*{store}*/ store_f32 /*{}*/ (p.operands[/*{operand}*/ 0 /*{}*/].gradient, /*{offset}*/ 0 /*{}*/,
                                  gains.of_element[/*{number}*/ 0 /*{}*/]);
  /*{}*/
}
SCOREMOD_FUNCTION void store_sink_gradient(const Arguments& p, float gradient, int h) {
  /*{sink_store}*/
  if (p.operands[/*{operand}*/ 0 /*{}*/].gradient != nullptr)
    /*{store}*/ store_f32 /*{}*/ (p.operands[/*{operand}*/ 0 /*{}*/].gradient, /*{offset}*/ 0 /*{}*/, gradient);
  /*{}*/
}

/*{total}*/
// The entries of one gradient, from the sums of each batch, head and position that share it. A warp adds those of one
// entry where the positions are tiles; a thread does where they are entries of their own.
SCOREMOD_KERNEL(128, 1) /*{name}*/ attention_operand_total_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  constexpr bool kByTiles = /*{by_tiles}*/ true /*{}*/, kAlongKeys = /*{along_keys}*/ false /*{}*/;
  if (operand.gradient == nullptr) return;
  const bool by_batch = /*{by_batch}*/ true /*{}*/, by_head = /*{by_head}*/ true /*{}*/;
  const int positions = kByTiles ? call.query_tiles : kAlongKeys ? call.seq_kv : call.seq_q;
  const int own_positions = kByTiles ? 1 : positions, summed_positions = kByTiles ? positions : 1;
  const int heads = by_head ? call.heads_q : 1, batches = by_batch ? call.batch : 1;
  const int summed_heads = by_head ? 1 : call.heads_q, summed_batches = by_batch ? 1 : call.batch;
  const int lane = kByTiles ? threadIdx.x % 32 : 0, lanes = kByTiles ? 32 : 1;
  const long long number = ((long long)blockIdx.x * 128 + threadIdx.x) / lanes;
  if (number >= (long long)batches * heads * own_positions) return;
  const int at = (int)(number % own_positions), own_h = (int)(number / own_positions % heads);
  const int own_b = (int)(number / own_positions / heads);
  float sum = 0.0f;
  for (int i = lane; i < summed_batches * summed_heads * summed_positions; i += lanes) {
    const int position = kByTiles ? i % summed_positions : at, summed_h = i / summed_positions % summed_heads;
    const long long summed_b = i / summed_positions / summed_heads;
    sum += operand.sums[((own_b + summed_b) * call.heads_q + own_h + summed_h) * positions + position];
  }
  if (kByTiles) sum = sum_of_warp(sum);
  if (lane != 0) return;
  const int b = own_b, h = own_h, q = at, kv = at;
  /*{store}*/ store_f32 /*{}*/ (operand.gradient, /*{offset}*/ b + h + q + kv /*{}*/, sum);
}
/*{}*/
