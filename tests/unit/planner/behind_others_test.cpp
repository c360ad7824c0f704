// Candidates that come behind other backends' whatever their predicted times are.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/backend.hpp"
#include "compiler/pipeline.hpp"
#include "planner/plan_task.hpp"

namespace scoremod::planner {
namespace {

/// The cpu backend under another name and with another prediction.
class Renamed final : public backend::Backend {
 public:
  Renamed(std::string name, double milliseconds, std::string behind_others)
      : name_(std::move(name)), milliseconds_(milliseconds), behind_others_(std::move(behind_others)) {}
  const char* name() const override { return name_.c_str(); }
  std::vector<UnsupportedReason> objections(const compiler::CompiledProblem& problem, const backend::Task& task,
                                            const backend::Target* target) const override {
    return cpu_.objections(problem, task, target);
  }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem& problem, const backend::Task& task,
                                             const backend::Target& target,
                                             std::vector<UnsupportedReason>& reasons) const override {
    std::vector<backend::Candidate> found = cpu_.candidates(problem, task, target, reasons);
    for (backend::Candidate& candidate : found) {
      candidate.predicted.milliseconds = milliseconds_;
      candidate.behind_others = behind_others_;
    }
    return found;
  }

 private:
  const backend::Backend& cpu_ = backend::find_backend("cpu");
  std::string name_;
  double milliseconds_;
  std::string behind_others_;
};

std::string chosen_of(const std::vector<const backend::Backend*>& engines, bool in_order) {
  AttentionProblem problem;
  problem.program = Program::parse("value = score * 1.375");
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const backend::MemorySpace& memory = backend::host_memory();
  const backend::Target target{memory.describe(), 0, 0, true};
  Request request;
  request.level = Level::kStatic;
  request.target = &target;
  request.backends = engines;
  request.in_order = in_order;
  request.max_workspace = std::size_t{1} << 30;
  verification::Trial trial(compiled);
  const backend::Task task{.direction = backend::Direction::kForward, .operand_gradients = {}};
  const TaskAnswer answer = plan_task(compiled, task, request, trial);
  return answer.chosen() == nullptr ? "" : answer.chosen()->engine->name();
}

TEST(BehindOthers, DecidesUnlessTheCallerOrdersBackends) {
  const Renamed timed("timed", 2, ""), untimed("untimed", 1, "never timed");
  EXPECT_EQ(chosen_of({&untimed, &timed}, false), "timed");
  EXPECT_EQ(chosen_of({&untimed, &timed}, true), "untimed");
  EXPECT_EQ(chosen_of({&untimed}, false), "untimed");
}

}  // namespace
}  // namespace scoremod::planner
