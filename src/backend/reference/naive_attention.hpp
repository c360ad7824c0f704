#pragma once

#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.hpp"

namespace scoremod::backend::reference {

/// Checked pointers to a call's inputs; operands are in the order of the declarations. Only the backward needs d_o.
/// Only that of a problem with given deltas needs o and lse; others make their own.
struct InputTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* d_o = nullptr;
  std::span<const void* const> operands;
  const void* o = nullptr;
  const float* lse = nullptr;
};

/// Called now and then with the part that is done, in (0, 1].
using Progress = std::function<void(double)>;

/// Calls body(b, h, i) for every query row, and progress now and then.
template <class Body>
void for_each_row(const AttentionProblem& problem, const Progress& progress, const Body& body) {
  const std::int64_t heads = problem.batch * problem.heads_q;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t i = 0; i < problem.seq_q; ++i) {
      body(head / problem.heads_q, head % problem.heads_q, i);
      const bool report = i % 64 == 63 || i + 1 == problem.seq_q;
      const auto done = static_cast<double>(head * problem.seq_q + i + 1);
      if (progress && report) progress(done / static_cast<double>(heads * problem.seq_q));
    }
  }
}

/// Dense tensors, even if memory is varlen or paged: o [batch, heads_q, seq_q, dim_v], lse and max_logit [batch,
/// heads_q, seq_q]. o is as stored, times 'scale_o' if it is FP8; amax_o has one element, of the unscaled o.
template <class Real>
struct ForwardResult {
  std::vector<Real> o, lse, max_logit, amax_o;
};

/// The larger of a magnitude and that of a number; NaN if one of them is.
template <class Real>
Real larger_magnitude(Real largest, Real number) {
  const Real magnitude = std::abs(number);
  return magnitude > largest || std::isnan(magnitude) ? magnitude : largest;
}

/// The largest magnitude of all numbers, in the form of the results.
template <class Real>
std::vector<Real> largest_magnitude(const std::vector<Real>& numbers) {
  Real largest = 0;
  for (const Real number : numbers) largest = larger_magnitude(largest, number);
  return {largest};
}

/// Dense tensors, in the order batch, heads, sequence, dim. Operand gradients are in the order of the declarations,
/// each dense in the operand's own dimensions, empty for operands that are not floating. The largest magnitudes are of
/// gradients that are not yet rounded, one element each.
template <class Real>
struct BackwardResult {
  std::vector<Real> dq, dk, dv;
  std::vector<std::vector<Real>> d_operands;
  std::vector<Real> amax_dq, amax_dk, amax_dv;
};

/// Signed errors that are added to an evaluation on purpose, as large as another implementation's may be.
struct Moves {
  double score = 0;     ///< each score, relative to the magnitudes of its products
  double function = 0;  ///< as Interpreter::move_functions(); and the LSE, by its own exponentials and logarithm
  /// The gradient of each weight moves by this, and its row's delta the other way. If one key has all the weight, the
  /// two should cancel, and only their errors are left.
  double difference = 0;
  double smallest_weight = 0;  ///< weights below are 0, as on a device that flushes subnormals
  /// Weights are rounded as coarsely as a forward may, for o alone; the rest of it has no effect.
  ForwardRounding forward = {};
};

/// Attention as its definition reads, one row of scores at a time, everything computed anew in Real.
///
/// Real = double is the oracle: nothing is rounded on the way. Real = float is a plain implementation in the problem's
/// own dtype, with sums in float32 in index order. The weights, the output and the gradient of the scores are rounded
/// to the dtype, as if stored between matrix products. With FP8 q, k and v they are rounded to bf16, and so are o, d_o
/// and the gradients, in units of the stored numbers. Its distance from the oracle says how exact another
/// implementation can be expected to be.
///
/// A key without influence (masked, or with a modified score of -inf) is skipped altogether, so that its contents
/// cannot matter.
template <class Real>
ForwardResult<Real> forward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                            const CallParameters& parameters, const Progress& progress = {}, const Moves& moves = {});
template <class Real>
BackwardResult<Real> backward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                              const CallParameters& parameters, const Progress& progress = {}, const Moves& moves = {});

extern template ForwardResult<float> forward(const compiler::CompiledProblem&, const InputTensors&,
                                             const CallParameters&, const Progress&, const Moves&);
extern template ForwardResult<double> forward(const compiler::CompiledProblem&, const InputTensors&,
                                              const CallParameters&, const Progress&, const Moves&);
extern template BackwardResult<float> backward(const compiler::CompiledProblem&, const InputTensors&,
                                               const CallParameters&, const Progress&, const Moves&);
extern template BackwardResult<double> backward(const compiler::CompiledProblem&, const InputTensors&,
                                                const CallParameters&, const Progress&, const Moves&);

}  // namespace scoremod::backend::reference
