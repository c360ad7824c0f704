#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/inputs.hpp"

#include "backend/memory_space.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend {

/// The contents of outputs before a call.
enum class OutputFill {
  kNan,  ///< every byte is 0xff, NaN in every float dtype, so that an unwritten element shows
  kNone  ///< whatever was there
};

/// The tensors of calls of one direction, in a memory space. The library uses them for its own runs, to verify a plan
/// or to time it. The inputs are copies of `inputs`. A backward's o and lse are filled by `fill` too; the caller must
/// write them.
class CallMemory {
 public:
  CallMemory(const AttentionProblem& problem, Direction direction, const MemorySpace& memory,
             const ProblemInputs& inputs, OutputFill fill);

  /// Valid as long as this is.
  ForwardTensors forward() const;
  /// Gradients of these operands alone; their memory is made at the first call that asks for them.
  BackwardTensors backward(std::span<const std::uint32_t> operand_gradients);

  OwnedMemory o, lse, max_logit, amax_o;  ///< the last two are empty where the problem does not want them
  OwnedMemory dq, dk, dv;
  OwnedMemory amax_dq, amax_dk, amax_dv;  ///< empty where the problem does not want them
  std::vector<OwnedMemory> d_operands;    ///< one for each operand; empty where no call asked for it

 private:
  OwnedMemory copied(const std::vector<std::byte>& bytes) const;
  OwnedMemory unwritten(std::size_t bytes) const;

  const AttentionProblem& problem_;
  const MemorySpace& memory_;
  const OutputFill fill_;
  const OwnedMemory q_, k_, v_;
  OwnedMemory d_o_;
  std::vector<OwnedMemory> operand_memory_;
  std::vector<const void*> operands_;
  std::vector<void*> wanted_;
};

}  // namespace scoremod::backend
