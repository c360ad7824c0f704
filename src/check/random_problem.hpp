#pragma once

#include <cstdint>
#include <vector>

#include "check/check_case.hpp"

namespace scoremod::checking {

struct RandomProblemOptions {
  std::int64_t max_scores = 5000;  ///< batch * heads_q * seq_q * seq_kv is at most this
  std::vector<DType> dtypes{DType::kF32, DType::kF16, DType::kBF16};
  std::vector<std::int64_t> lengths{1, 2, 7, 16, 31, 64, 65, 100, 127, 128, 130, 200};
  std::vector<std::int64_t> head_dims{1, 3, 8, 16, 16, 20, 33, 64, 72};
  /// Strides of q, k, v and o are multiples of this many elements, except stride 1 along the head dim. 1 allows every
  /// order of the dimensions. Otherwise the head dim is innermost, and head_dims must be multiples of it.
  std::int64_t row_alignment = 1;
  double backward_probability = 0.75;
  /// How often the value is shifted by -250 to 300, so that the exponential of the LSE leaves float32.
  double shifted_value_probability = 0;
  /// How often operands empty rows or leave them one key: RowClass.
  double row_class_probability = 0;
  /// How often there is one query, in addition to the times that it is chosen among `lengths`.
  double one_query_probability = 0;
  /// How often there are 1 to 3 queries and 1 to 3 keys: with so few numbers, rounding predicts little.
  double few_rows_probability = 0;
  /// How often sequences have lengths of their own, the softmax a sink, and so on.
  double lengths_probability = 0;
  double sink_probability = 0;
  double dropout_probability = 0;
  double max_logit_probability = 0;
  /// How often sequences lie one after the other, keys in blocks (then without backward), and so on.
  double ragged_probability = 0;
  double paged_probability = 0;
  double gradient_layout_probability = 0;
  double output_dtype_probability = 0;
  /// How often keys and values of problems in more bits are FP8 (then without backward).
  double float8_keys_probability = 0;
  /// How often an FP8 q, k or v has block scales, of extents that are drawn one by one.
  double block_scales_probability = 0;
};

/// A valid problem with a tame random program. It has grouped heads, equal and different lengths and head dims, every
/// layout, and padded and permuted strides. It has operands of every kind, offsets, and scales of both signs. It has no
/// name; the inputs have the problem's seed.
///
/// Sizes, layouts and fields are drawn once, then programs for them, until one is kept. Few degenerate programs (all
/// masked, none masked, score-independent) are kept (random_problem.cpp), so that most problems can show a fault.
CheckCase random_problem(std::uint64_t seed, const RandomProblemOptions& options = {});

}  // namespace scoremod::checking
