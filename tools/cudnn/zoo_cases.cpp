#include "tools/cudnn/zoo_cases.hpp"

#include <array>
#include <span>

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"

namespace scoremod::explorer {
namespace {

/// A value for a parameter that has no default, small enough to matter at the explorer's lengths.
zoo::Value value_for(zoo::ParameterType type) {
  switch (type) {
    case zoo::ParameterType::kInt: return std::int64_t{13};
    case zoo::ParameterType::kFloat: return 5.0;
    case zoo::ParameterType::kBool: return true;
    case zoo::ParameterType::kName: return std::string("x");
    case zoo::ParameterType::kAxes: return std::string("h, q_idx, kv_idx");
  }
  return std::int64_t{1};
}

zoo::Modifier make(const zoo::Entry& entry, const zoo::Sizes& sizes) {
  zoo::Parameters parameters;
  for (const zoo::Parameter& parameter : entry.parameters) {
    if (!parameter.default_value) parameters[parameter.name] = value_for(parameter.type);
  }
  return zoo::make(entry.name, parameters, sizes);
}

PatternCase case_of(const std::string& name, std::span<const zoo::Modifier> modifiers) {
  PatternCase made;
  made.name = "zoo." + name;
  made.program = zoo::combine(modifiers).program.to_string();
  return made;
}

}  // namespace

std::vector<PatternCase> zoo_cases() {
  const Setting& base = settings().front();
  const zoo::Sizes sizes{base.batch, base.heads_q, base.seq_q, base.seq_kv};
  const zoo::Modifier causal = zoo::make("causal", {}, sizes);
  std::vector<PatternCase> cases;
  for (const zoo::Entry& entry : zoo::entries()) {
    const zoo::Modifier modifier = make(entry, sizes);
    cases.push_back(case_of(entry.name, std::array{modifier}));
    if (entry.kind == zoo::Kind::kMaskMod) continue;
    cases.push_back(case_of(entry.name + "+causal", std::array{modifier, causal}));
  }
  return cases;
}

}  // namespace scoremod::explorer
