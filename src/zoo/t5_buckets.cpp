#include "zoo/t5_buckets.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"

namespace scoremod::zoo {
namespace {

/// Each threshold is a few nodes of the program.
constexpr int kMaxBuckets = 256;
constexpr int kMaxDistance = 1 << 24;

/// The smallest distance d with log(d / exact) / log(max_distance / exact) * steps >= step.
int threshold(int exact, int max_distance, int step, int steps) {
  const long double exponent = static_cast<long double>(step) / steps;
  const long double power = exact * std::pow(static_cast<long double>(max_distance) / exact, exponent);
  // Powers that are integers (16, 32 and 64 for T5's own parameters) may come out an ulp too high.
  const long double nearest = std::round(power);
  const bool integer = std::abs(power - nearest) <= 1e-12L * nearest;
  return static_cast<int>(integer ? nearest : std::ceil(power));
}

}  // namespace

T5Buckets::T5Buckets(bool bidirectional, int num_buckets, int max_distance)
    : bidirectional_(bidirectional), one_side_(bidirectional ? num_buckets / 2 : num_buckets), exact_(one_side_ / 2) {
  const int least = bidirectional ? 4 : 2;
  if (num_buckets < least || num_buckets > kMaxBuckets || (bidirectional && num_buckets % 2 != 0)) {
    fail_argument("t5_bias: expected num_buckets of ", least, " to ", kMaxBuckets, bidirectional ? ", even" : "",
                  ", found ", num_buckets);
  }
  if (max_distance <= exact_ || max_distance > kMaxDistance) {
    fail_argument("t5_bias: expected max_distance of ", exact_ + 1, " to ", kMaxDistance, " with ", num_buckets,
                  " buckets, found ", max_distance);
  }
  const int steps = one_side_ - exact_;
  for (int step = 1; step < steps; ++step) thresholds_.push_back(threshold(exact_, max_distance, step, steps));
}

int T5Buckets::bucket(std::int64_t key_minus_query) const {
  const std::int64_t distance =
      bidirectional_ ? std::abs(key_minus_query) : -std::min<std::int64_t>(key_minus_query, 0);
  int bucket = static_cast<int>(std::min<std::int64_t>(distance, exact_));
  for (const int threshold : thresholds_) bucket += distance >= threshold ? 1 : 0;
  return bucket + (bidirectional_ && key_minus_query > 0 ? one_side_ : 0);
}

Int T5Buckets::expression(Int key_minus_query) const {
  const Int distance = bidirectional_ ? abs(key_minus_query) : -min(key_minus_query, 0);
  Int bucket = min(distance, exact_);
  for (const int threshold : thresholds_) bucket += i32(distance >= threshold);
  return bidirectional_ ? bucket + select(key_minus_query > 0, one_side_, 0) : bucket;
}

int t5_bucket(std::int32_t key_minus_query, bool bidirectional, int num_buckets, int max_distance) {
  return T5Buckets(bidirectional, num_buckets, max_distance).bucket(key_minus_query);
}

}  // namespace scoremod::zoo
