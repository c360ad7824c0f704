#include <string>

#include <gtest/gtest.h>

#include "backend/direct_recipe.hpp"
#include "compiler/pipeline.hpp"
#include "planner/plan_problem.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::planner {
namespace {

/// Runs nothing.
class NothingForward final : public backend::ForwardPlan {
 public:
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const backend::ForwardTensors&, const backend::CallParameters&, std::span<std::byte>) const override {}
};

class NothingBackward final : public backend::BackwardPlan {
 public:
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const backend::BackwardTensors&, const backend::CallParameters&, std::span<std::byte>) const override {}
};

/// Gives the answers that it is told, and runs nothing.
class TalkingBackend final : public test::WillingEngine {
 public:
  explicit TalkingBackend(bool reads_lse) : reads_lse_(reads_lse) {}
  const char* name() const override { return "talking"; }
  bool backward_reads_lse() const override { return reads_lse_; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    backend::Candidate candidate;
    candidate.task = task;
    candidate.recipe = std::make_shared<backend::DirectRecipe>([](const backend::PlanOptions&) {
      return backend::ExecutablePlan{std::make_shared<NothingForward>(), std::make_shared<NothingBackward>(), ""};
    });
    return {std::move(candidate)};
  }

 private:
  const bool reads_lse_;
};

std::string notes_of(const backend::Backend& engine, const char* program, bool backward) {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = 8;
  problem.backward = backward;
  problem.program = Program::parse(program);
  std::string notes;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const auto planned =
      plan_problem(compiled, {}, Level::kVerified, {{&engine}, engine.memory().kind(), true, "the test"});
  for (const std::string& note : support_of(planned, engine, compiled).notes) notes += note + "\n";
  return notes;
}

TEST(SupportOf, NotesAFiniteMaskWhoseGradientsMayBeWrong) {
  const TalkingBackend from_lse(true), from_scores(false);
  constexpr const char* kFinite = "value = select(kv_idx <= q_idx, score, -1e9)";
  EXPECT_NE(notes_of(from_lse, kFinite, true).find("masks scores with the finite value -1e+09"), std::string::npos)
      << notes_of(from_lse, kFinite, true);
  EXPECT_EQ(notes_of(from_lse, kFinite, false), "");
  EXPECT_EQ(notes_of(from_scores, kFinite, true), "");
  EXPECT_EQ(notes_of(from_lse, "value = select(kv_idx <= q_idx, score, -inf)", true), "");
}

/// Held to their word by check(), whose band does not allow for an LSE's rounding where a backend says so.
TEST(SupportOf, TheCpuIsNotedNothing) {
  for (const char* name : {"cpu", "reference"}) {
    EXPECT_EQ(notes_of(backend::find_backend(name), "value = select(kv_idx <= q_idx, score, -1e9)", true), "") << name;
  }
}

}  // namespace
}  // namespace scoremod::planner
