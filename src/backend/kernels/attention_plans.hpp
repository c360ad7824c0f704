#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/kernels/operand_source.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// Plans of one direction's kernels on the device that is current; `modules` are what cuda::compile_kernels() made
/// of attention_modules(), or of attention_source(), for this problem, direction and shape. They write o and lse, or
/// dq, dk and dv; wait for nothing and allocate nothing, may be captured into a CUDA graph, and give the same bits each
/// time. Throw Error(kEnvironment) with the driver's text. `targets` are the backward's attention_source() was given:
/// it writes those of their gradients that a call asks for, too.
std::unique_ptr<ForwardPlan> forward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                          const std::vector<std::string>& modules);
std::unique_ptr<BackwardPlan> backward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                            const std::vector<std::string>& modules,
                                            const std::vector<OperandTarget>& targets = {});

/// Likewise of operand_source(): writes the targets' gradients alone, those that a call asks for.
std::unique_ptr<BackwardPlan> operand_plan(const compiler::CompiledProblem& problem,
                                           const std::vector<OperandTarget>& targets, const TileShape& shape,
                                           const std::vector<std::string>& modules);

}  // namespace scoremod::backend::kernels
