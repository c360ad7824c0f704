#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/reference/naive_attention.hpp"
#include "compiler/compiled_problem.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::checking {

/// Indices along one axis.
struct Range {
  std::int64_t begin = 0, count = 0;
};

/// A part of a problem's scores. Its heads are whole groups that share a KV head, or lie in one.
struct Box {
  Range b, h, q, kv;

  std::int64_t scores() const { return b.count * h.count * q.count * kv.count; }
};

/// Everything of a problem's.
Box whole(const AttentionProblem& problem);

/// The part of a dense tensor that belongs to a box: its shape and strides, and its begin, in elements.
struct TensorSlice {
  problem::StridedTensor tensor;
  std::int64_t begin = 0;
};
TensorSlice slice_of(const AttentionProblem& problem, problem::TensorRole role, const Box& box);
/// The slice of an operand's tensor (or its gradient's), along the axes that it varies along; a table is whole.
TensorSlice slice_of(const AttentionProblem& problem, std::uint32_t operand, const Box& box);

/// A box as a problem of its own, on the memory of the whole, for the reference's functions. The call's offsets make
/// indices global. o lies densely as [batch, heads, sequence, dim], whether they write it or are given it. Only for
/// dense tensors of 16 or 32 bits.
class ProblemSlice {
 public:
  /// `memory` is of the whole problem, which has its implied operands, and must outlive this.
  ProblemSlice(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& memory,
               const backend::CallParameters& parameters, const Box& box);
  ProblemSlice(const ProblemSlice&) = delete;
  ProblemSlice& operator=(const ProblemSlice&) = delete;

  /// Has a backward take this o, of a dtype, and LSE, both of the box's rows.
  void give(DType dtype_o, const void* o, const float* lse);

  const compiler::CompiledProblem& compiled() const { return compiled_; }
  const backend::reference::InputTensors& inputs() const { return inputs_; }
  const backend::CallParameters& parameters() const { return parameters_; }

 private:
  compiler::CompiledProblem compiled_;
  std::vector<const void*> operands_;
  backend::reference::InputTensors inputs_;
  backend::CallParameters parameters_;
};

}  // namespace scoremod::checking
