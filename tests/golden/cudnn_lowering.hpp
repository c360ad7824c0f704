#pragma once

#include <optional>
#include <string_view>

#include "backend/cudnn/lowering/lower.hpp"
#include "backend/cudnn/lowerings.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::test {

/// The lowering of a direction by the patterns that sm_90 and cuDNN 9.19 have right; nothing where they have none.
inline std::optional<backend::cudnn::LoweredModifier> lowered_for_hopper(const compiler::CompiledProblem& compiled,
                                                                         backend::Direction direction) {
  namespace cudnn = backend::cudnn;
  const auto table = cudnn::shipped_pattern_table("sm_90", "9.19.0", cudnn::row_class(compiled.problem));
  cudnn::LoweringOptions options;
  options.backward = direction == backend::Direction::kBackward;
  options.allowed = [&](std::string_view pattern) {
    return table.find(pattern, direction) == cudnn::PatternVerdict::kRight;
  };
  return cudnn::lower(compiled, options).lowered;
}

}  // namespace scoremod::test
