#include "planner/prepare.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"

#include "compiler/pipeline.hpp"
#include "planner/plan_problem.hpp"
#include "support/refusing_recipe.hpp"
#include "support/scratch_folder.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::planner {
namespace {

compiler::CompiledProblem problem_of(std::int64_t dim, bool operand_gradient) {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = 64;
  problem.dim_qk = problem.dim_v = dim;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  if (operand_gradient) {
    problem.program = Program::parse("operand slope: f32 [h]\nvalue = score * slope");
    problem.operands = {{"slope", DType::kF32, {1}, {}}};
  }
  return compiler::compile(problem);
}

/// A problem as an engine alone prepares it on the host, with a workspace of 100 bytes at most. The answers name the
/// engine, which outlives them.
Prepared prepared_by(const backend::Backend& engine, const compiler::CompiledProblem& problem, Level level) {
  const std::vector<const backend::Backend*> engines{&engine};
  const backend::Target target{backend::host_memory().describe(), 0, 0, true};
  Request request;
  request.level = level;
  request.target = &target;
  request.backends = engines;
  request.max_workspace = 100;
  return prepare(problem, request);
}

std::vector<std::string> ids(const std::vector<UnsupportedReason>& reasons) {
  std::vector<std::string> all;
  for (const UnsupportedReason& reason : reasons)
    all.push_back(reason.id + (reason.direction.empty() ? "" : " " + reason.direction));
  return all;
}

/// A host backend whose backward needs more memory than its forward.
class HungryBackward final : public test::WillingEngine {
 public:
  const char* name() const override { return "hungry"; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    backend::Candidate candidate;
    candidate.task = task;
    candidate.workspace_bytes = task.direction == backend::Direction::kBackward ? 1000 : 10;
    return {std::move(candidate)};
  }
};

TEST(Prepare, ABackwardOverTheWorkspaceLimitLeavesTheForwardAlone) {
  const HungryBackward engine;
  AttentionProblem problem = problem_of(16, false).problem;
  problem.deterministic = true;
  const Prepared prepared = prepared_by(engine, compiler::compile(problem), Level::kStatic);
  EXPECT_TRUE(prepared.runs_forward());
  EXPECT_FALSE(prepared.runs_backward());
  EXPECT_EQ(ids(prepared.reasons()), std::vector<std::string>{"workspace_limit backward"});
}

/// A host backend whose backward takes 2 ms, and operand gradients 1 ms more apart, or so many in all beside it.
class Priced final : public test::WillingEngine {
 public:
  explicit Priced(double fused) : fused_(fused) {}
  const char* name() const override { return "priced"; }
  bool offers(const backend::Task&) const override { return true; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    backend::Candidate candidate;
    candidate.task = task;
    const double apart = task.attention ? 2.0 : 1.0;
    candidate.predicted.milliseconds = task.attention && !task.operand_gradients.empty() ? fused_ : apart;
    return {std::move(candidate)};
  }
  std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const compiler::CompiledProblem&,
                                                                  const backend::Target&,
                                                                  std::vector<std::string>&) const override {
    return {{0}};
  }

 private:
  double fused_;
};

TEST(Prepare, FusesOperandGradientsThatTakeNoLongerThanAPassOfTheirOwn) {
  const Priced as_fast(3.0), slower(3.5);
  EXPECT_TRUE(prepared_by(as_fast, problem_of(16, true), Level::kStatic).fused_backward.has_value());
  const Prepared apart = prepared_by(slower, problem_of(16, true), Level::kStatic);
  EXPECT_FALSE(apart.fused_backward.has_value());
  ASSERT_EQ(apart.notes.size(), 1u);
  EXPECT_NE(apart.notes.front().find("predicted 3.5 ms fused, and 3 ms in a pass of its own"), std::string::npos)
      << apart.notes.front();
}

/// Builds nothing before all builds that are waited for have begun, or so long that they never will.
class MeetingRecipe final : public backend::Recipe {
 public:
  explicit MeetingRecipe(std::latch& meeting) : meeting_(meeting) {}
  backend::BuildResult build(const backend::Target&) const override {
    meeting_.count_down();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!meeting_.try_wait() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return {nullptr, meeting_.try_wait() ? "met" : "alone"};
  }
  std::shared_ptr<const backend::Artifact> load(std::span<const std::byte>, const backend::Target&) const override {
    return nullptr;
  }
  backend::ExecutablePlan plan(std::shared_ptr<const backend::Artifact>, const backend::PlanOptions&) const override {
    return {};
  }

 private:
  std::latch& meeting_;
};

