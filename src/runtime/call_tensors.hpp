#pragma once

#include <vector>

#include "scoremod/attention.hpp"

#include "backend/backend.hpp"

namespace scoremod::runtime {

/// A call's checked arguments: a plan's tensors, with the pointer lists that they refer to.
struct ForwardCall {
  std::vector<const void*> operands;
  backend::ForwardTensors tensors;
  backend::CallParameters parameters;
};

struct BackwardCall {
  std::vector<const void*> operands;
  std::vector<void*> d_operands;
  backend::BackwardTensors tensors;
  backend::CallParameters parameters;
};

/// Check every argument of a call, the workspace included, before anything is read or written. Throw
/// Error(kInvalidArgument).
ForwardCall check_call(const AttentionProblem& problem, const ForwardArgs& args, Buffer workspace,
                       std::size_t workspace_bytes, const backend::MemorySpace& memory);
BackwardCall check_call(const AttentionProblem& problem, const BackwardArgs& args, Buffer workspace,
                        std::size_t workspace_bytes, const backend::MemorySpace& memory);

}  // namespace scoremod::runtime
