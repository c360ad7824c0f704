#include "explain/task_candidates.hpp"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::explaining {
namespace {

/// A host backend that only knows its plans' times.
class TimedEngine : public test::WillingEngine {
 public:
  TimedEngine(const char* name, double milliseconds, std::optional<std::size_t> workspace = {})
      : name_(name), milliseconds_(milliseconds), workspace_(workspace) {}
  const char* name() const override { return name_; }
  bool offers(const backend::Task&) const override { return true; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    backend::Candidate candidate;
    candidate.task = task;
    candidate.structural_key = Bytes(1);
    candidate.predicted = {milliseconds_, "made up"};
    candidate.workspace_bytes = workspace_;
    return {std::move(candidate)};
  }

 private:
  const char* name_;
  double milliseconds_;
  std::optional<std::size_t> workspace_;
};

/// And that writes the first operand's gradient beside dq, dk and dv, in the time of the rest.
class FusedEngine final : public TimedEngine {
 public:
  using TimedEngine::TimedEngine;
  std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const compiler::CompiledProblem&,
                                                                  const backend::Target&,
                                                                  std::vector<std::string>& notes) const override {
    notes.emplace_back("why no other");
    return {{0}};
  }
};

const compiler::CompiledProblem& slopes() {
  static const compiler::CompiledProblem compiled = [] {
    AttentionProblem problem;
    problem.backward = true;
    problem.program = Program::parse("operand slope: f32 [h]\nvalue = score * slope");
    problem.operands = {{"slope", DType::kF32, {1}, {}}};
    return compiler::compile(problem);
  }();
  return compiled;
}

planner::PlannedProblem planned_with(std::vector<const backend::Backend*> engines, bool in_order = false) {
  planner::PlannedProblem planned;
  planned.selection = {std::move(engines), MemoryKind::kHost, in_order, "a test"};
  planned.target = backend::Target{backend::host_memory().describe(), 0, 0, true};
  planner::Request request;
  request.level = planner::Level::kStatic;
  request.target = &*planned.target;
  request.backends = planned.selection.backends;
  request.in_order = in_order;
  request.max_workspace = 100;
  planned.prepared = planner::prepare(slopes(), request);
  return planned;
}

std::vector<std::string> chosen_of(const PatternExplanation& task) {
  std::vector<std::string> names;
  for (const PatternCandidateExplanation& candidate : task.candidates)
    if (candidate.chosen) names.push_back(candidate.backend);
  return names;
}

using Names = std::vector<std::string>;

TEST(TaskCandidates, AreOfAllEnginesAndOneIsChosen) {
  const TimedEngine slow("slow", 2), fast("fast", 1);
  const auto tasks = task_candidates(planned_with({&slow, &fast}), slopes().problem);
  ASSERT_FALSE(tasks.empty());
  for (const PatternExplanation& task : tasks) {
    EXPECT_EQ(task.candidates.size(), 2U);
    EXPECT_EQ(chosen_of(task), Names{"fast"});
  }
  for (const PatternExplanation& task : task_candidates(planned_with({&slow, &fast}, true), slopes().problem))
    EXPECT_EQ(chosen_of(task), Names{"slow"});
}

TEST(TaskCandidates, SayWhatABackwardWrites) {
  const TimedEngine apart("apart", 1);
  auto tasks = task_candidates(planned_with({&apart}), slopes().problem);
  ASSERT_EQ(tasks.size(), 3U);
  EXPECT_EQ(tasks[0].gradients, Names{});
  EXPECT_EQ(tasks[1].gradients, (Names{"dq", "dk", "dv"}));
  EXPECT_EQ(tasks[2].gradients, Names{"d_slope"});

  const FusedEngine fused("fused", 1);
  tasks = task_candidates(planned_with({&fused}), slopes().problem);
  ASSERT_EQ(tasks.size(), 3U);
  EXPECT_EQ(tasks[1].gradients, (Names{"dq", "dk", "dv"}));
  EXPECT_EQ(tasks[1].reasons, Names{"why no other"});
  EXPECT_EQ(tasks[2].gradients, (Names{"dq", "dk", "dv", "d_slope"}));
}

TEST(WhyNotChosen, NamesWhatDecided) {
  const TimedEngine slow("slow", 2), fast("fast", 1), large("large", 0.5, 1000);
  const auto why = [](const planner::PlannedProblem& planned, const backend::Backend& engine) {
    const std::string text = why_not_chosen(planned, engine);
    return text.substr(0, text.find(';'));
  };
  const auto by_time = planned_with({&slow, &fast, &large});
  EXPECT_EQ(why(by_time, fast), "");
  EXPECT_EQ(why(by_time, slow), "forward predicted to take 2 ms, and fast 1 ms");
  EXPECT_EQ(why(by_time, large).find("forward refused: needs a workspace of 1000 bytes"), 0U) << why(by_time, large);
  EXPECT_EQ(why(planned_with({&slow, &fast}, true), fast), "forward after slow in the order of a test");
  EXPECT_EQ(why(planned_with({&slow}), fast), "left out by a test");
  auto elsewhere = planned_with({&slow});
  elsewhere.selection.memory = MemoryKind::kCuda;
  EXPECT_EQ(why(elsewhere, slow), "its tensors lie in host memory, and the calls' in cuda memory");
}

TEST(WhyNotChosen, SpeaksOfTheFastestThatWasMeasured) {
  const TimedEngine one("one", 1), other("other", 2);
  auto planned = planned_with({&one, &other});
  auto& considered = planned.prepared.forward.considered;
  considered.push_back(considered.back());
  for (std::size_t i = 0; i < considered.size(); ++i)
    considered[i].measured_milliseconds = 3.0 - static_cast<double>(i) / 2;
  EXPECT_EQ(why_not_chosen(planned, other).find("forward measured to take 2 ms, and one 3 ms"), 0U);
}

}  // namespace
}  // namespace scoremod::explaining
