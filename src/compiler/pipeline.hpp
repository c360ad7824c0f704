#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compiler/compiled_problem.hpp"

namespace scoremod::compiler {

/// A report of one step: its name, the program after it, and how long it took.
struct StepReport {
  std::string name;
  std::string program;
  double microseconds = 0;
};

struct PipelineOptions {
  std::vector<std::string> disabled;               ///< steps to leave out, by name; unknown names are refused
  std::function<void(const StepReport&)> on_step;  ///< called after each step when set
};

/// The names of the steps that may be disabled, in order.
std::vector<std::string> step_names();

/// Validates the problem and runs the compiler: see pipeline.cpp, which is the whole of it on one page.
CompiledProblem compile(const AttentionProblem& problem, const PipelineOptions& options = {});

}  // namespace scoremod::compiler
