#pragma once

#include <cstdint>
#include <span>

#include "backend/device_rates.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cuda {

/// Milliseconds of OperandGradients for the gradients of these operands, scaled from the measured times of its kinds of
/// sums on an H200 (bench/results/operand_gradients.json). Pure.
double operand_gradients_time(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands,
                              const DeviceRates& rates);

}  // namespace scoremod::backend::cuda
