#pragma once

#include <cstdint>
#include <vector>

#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "support/dense_attention.hpp"

namespace scoremod::test {

/// Three sequences of at most 5 queries and 7 keys, the second of each kind empty.
inline const std::vector<double> kOffsetsQ{0, 4, 4, 9}, kOffsetsKv{0, 3, 3, 10};

/// Both directions and max_logit of such sequences; tensors that are not varlen are dense in the dense formula's order.
AttentionProblem ragged_problem(bool q, bool kv);
ProblemInputs ragged_inputs(const AttentionProblem& problem);

/// A tensor's place, said once more: rows of [tokens, heads, dim] by the offsets, or dense [batch, heads, sequence,
/// dim].
struct Place {
  std::vector<double> offsets;  ///< empty: dense
  std::int64_t batch, heads, sequence, dim;

  /// -1 where there is no row.
  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    if (offsets.empty()) return ((b * heads + h) * sequence + i) * dim;
    const auto first = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(b)]);
    const auto end = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(b) + 1]);
    return first + i < end ? ((first + i) * heads + h) * dim : -1;
  }

  std::vector<double> dense(const std::vector<std::byte>& bytes, DType dtype) const {
    std::vector<double> values;
    for (std::int64_t n = 0; n < batch * heads * sequence; ++n) {
      const std::int64_t at = row(n / sequence / heads, n / sequence % heads, n % sequence);
      for (std::int64_t d = 0; d < dim; ++d)
        values.push_back(at < 0 ? 0 : load_element<double>(bytes.data(), dtype, at + d));
    }
    return values;
  }
};

Place query_place(const AttentionProblem& problem, std::int64_t dim);
Place key_place(const AttentionProblem& problem, std::int64_t dim);

/// The dense formula's results for the inputs' rows, with a modifier that keeps it within the sequences.
DenseResult ragged_result(const AttentionProblem& problem, const ProblemInputs& inputs, const DenseModifier& modifier);
DenseModifier within_sequences(const AttentionProblem& problem, DenseModifier modifier = {});

/// Compares the existing rows of an f32 output with the formula's: within the one rounding of the store, and float64's
/// own in another order.
void expect_rows(const ProblemBuffers& found, const char* name, const Place& place,
                 const std::vector<double>& expected);
/// Compares every output.
void expect_ragged(const AttentionProblem& problem, const ProblemBuffers& found, const DenseResult& expected);

}  // namespace scoremod::test
