#include "conformance/zoo_case.hpp"

#include "scoremod/zoo.hpp"

namespace scoremod::test {
namespace {

/// For what has no default, or a default that is too large to matter in a test.
zoo::Parameters parameters_of(const std::string& name) {
  using Int = std::int64_t;
  static const std::map<std::string, zoo::Parameters> kParameters{
      {"soft_cap", {{"cap", 6.0}}},
      {"relative_bias", {{"scale", 0.0625}}},
      {"t5_bias", {{"num_buckets", Int{16}}, {"max_distance", Int{40}}}},
      {"relative_table", {{"max_distance", Int{20}}}},
      {"sliding_window", {{"window", Int{9}}}},
      {"causal_sliding_window", {{"window", Int{17}}}},
      {"prefix_lm", {{"prefix", Int{11}}}},
      {"dilated_window", {{"window", Int{5}}, {"dilation", Int{3}}}},
      {"neighborhood_2d", {{"width", Int{10}}, {"radius_x", Int{2}}, {"radius_y", Int{1}}}},
      {"global_window", {{"global_tokens", Int{3}}, {"window", Int{6}}}},
  };
  const auto found = kParameters.find(name);
  return found == kParameters.end() ? zoo::Parameters{} : found->second;
}

}  // namespace

ConformanceCase zoo_case(const std::vector<std::string>& names, AttentionProblem problem, DType dtype) {
  problem.dtype = dtype;
  const zoo::Sizes sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  std::vector<zoo::Modifier> modifiers;
  for (const std::string& name : names) modifiers.push_back(zoo::make(name, parameters_of(name), sizes));
  const zoo::Combination combination = zoo::combine(modifiers);
  ConformanceCase test_case;
  problem.program = combination.program;
  for (const zoo::OperandNeed& need : combination.operands) {
    const bool floating = is_floating(need.dtype);
    problem.operands.push_back({need.name, floating ? dtype : need.dtype, need.shape, {}});
    // The default suits integers: ids along a sequence, lengths otherwise.
    if (floating) test_case.fills.push_back({need.name, {FillKind::kUniform, need.low, need.high}});
  }
  test_case.problem = std::move(problem);
  return test_case;
}

}  // namespace scoremod::test
