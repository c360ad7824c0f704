#pragma once

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>

#include "backend/backend.hpp"
#include "backend/cpu/forward_worker.hpp"

namespace scoremod::backend::cpu {

/// Whether an LSE is so large that its rounding to float32 shows in the weights. From kMaxReadLse on, value - LSE is
/// exact for every key whose weight float32 holds (exp(-88) and more), because both lie within a factor of two. The
/// remainder alone then makes the weight right.
inline bool leaves_remainder(float lse) { return std::abs(lse) >= kMaxReadLse && std::isfinite(lse); }

/// The remainder to subtract beside `lse` from a row's values, given their largest and sum of exp(value - largest). It
/// is 0 if none is due, or if the LSE is not the rounded one of these values. A row may have the LSE of more keys than
/// it has here, as in ring attention.
float lse_remainder(float lse, float largest, float sum);

/// Makes the terms of a backward's rows that its tensors do not hold exactly, by another forward before it.
///
/// A row whose scores are all -1e9 has an LSE in which the logarithm of the number of its keys is lost. The rounding of
/// a 16-bit O shifts delta for all keys of the row alike, and operand gradients add that up. (Where rows and keys are
/// many and no operand has a gradient, the pass is not worth that.)
class RowTerms {
 public:
  /// All must outlive this.
  RowTerms(const compiler::CompiledProblem& compiled, const masks::TileMaskAnalyzer& analyzer,
           const AttentionShape& shape, int threads);

  /// Bytes of scratch that one thread takes.
  std::size_t worker_bytes() const { return worker_bytes_; }

  /// Whether a delta of the problem's O is off by its rounding, and may be made of weights instead.
  bool rounds_deltas() const;

  /// Writes this call's terms into `room` and returns them. Each thread takes worker_bytes() at a multiple of
  /// `worker_stride` in the workspace.
  RowTermArrays make(const BackwardTensors& tensors, const CallParameters& parameters,
                     std::span<const OperandView> operands, std::span<std::byte> workspace, std::size_t worker_stride,
                     const RowTermArrays& room) const;

 private:
  ForwardCall make_call(const ForwardTensors& tensors, const CallParameters& parameters,
                        std::span<const OperandView> operands, const RowTermCall& terms) const;
  bool is_worth_deltas(const BackwardTensors& tensors) const;

  const compiler::CompiledProblem& compiled_;
  const masks::TileMaskAnalyzer& analyzer_;
  const AttentionShape& shape_;
  const std::shared_ptr<const VectorProgram> program_;
  const int threads_;
  std::size_t worker_bytes_ = 0;
};

}  // namespace scoremod::backend::cpu
