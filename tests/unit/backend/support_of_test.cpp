#include "backend/support_of.hpp"

#include <string>

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"

namespace scoremod::backend {
namespace {

/// Says what it is asked to say, and runs nothing.
class TalkingBackend final : public Backend {
 public:
  explicit TalkingBackend(bool reads_lse) : reads_lse_(reads_lse) {}
  const char* name() const override { return "talking"; }
  bool backward_reads_lse() const override { return reads_lse_; }
  Verdict support(const compiler::CompiledProblem&) const override { return {}; }
  std::unique_ptr<ForwardPlan> plan_forward(const compiler::CompiledProblem&, const PlanOptions&) const override {
    return nullptr;
  }
  std::unique_ptr<BackwardPlan> plan_backward(const compiler::CompiledProblem&, const PlanOptions&) const override {
    return nullptr;
  }

 private:
  const bool reads_lse_;
};

std::string notes_of(const Backend& backend, const char* program, bool backward) {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = 8;
  problem.backward = backward;
  problem.program = Program::parse(program);
  std::string notes;
  for (const std::string& note : support_of(backend, compiler::compile(problem)).notes) notes += note + "\n";
  return notes;
}

TEST(SupportOf, NotesAFiniteMaskWhoseGradientsMayBeWrong) {
  const TalkingBackend from_lse(true), from_scores(false);
  constexpr const char* kFinite = "value = select(kv_idx <= q_idx, score, -1e9)";
  EXPECT_NE(notes_of(from_lse, kFinite, true).find("chosen to be -1e+09"), std::string::npos)
      << notes_of(from_lse, kFinite, true);
  EXPECT_EQ(notes_of(from_lse, kFinite, false), "");
  EXPECT_EQ(notes_of(from_scores, kFinite, true), "");
  EXPECT_EQ(notes_of(from_lse, "value = select(kv_idx <= q_idx, score, -inf)", true), "");
}

/// Held to their word by check(), whose band does not allow for an LSE's rounding where a backend says so.
TEST(SupportOf, TheCpuIsNotedNothing) {
  for (const char* name : {"cpu", "reference"}) {
    EXPECT_EQ(notes_of(find_backend(name), "value = select(kv_idx <= q_idx, score, -1e9)", true), "") << name;
  }
}

}  // namespace
}  // namespace scoremod::backend
