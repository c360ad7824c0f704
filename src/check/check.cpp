#include "scoremod/check.hpp"

#include <algorithm>
#include <memory>

#include "scoremod/open_attention.hpp"

#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "problem/open_sizes.hpp"

namespace scoremod {

bool CheckReport::passed() const {
  const auto good = [](const OutputCheck& output) { return output.passed(); };
  return memory_problems.empty() && std::all_of(outputs.begin(), outputs.end(), good);
}

namespace {

std::shared_ptr<const Attention> attention_of(const AttentionProblem& problem, const CheckOptions& options) {
  if (!options.open_sizes) return std::make_shared<const Attention>(Attention::compile(problem, options.compile));
  const auto [open, sizes] = problem::with_all_sizes_open(problem);
  return OpenAttention::compile(open, options.compile).at(sizes);
}

}  // namespace

CheckReport check(const AttentionProblem& problem, const CheckOptions& options) {
  const auto attention = attention_of(problem, options);
  const ProblemInputs inputs = options.inputs ? *options.inputs : random_inputs(problem, {options.seed, {}});
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const checking::Subject subject = checking::subject_of(*attention, compiled);
  const backend::DeviceScope current(*subject.memory, attention->device());  // which the tensors are made for
  return checking::check_subject(compiled, subject, inputs, options);
}

}  // namespace scoremod
