// Operand gradients at one element: the part of a program that operand_gradients/tile_sums.cuh calls.
#pragma once

#include "backend/kernels/shared/key_gradients.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

// One text of a large program for all tiles: with its mask, which keeps all of a tile that is full.
constexpr bool kAlwaysMasked = /*{always_masked}*/ false /*{}*/;
// No array has no elements.
constexpr int kMaxElementTargets = kTargets > kRowTargets ? kTargets - kRowTargets : 1;
constexpr int kMaxTableReads = kTableReads > 0 ? kTableReads : 1;

// At one element: its weight before dropout; and what the targets gain, which is proportional to the gradient of the
// element's value. Those of rows gain of the weight's gradient what is left when the row's delta is known.
struct Gains {
  bool kept;
  float weight;
  float of_weight[kMaxRowTargets], of_product[kMaxRowTargets];
  float of_element[kMaxElementTargets];
  int entries[kMaxTableReads];  // that tables are read at, of all tables together
};

/*{gains_of}*/
// From the score, the gradient of the weight (the product of d_o and v, after dropout), and the row's terms.
template <bool kMasked>
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ Gains gains_of(const Arguments& p, float score, float product, float exponent,
                                                      float delta, int b, int h, int any_q, int any_kv) {
  const int q = program_query(p.call, any_q), kv = program_key(p.call, any_kv);
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  Gains gains{};
  /*{forward_statements}*/ const float value = score; /*{}*/
  gains.kept = /*{value}*/ value /*{}*/ != -infinity() && exponent != infinity() && any_q < p.call.seq_q &&
               any_kv < p.call.seq_kv;
  if (kMasked) gains.kept = gains.kept && /*{keep}*/ kv <= q /*{}*/;
  if (!gains.kept) return gains;
  const float weight = weight_of(/*{value}*/ value /*{}*/, 1.0f, exponent);
  const auto contributions = [&](float upstream) {
    /*{statements}*/ const float n1 = upstream * score; /*{}*/
    return Contributions{{/*{contributions}*/ n1, n1, n1, n1, n1 /*{}*/}};
  };
  gains.weight = weight;
  /*{entries}*/ gains.entries[0] = kv; /*{}*/
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
/*{}*/
