#pragma once

#include <memory>
#include <vector>

#include "backend/kernels/loaded_modules.hpp"
#include "backend/kernels/operand_source.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// Plans of one direction's kernels on the device that is current; `modules` are of attention_modules(), or of
/// attention_source(), for this problem, direction and shape, at any sizes. They write o and lse, or
/// dq, dk and dv; wait for nothing and allocate nothing, may be captured into a CUDA graph, and give the same bits each
/// time. Throw Error(kEnvironment) with the driver's text. `targets` are the backward's attention_source() was given:
/// it writes those of their gradients that a call asks for, too.
std::unique_ptr<ForwardPlan> forward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                          std::shared_ptr<LoadedModules> modules);
std::unique_ptr<BackwardPlan> backward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                            std::shared_ptr<LoadedModules> modules,
                                            const std::vector<OperandTarget>& targets = {});

/// Likewise of operand_source(): writes the targets' gradients alone, those that a call asks for.
std::unique_ptr<BackwardPlan> operand_plan(const compiler::CompiledProblem& problem,
                                           const std::vector<OperandTarget>& targets, const TileShape& shape,
                                           std::shared_ptr<LoadedModules> modules);

}  // namespace scoremod::backend::kernels
