// The cells of the options table have trials: the small problem that stands for each has a candidate of the same
// structure. A cell without one is refused on every device (no_trial), whatever its engine computes.

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "backend/backend.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "planner/plan_task.hpp"
#include "support/option_cases.hpp"
#include "verification/trial.hpp"

namespace scoremod::planner {
namespace {

using backend::Direction;

backend::Target h200() {
  std::ifstream file(SCOREMOD_DEVICES_FOLDER "/h200.json");
  const std::string properties{std::istreambuf_iterator<char>(file), {}};
  return {backend::DeviceProperties::parse(properties), 0, 0, false};
}

/// Lists the directions of the cell whose first candidate of an engine has no trial.
std::string without_trial(const checking::CheckCase& made, const backend::Backend& engine,
                          const backend::Target& target) {
  const compiler::CompiledProblem compiled = compiler::compile(made.problem);
  verification::Trial trial(compiled);
  std::string found;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    if (direction == Direction::kBackward && !compiled.backward) continue;
    const backend::Task task{direction, true, {}};
    std::vector<UnsupportedReason> reasons;
    for (backend::Candidate& candidate : engine.candidates(compiled, task, target, reasons)) {
      Considered considered;
      considered.engine = &engine;
      considered.candidate = std::move(candidate);
      if (!trial_candidate(considered, task, target, trial))
        found += concat(" ", engine.name(), direction == Direction::kForward ? " forward" : " backward", " (",
                        considered.candidate.label, ")");
      break;
    }
  }
  if (!trial.keeps_keys()) found += " keeps no key";
  return found;
}

class OptionCandidates : public ::testing::TestWithParam<const char*> {};

TEST_P(OptionCandidates, HaveTrials) {
  if (GetParam() == std::string("cudnn") && !backend::cudnn::library().available)
    GTEST_SKIP() << backend::cudnn::library().reason;
  const backend::Backend& engine = backend::find_backend(GetParam());
  const backend::Target target = h200();
  for (const test::Option& option : test::options()) {
    for (const test::Modifier& modifier : test::modifiers())
      EXPECT_EQ(without_trial(test::option_case(option, modifier), engine, target), "")
          << option.name << ", " << modifier.title;
  }
}
INSTANTIATE_TEST_SUITE_P(Backends, OptionCandidates, ::testing::Values("cudnn", "kernels"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace scoremod::planner
