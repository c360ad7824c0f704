#include "backend/cudnn/structural_key.hpp"

#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "scoremod/dsl.hpp"

#include "backend/cudnn/graph/attention_graph.hpp"
#include "compiler/pipeline.hpp"
#include "support/large_problem.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend::cudnn {
namespace {

using test::large_problem;

LoweredModifier lowered(const compiler::CompiledProblem& problem, bool backward = false) {
  LoweringOptions options;
  options.backward = backward;
  options.allowed = [](std::string_view) { return true; };
  LoweringResult result = lower(problem, options);
  EXPECT_TRUE(result.lowered) << (result.reasons.empty() ? "" : result.reasons[0]);
  return result.lowered ? std::move(*result.lowered) : LoweredModifier{};
}

DeviceTarget h200() {
  DeviceTarget target;
  target.architecture = "sm_90";
  target.cudnn_version = "9.19.0";
  return target;
}

std::string key_of(const AttentionProblem& problem, Direction direction = Direction::kForward) {
  const auto compiled = compiler::compile(problem);
  return canonical_text(
      structural_key(lowered(compiled, direction == Direction::kBackward), problem, direction, h200()));
}

constexpr const char* kWindow = R"(value = score * 0.5
keep = q_idx - kv_idx <= 512 & kv_idx <= q_idx)";

TEST(StructuralKey, TellsADeterministicBackwardFromAnother) {
  AttentionProblem problem = large_problem(kWindow);
  const std::string forward = key_of(problem), backward = key_of(problem, Direction::kBackward);
  problem.deterministic = true;
  EXPECT_EQ(key_of(problem), forward);
  EXPECT_NE(key_of(problem, Direction::kBackward), backward);
}

TEST(StructuralKey, TellsSinksAndGradientLayoutsFromOthers) {
  const AttentionProblem plain = large_problem(kWindow);
  const std::string forward = key_of(plain), backward = key_of(plain, Direction::kBackward);
  AttentionProblem sink = plain, layouts = plain;
  sink.sink = Sink::kOffByOne;
  layouts.dq = TensorLayout{Layout::kBHSD, {}};
  EXPECT_NE(key_of(sink), forward);
  EXPECT_EQ(key_of(sink, Direction::kBackward), backward);  // whose graph is the same
  EXPECT_EQ(key_of(layouts), forward);
  EXPECT_NE(key_of(layouts, Direction::kBackward), backward);
  layouts.dq = plain.q;
  EXPECT_EQ(key_of(layouts, Direction::kBackward), backward);
}

TEST(StructuralKey, TellsVarlenSequencesAndPagesFromOthers) {
  const AttentionProblem plain = large_problem(kWindow);
  std::set<std::string> keys{key_of(plain)};
  const auto add = [&](const std::function<void(AttentionProblem&)>& change) {
    AttentionProblem problem = plain;
    change(problem);
    EXPECT_TRUE(keys.insert(key_of(problem)).second) << *keys.begin();
  };
  const auto pages = [](AttentionProblem& p, std::int64_t rows, Layout layout) {
    p.backward = false;
    p.lengths.kv = true;
    p.paged = PagedKeys{rows, 400, p.seq_kv / rows + 1};
    p.k.layout = p.v.layout = layout;
  };
  add([](auto& p) {
    p.tokens_q = 100;
    p.q.layout = p.o.layout = Layout::kTHD;
  });
  add([](auto& p) {
    p.tokens_kv = 100;
    p.k.layout = p.v.layout = Layout::kTHD;
  });
  add([](auto& p) {
    p.tokens_q = p.tokens_kv = 100;
    p.q.layout = p.k.layout = p.v.layout = p.o.layout = Layout::kTHD;
  });
  add([&](auto& p) { pages(p, 16, Layout::kBSHD); });
  add([&](auto& p) { pages(p, 32, Layout::kBSHD); });
  add([&](auto& p) { pages(p, 16, Layout::kBHSD); });
}

TEST(StructuralKey, OfTheTrialProblemIsThatOfTheProblem) {
  for (const char* program :
       {kWindow, "value = tanh(score)", "operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias",
        "operand ids: i32 [b, kv_idx]\nvalue = score\nkeep = ids == 1 & kv_idx <= q_idx"}) {
    for (const bool backward : {false, true}) {
      const auto problem = compiler::compile(large_problem(program));
      const auto trial = verification::trial_problem(problem);
      const Direction direction = backward ? Direction::kBackward : Direction::kForward;
      EXPECT_EQ(canonical_text(structural_key(lowered(problem, backward), problem.problem, direction, h200())),
                canonical_text(structural_key(lowered(trial, backward), trial.problem, direction, h200())))
          << program;
    }
  }
}

TEST(StructuralKey, IsSharedByWhatATrialSpeaksForAndByNothingElse) {
  const AttentionProblem problem = large_problem(kWindow);
  const std::string key = key_of(problem);
  AttentionProblem longer = problem;
  longer.seq_q *= 2;
  longer.seq_kv *= 2;
  longer.batch = 3;
  EXPECT_EQ(key_of(longer), key);
  EXPECT_EQ(key_of(large_problem("value = score * 0.25\nkeep = q_idx - kv_idx <= 256 & kv_idx <= q_idx")), key);

  EXPECT_NE(key_of(problem, Direction::kBackward), key);
  EXPECT_NE(key_of(large_problem("value = score * -0.5\nkeep = q_idx - kv_idx <= 512 & kv_idx <= q_idx")), key);
  EXPECT_NE(key_of(large_problem("value = score + 0.5\nkeep = q_idx - kv_idx <= 512 & kv_idx <= q_idx")), key);
  for (const auto change : std::vector<void (*)(AttentionProblem&)>{
           [](AttentionProblem& p) { p.dtype = DType::kF16; }, [](AttentionProblem& p) { p.dim_qk = 128; },
           [](AttentionProblem& p) { p.dim_v = 64; }, [](AttentionProblem& p) { p.batch = 1; },
           [](AttentionProblem& p) { p.heads_kv = p.heads_q; }, [](AttentionProblem& p) { p.seq_q = 1; },
           [](AttentionProblem& p) { p.seq_kv = p.seq_q; }}) {
    AttentionProblem changed = problem;
    change(changed);
    EXPECT_NE(key_of(changed), key);
  }
  const auto compiled = compiler::compile(problem);
  DeviceTarget other = h200();
  other.cudnn_version = "9.20.0";
  EXPECT_NE(canonical_text(structural_key(lowered(compiled), problem, Direction::kForward, other)), key);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
