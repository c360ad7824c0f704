#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "backend/cudnn/lowering/lower.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

struct Lengths {
  std::int64_t q = 256, kv = 256;
};

/// A program's problem of batch 2, 4 heads and bf16, with a backward.
compiler::CompiledProblem compiled(const Program& program, Lengths lengths = {});

/// Allows every pattern.
bool everything(std::string_view pattern);
/// The patterns that were right on an H200 with cuDNN 9.19.0.
PatternFilter right_on_h200(bool backward, RowClass rows = RowClass::kManyRows);
/// All patterns but these.
PatternFilter without(std::initializer_list<const char*> patterns);

LoweringResult lowered(const std::string& program, bool backward = false, Lengths lengths = {},
                       PatternFilter allowed = everything, int node_budget = 0);
/// The graph as text, or the first reason why there is none.
std::string text_of(const LoweringResult& result);

}  // namespace scoremod::backend::cudnn
