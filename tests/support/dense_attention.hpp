#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::test {

/// A score modifier as plain C++, and its derivative in the score.
struct DenseModifier {
  using Index = std::int64_t;
  std::function<double(double score, Index b, Index h, Index q, Index kv)> value = [](double s, Index, Index, Index,
                                                                                      Index) { return s; };
  std::function<double(double score, Index b, Index h, Index q, Index kv)> slope = [](double, Index, Index, Index,
                                                                                      Index) { return 1.0; };
  /// The sink of a head; empty without one.
  std::function<double(Index h)> sink = {};
  /// The dropout factor of a weight in the output; empty without dropout.
  std::function<double(Index b, Index h, Index q, Index kv)> share = {};
  std::function<bool(Index b, Index h, Index q, Index kv)> keep = [](Index, Index, Index, Index) { return true; };
};

/// Dense tensors in the order batch, heads, sequence, dim.
struct DenseTensors {
  std::vector<double> q, k, v, d_o;
};

struct DenseResult {
  std::vector<double> o, lse, dq, dk, dv;
  std::vector<double> d_sink;  ///< one for each head, where there is a sink
  std::vector<double> max_logit;
};

/// Attention from the formula in float64, with whole score matrices and no program: stands apart from everything in
/// src.
DenseResult dense_attention(const AttentionProblem& problem, const DenseTensors& tensors,
                            const DenseModifier& modifier);

/// Reads a buffer of a problem's tensor into dense float64.
std::vector<double> to_dense(const std::vector<std::byte>& bytes, DType dtype, const std::vector<std::int64_t>& shape,
                             const std::vector<std::int64_t>& strides);

}  // namespace scoremod::test
