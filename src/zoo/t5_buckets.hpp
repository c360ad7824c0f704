#pragma once

#include <vector>

#include "scoremod/dsl.hpp"

namespace scoremod::zoo {

/// T5's buckets as thresholds: see t5_bucket() in scoremod/zoo.hpp for the formula. Backends round logarithms
/// differently, so truncating one to an integer would give different buckets. So the distances at which the bucket
/// grows are computed here, and programs only compare integers.
class T5Buckets {
 public:
  /// Throws Error(kInvalidArgument) for parameters that the formula has no meaning for.
  T5Buckets(bool bidirectional, int num_buckets, int max_distance);

  /// The bucket of kv - q.
  int bucket(std::int64_t key_minus_query) const;
  /// The bucket as an expression.
  Int expression(Int key_minus_query) const;

 private:
  bool bidirectional_;
  int one_side_;                 ///< buckets of one direction
  int exact_;                    ///< distances below it have a bucket each
  std::vector<int> thresholds_;  ///< ascending: from each on, the bucket is one higher
};

}  // namespace scoremod::zoo