/// A host backend that computes operand gradients in a pass of their own.
class PassOfItsOwn : public test::WillingEngine {
 public:
  const char* name() const override { return "apart"; }
  bool offers(const backend::Task&) const override { return true; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    backend::Candidate candidate;
    candidate.task = task;
    candidate.recipe = std::make_shared<MeetingRecipe>(meeting);
    return {std::move(candidate)};
  }

  mutable std::latch meeting{3};
};

/// And that writes them beside dq, dk and dv, too.
class Fused final : public PassOfItsOwn {
 public:
  std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const compiler::CompiledProblem&,
                                                                  const backend::Target&,
                                                                  std::vector<std::string>&) const override {
    return {{0}};
  }
};

/// That counts how often it is asked for candidates of the whole backward.
class Counting final : public PassOfItsOwn {
 public:
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem& problem, const backend::Task& task,
                                             const backend::Target& target,
                                             std::vector<UnsupportedReason>& reasons) const override {
    if (task == backend::Task{backend::Direction::kBackward, true, {}}) ++asked;
    return PassOfItsOwn::candidates(problem, task, target, reasons);
  }

  mutable std::atomic<int> asked{0};
};

/// The result of the forward's build.
std::string found_by_forward(const PassOfItsOwn& engine) {
  const Prepared prepared = prepared_by(engine, problem_of(16, true), Level::kVerified);
  return prepared.forward.considered.at(0).refusal->text;
}

TEST(Prepare, PlansThePassOfOperandsBesideBothDirections) {
  EXPECT_EQ(found_by_forward(PassOfItsOwn()), "apart refused it: met");
}

TEST(Prepare, PlansAFusedBackwardBesideBothDirections) {
  EXPECT_EQ(found_by_forward(Fused()), "apart refused it: met");
}

TEST(Prepare, AsksOnceWhatToExpectOfTheBackward) {
  const test::ScratchFolder folder;  // without a store nothing is asked for the processes that build beside
  set_plan_store_directory(folder.path().string());
  const Counting engine;
  found_by_forward(engine);
  set_plan_store_directory("");
  EXPECT_EQ(engine.asked, 2) << "once to expect, and once to plan";
}

/// A host backend whose backward writes all operand gradients itself, or that has none. Counts how often it is asked
/// for a pass of operands.
class WholeBackward final : public test::WillingEngine {
 public:
  explicit WholeBackward(bool has_backward) : has_backward_(has_backward) {}
  const char* name() const override { return "whole"; }
  bool offers(const backend::Task&) const override { return true; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    if (!task.operand_gradients.empty()) ++asked_for_operands;
    if (task.direction == backend::Direction::kBackward && !has_backward_) return {};
    backend::Candidate candidate;
    candidate.task = task;
    candidate.any_operand_gradients = true;
    candidate.recipe = std::make_shared<test::RefusingRecipe>();
    return {std::move(candidate)};
  }

  mutable std::atomic<int> asked_for_operands{0};

 private:
  bool has_backward_;
};

TEST(Prepare, PlansNothingBesideABackwardThatWritesAllOperandGradientsOrIsNone) {
  for (const bool has_backward : {true, false}) {
    const WholeBackward engine(has_backward);
    prepared_by(engine, problem_of(16, true), Level::kVerified);
    EXPECT_EQ(engine.asked_for_operands, 0);
  }
}

TEST(Prepare, PlansBothDirectionsOnTheHost) {
  const auto planned = plan_problem(problem_of(16, true), {}, Level::kVerified, select({}));
  EXPECT_TRUE(planned.prepared.runs_forward());
  EXPECT_TRUE(planned.prepared.runs_backward());
  EXPECT_TRUE(planned.prepared.reasons().empty());
  ASSERT_TRUE(planned.prepared.backward_plan);
  EXPECT_FALSE(planned.prepared.operand_gradients) << "the host's plans write whichever are asked for";
}

/// As cuDNN's backend is on a machine without a device.
TEST(Prepare, SaysWhatHoldsForBothDirectionsOnce) {
  for (const backend::Backend* engine : backend::backends()) {
    if (engine->memory().kind() == MemoryKind::kHost || engine->is_companion()) continue;
    if (plan_problem(problem_of(64, false), {}, Level::kStatic, {{engine}, MemoryKind::kCuda, true, ""}).target) {
      GTEST_SKIP() << "there is a device here";
    }
    const auto planned =
        plan_problem(problem_of(100, true), {}, Level::kVerified, {{engine}, MemoryKind::kCuda, true, ""});
    const std::vector<std::string> found = ids(planned.prepared.reasons());
    EXPECT_EQ(std::ranges::count(found, "no_device"), 1);
    for (const std::string& id : found) EXPECT_EQ(id.find("operand_gradient"), std::string::npos) << id;
  }
}

}  // namespace
}  // namespace scoremod::planner
