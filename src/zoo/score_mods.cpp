#include <cmath>
#include <utility>

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"
#include "zoo/t5_buckets.hpp"

namespace scoremod::zoo {

ScoreMod soft_cap(float cap) {
  if (!(cap > 0) || !std::isfinite(cap)) {
    fail_argument("soft_cap: expected cap > 0 and finite, found ", cap, "; leave the modifier out for no cap");
  }
  return [cap](Score s, Index) { return cap * tanh(s / cap); };
}

ScoreMod alibi(bool symmetric, std::string slopes) {
  const Operand<Float> slope(std::move(slopes), {Axis::kHead});
  if (symmetric) return [slope](Score s, Index i) { return s - slope * f32(abs(i.q - i.kv)); };
  return [slope](Score s, Index i) { return s + slope * f32(i.kv - i.q); };
}

ScoreMod relative_bias(float scale) {
  if (!std::isfinite(scale)) fail_argument("relative_bias: expected a finite scale, found ", scale);
  return [scale](Score s, Index i) { return s + scale * f32(i.q - i.kv); };
}

ScoreMod t5_bias(bool bidirectional, int num_buckets, int max_distance, std::string table) {
  const T5Buckets buckets(bidirectional, num_buckets, max_distance);
  const Table<Float, 2> bias(std::move(table));
  return [buckets, bias](Score s, Index i) { return s + bias(buckets.expression(i.kv - i.q), i.h); };
}

ScoreMod full_bias(const std::vector<Axis>& axes, std::string bias, bool before_scale) {
  const Operand<Float> operand(std::move(bias), axes);
  if (before_scale) return [operand](Score s, Index) { return s + qk_scale() * operand; };
  return [operand](Score s, Index) { return s + operand; };
}

ScoreMod relative_table(int max_distance, std::string table) {
  constexpr int kLargest = 1 << 24;
  if (max_distance < 0 || max_distance > kLargest) {
    fail_argument("relative_table: expected 0 <= max_distance <= ", kLargest, ", found ", max_distance);
  }
  const Table<Float, 2> bias(std::move(table));
  // The read clamps the index to the table, which clips the distance.
  return [bias, max_distance](Score s, Index i) { return s + bias(i.h, i.q - i.kv + max_distance); };
}

ScoreMod head_temperature(std::string temperature) {
  const Operand<Float> operand(std::move(temperature), {Axis::kHead});
  return [operand](Score s, Index) { return s / operand; };
}

}  // namespace scoremod::zoo
