#include "backend/cpu/row_kernels.hpp"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/row_kernels.cpp"
#include <hwy/foreach_target.h>
// clang-format off: foreach_target.h comes first.
#include <hwy/highway.h>

#include "backend/cpu/vector_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace scoremod::backend::cpu::HWY_NAMESPACE {

HWY_INLINE FloatVec infinity(float sign) { return hn::Set(FloatTag(), sign * std::numeric_limits<float>::infinity()); }

HWY_INLINE FloatVec load_source(LaneSource source, std::size_t i) {
  const FloatTag d;
  return source.broadcast ? hn::Set(d, *source.data) : hn::LoadU(d, source.data + i);
}

HWY_INLINE FloatMask load_keep(const LaneSource& source, std::size_t i) {
  const IntTag di;
  return hn::RebindMask(FloatTag(), hn::Ne(hn::BitCast(di, load_source(source, i)), hn::Zero(di)));
}

float mask_row(LaneSource value, const LaneSource* keep, std::size_t count, float* out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const FloatVec masked = infinity(-1);
  FloatVec largest = masked;
  const bool in_place = keep == nullptr && !value.broadcast && value.data == out;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    FloatVec x = load_source(value, i);
    if (keep != nullptr) x = hn::IfThenElse(load_keep(*keep, i), x, masked);
    largest = hn::Max(largest, x);
    if (!in_place) hn::StoreU(x, d, out + i);
  }
  if (i < count) {
    FloatVec x = hn::IfThenElse(hn::FirstN(d, count - i), load_source(value, i), masked);
    if (keep != nullptr) x = hn::IfThenElse(load_keep(*keep, i), x, masked);
    largest = hn::Max(largest, x);
    hn::StoreU(x, d, out + i);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

float exponentiate_row(float* scores, std::size_t count, float reference) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const FloatVec shift = hn::Set(d, reference);
  FloatVec sum = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += lanes) {
    const FloatVec p = exp_nonpositive(hn::Sub(hn::LoadU(d, scores + i), shift));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void probability_row(LaneSource value, const LaneSource* keep, std::size_t count, SplitLse lse, float* out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const FloatVec masked = infinity(-1);
  const FloatVec shift = hn::Set(d, lse.rounded), remainder = hn::Set(d, lse.remainder);
  const bool empty = std::isinf(lse.rounded);
  for (std::size_t i = 0; i < count; i += lanes) {
    FloatVec x = load_source(value, i);
    if (keep != nullptr) x = hn::IfThenElse(load_keep(*keep, i), x, masked);
    // lse is rounded, so the difference may come out slightly above 0; exp_nonpositive is accurate there too.
    const FloatVec p = exp_nonpositive(hn::Sub(hn::Sub(x, shift), remainder));
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, masked), empty ? hn::Zero(d) : p), d, out + i);
  }
}

void adjoint_row(const float* p, float mean, std::size_t count, float* adjoint) {
  const FloatTag d;
  const FloatVec center = hn::Set(d, mean);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const FloatVec weight = hn::LoadU(d, p + i);
    const FloatVec x = hn::Mul(weight, hn::Sub(hn::LoadU(d, adjoint + i), center));
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), x), d, adjoint + i);
  }
}

void select_row(LaneSource value, const float* p, std::size_t count, float* out) {
  const FloatTag d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const FloatVec x = load_source(value, i);
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(hn::LoadU(d, p + i), hn::Zero(d)), x), d, out + i);
  }
}

float sum_row(const float* numbers, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  FloatVec sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::Add(sum, hn::LoadU(d, numbers + i));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += numbers[i];
  return total;
}

float weighted_sum_row(const float* p, const float* x, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  FloatVec sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const FloatVec weight = hn::LoadU(d, p + i);
    sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), hn::Mul(weight, hn::LoadU(d, x + i))));
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += p[i] == 0 ? 0 : p[i] * x[i];
  return total;
}

float dot_row(const float* x, const float* y, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  FloatVec sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += x[i] * y[i];
  return total;
}

void dot_rows(const float* x, const float* rows, std::size_t stride, std::size_t dims, std::size_t count, float* out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const float* row = rows + j * stride;
    FloatVec sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::size_t i = 0; i < dims; i += lanes) {
      const FloatVec at = hn::LoadU(d, x + i);
      sum0 = hn::MulAdd(at, hn::LoadU(d, row + i), sum0);
      sum1 = hn::MulAdd(at, hn::LoadU(d, row + stride + i), sum1);
      sum2 = hn::MulAdd(at, hn::LoadU(d, row + 2 * stride + i), sum2);
      sum3 = hn::MulAdd(at, hn::LoadU(d, row + 3 * stride + i), sum3);
    }
    out[j] = hn::GetLane(hn::SumOfLanes(d, sum0));
    out[j + 1] = hn::GetLane(hn::SumOfLanes(d, sum1));
    out[j + 2] = hn::GetLane(hn::SumOfLanes(d, sum2));
    out[j + 3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  }
  for (; j < count; ++j) out[j] = dot_row(x, rows + j * stride, dims);
}

void add_row(const float* numbers, std::size_t count, float* out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), hn::LoadU(d, numbers + i)), d, out + i);
  }
  for (; i < count; ++i) out[i] += numbers[i];
}

}  // namespace scoremod::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace scoremod::backend::cpu {

HWY_EXPORT(mask_row);
HWY_EXPORT(exponentiate_row);
HWY_EXPORT(probability_row);
HWY_EXPORT(adjoint_row);
HWY_EXPORT(select_row);
HWY_EXPORT(sum_row);
HWY_EXPORT(weighted_sum_row);
HWY_EXPORT(dot_row);
HWY_EXPORT(dot_rows);
HWY_EXPORT(add_row);

float mask_scores(LaneSource value, const LaneSource* keep, std::size_t count, float* out) {
  return HWY_DYNAMIC_DISPATCH(mask_row)(value, keep, count, out);
}

float exponentiate(float* scores, std::size_t count, float reference) {
  return HWY_DYNAMIC_DISPATCH(exponentiate_row)(scores, count, reference);
}

void probabilities(LaneSource value, const LaneSource* keep, std::size_t count, SplitLse lse, float* out) {
  HWY_DYNAMIC_DISPATCH(probability_row)(value, keep, count, lse, out);
}

void softmax_adjoint(const float* p, float mean, std::size_t count, float* adjoint) {
  HWY_DYNAMIC_DISPATCH(adjoint_row)(p, mean, count, adjoint);
}

void keep_where_probable(LaneSource value, const float* p, std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(select_row)(value, p, count, out);
}

float sum_of(const float* numbers, std::size_t count) { return HWY_DYNAMIC_DISPATCH(sum_row)(numbers, count); }

float weighted_sum(const float* p, const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(weighted_sum_row)(p, x, count);
}

float dot(const float* x, const float* y, std::size_t count) { return HWY_DYNAMIC_DISPATCH(dot_row)(x, y, count); }

void dots(const float* x, const float* rows, std::size_t stride, std::size_t dims, std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows)(x, rows, stride, dims, count, out);
}

void add_to(const float* numbers, std::size_t count, float* out) { HWY_DYNAMIC_DISPATCH(add_row)(numbers, count, out); }

}  // namespace scoremod::backend::cpu
#endif
