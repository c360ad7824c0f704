#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/backend.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"
#include "device/attention_kernel_calls.hpp"

// The part of tests of operand gradients that runs the attention kernels on a device.

namespace scoremod::backend::kernels {

struct OperandGradientCase {
  const char* name;
  const char* program;
  Sizes sizes = {2, 4, 2, 333, 290, 64};
  DType dtype = DType::kBF16;
  Sink sink = Sink::kNone;
  float dropout = 0;
  std::vector<std::int64_t> table = {};  ///< the shape of each table; [41, heads_q] where empty
  bool ragged = false;                   ///< two fifths of the room for tokens are empty
};

AttentionProblem problem_of(const OperandGradientCase& test);

/// Compares the forward and the backward with the oracle. `gradients` writes operand gradients, twice in each call,
/// with the same bits. Without `attention` it writes all outputs. Records it as `what`.
void expect_right_and_same_bits(const OperandGradientCase& test, const compiler::CompiledProblem& compiled,
                                const Backend& backend, const ForwardPlan& forward, const BackwardPlan* attention,
                                const BackwardPlan& gradients, const std::string& what);

}  // namespace scoremod::backend::kernels
