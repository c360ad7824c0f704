#pragma once

#include <string>

#include "backend/kernels/mask_knowledge.hpp"
#include "backend/kernels/operand_text.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The constants of a direction's kernels, attention_settings.cuh with a problem's and a shape's in it.
std::string text_of_settings(const compiler::CompiledProblem& compiled, const TileShape& shape,
                             const MaskKnowledge& mask, const OperandText& operands);

}  // namespace scoremod::backend::kernels
