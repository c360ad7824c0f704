#pragma once

#include <cstddef>

#include "backend/cpu/strip.hpp"

namespace scoremod::backend::cpu {

/// Writes the scores of one query that count, -inf where `keep` (may be null) is false, up to the next multiple of
/// kLanePadding with -inf. Returns the largest, -inf if there is none; NaN is passed on in `out` but not in the result.
float mask_scores(LaneSource value, const LaneSource* keep, std::size_t count, float* out);

/// Replaces scores by exp(score - reference), 0 for -inf, and returns their sum. No score exceeds `reference`.
float exponentiate(float* scores, std::size_t count, float reference);

/// An LSE that float32 may not hold: the sum of the two.
struct SplitLse {
  float rounded = 0, remainder = 0;
};

/// Writes exp(value - lse), or 0 if `keep` is false, the value is -inf, or the row's lse is infinite. An infinite lse
/// means no key, or a sink that takes all weight.
void probabilities(LaneSource value, const LaneSource* keep, std::size_t count, SplitLse lse, float* out);

/// In place: p * (adjoint - mean), 0 where p is 0 (a masked key's adjoint may be NaN). This is d loss / d value.
void softmax_adjoint(const float* p, float mean, std::size_t count, float* adjoint);

/// Writes value where p is not 0, and 0 elsewhere.
void keep_where_probable(LaneSource value, const float* p, std::size_t count, float* out);

/// sum of numbers[i].
float sum_of(const float* numbers, std::size_t count);
/// sum of p[i] * x[i] where p is not 0, whatever x is elsewhere.
float weighted_sum(const float* p, const float* x, std::size_t count);
/// sum of x[i] * y[i].
float dot(const float* x, const float* y, std::size_t count);
/// out[j] = sum over i < dims of x[i] * rows[j * stride + i], for j < count. dims is a multiple of kLanePadding.
void dots(const float* x, const float* rows, std::size_t stride, std::size_t dims, std::size_t count, float* out);
/// out[i] += numbers[i].
void add_to(const float* numbers, std::size_t count, float* out);

}  // namespace scoremod::backend::cpu
