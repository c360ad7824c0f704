#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "verification/moved_evaluation.hpp"
#include "verification/output_error.hpp"
#include "verification/trial.hpp"

namespace scoremod::verification {

/// Runs a plan of a trial's problem once on the current device of `memory`, on the trial's inputs and into outputs
/// filled with NaN. Compares o and lse with the float64 oracle's, over all rows and over each class of rows
/// (row_classes()). The tolerance comes from the plain evaluation. An output that is wrong by it is judged again by
/// farthest_forward(), with `errors` of the plan's backend. Throws what the plan throws, and Error(kEnvironment) if the
/// device fails.
std::vector<OutputError> verify_forward(Trial& trial, const backend::ForwardPlan& plan,
                                        const backend::MemorySpace& memory, const OperationErrors& errors = {});

/// Verifies a backward, which gets the oracle's own o and lse, so that errors of a forward don't show. It checks dq, dk
/// and dv, and then the gradients of the operands with these numbers, the only ones that the call asks for. With
/// `attention` false the plan writes these alone. The trial must have a derivative.
std::vector<OutputError> verify_backward(Trial& trial, const backend::BackwardPlan& plan,
                                         const backend::MemorySpace& memory,
                                         std::span<const std::uint32_t> operand_gradients = {}, bool attention = true,
                                         const OperationErrors& errors = {});

}  // namespace scoremod::verification
