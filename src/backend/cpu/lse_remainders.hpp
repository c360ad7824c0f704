#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "backend/backend.hpp"
#include "backend/cpu/forward_worker.hpp"

namespace scoremod::backend::cpu {

/// Whether an LSE is so large that what its rounding to float32 leaves out shows in the weights. From kMaxReadLse
/// on, value - LSE is exact for every key whose weight float32 holds (exp(-88) and more), because the two lie within a
/// factor of two: the remainder alone makes the weight right.
inline bool leaves_remainder(float lse) { return std::abs(lse) >= kMaxReadLse && std::isfinite(lse); }

/// What to subtract beside `lse` from a row's values, given their largest and sum of exp(value - largest). 0 where no
/// remainder is due, and where the LSE is not the rounded one of these values: a row may be given the LSE of more keys
/// than it has here, as in a ring of devices.
float lse_remainder(float lse, float largest, float sum);

/// Makes the remainders of a call's rows, in a pass over the scores of the rows that have one. A row whose scores are
/// all -1e9, say, has an LSE in which the logarithm of the number of its keys is lost.
class LseRemainders {
 public:
  /// All must outlive this.
  LseRemainders(const compiler::CompiledProblem& compiled, const masks::TileMaskAnalyzer& analyzer,
                const AttentionShape& shape, int threads);

  /// Bytes of scratch that one thread takes.
  std::size_t worker_bytes() const { return worker_bytes_; }

  /// Writes a remainder for each row of the LSE, [batch, heads_q, seq_q]. Each thread takes worker_bytes() at a
  /// multiple of `worker_stride` in the workspace. Returns whether there is any: nothing was written otherwise.
  bool make(const BackwardTensors& tensors, const CallParameters& parameters, std::span<const OperandView> operands,
            std::span<std::byte> workspace, std::size_t worker_stride, float* remainders) const;

 private:
  ForwardCall make_call(const ForwardTensors& tensors, const CallParameters& parameters,
                        std::span<const OperandView> operands, const float* lse, float* remainders) const;

  const compiler::CompiledProblem& compiled_;
  const masks::TileMaskAnalyzer& analyzer_;
  const AttentionShape& shape_;
  const VectorProgram program_;
  const int threads_;
  std::size_t worker_bytes_ = 0;
};

}  // namespace scoremod::backend::cpu
