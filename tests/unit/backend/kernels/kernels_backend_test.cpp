#include "backend/kernels/kernels_backend.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/kernels/recipe.hpp"
#include "compiler/pipeline.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend {
namespace {

AttentionProblem problem_of(const char* program) {
  AttentionProblem problem;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 16;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  return problem;
}

Target h200() {
  Target target;
  target.device.name = "NVIDIA H200";
  target.device.compute_capability = 90;
  target.device.multiprocessors = 132;
  target.device.shared_memory_per_block = 232448;
  target.present = false;
  return target;
}

std::vector<Candidate> candidates_of(const AttentionProblem& problem, Direction direction) {
  std::vector<UnsupportedReason> reasons;
  return kernels_backend().candidates(compiler::compile(problem), {direction, true, {}}, h200(), reasons);
}

constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";

TEST(KernelsBackend, OffersLargeTilesFirstAndSmallOnesForWhereThoseSpill) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto candidates = candidates_of(problem_of(kCausal), direction);
    ASSERT_EQ(candidates.size(), 2u);
    EXPECT_LT(candidates[0].predicted.milliseconds, candidates[1].predicted.milliseconds);
    EXPECT_NE(candidates[0].structural_key, candidates[1].structural_key);
  }
}

TEST(KernelsBackend, KeepsOneImageForProblemsThatDifferInSizesAndStrides) {
  AttentionProblem other = problem_of(kCausal);
  other.batch = 3;
  other.heads_q = 6;
  other.heads_kv = 2;
  other.seq_q = 1000;
  other.seq_kv = 777;
  other.q.layout = Layout::kBHSD;
  other.scale = 0.5f;
  const auto some = candidates_of(problem_of(kCausal), Direction::kForward),
             more = candidates_of(other, Direction::kForward);
  EXPECT_EQ(some[0].plan_key, more[0].plan_key);
  other.dim_qk = 64;
  EXPECT_NE(some[0].plan_key, candidates_of(other, Direction::kForward)[0].plan_key);
  EXPECT_NE(some[0].plan_key, candidates_of(problem_of("value = score"), Direction::kForward)[0].plan_key);
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWithTheSameKey) {
  for (const char* program :
       {"value = score", kCausal, "value = tanh(score * 0.1) * 10.0\nkeep = q_idx // 100 == kv_idx // 100"}) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of(program));
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      std::vector<UnsupportedReason> reasons;
      const Task task{direction, true, {}};
      const auto whole = kernels_backend().candidates(compiled, task, h200(), reasons);
      const auto small = kernels_backend().candidates(verification::trial_problem(compiled), task, h200(), reasons);
      ASSERT_EQ(whole.size(), small.size());
      for (std::size_t i = 0; i < whole.size(); ++i)
        EXPECT_EQ(whole[i].structural_key, small[i].structural_key) << program;
    }
  }
}

TEST(KernelsBackend, RefusesWithEveryReason) {
  AttentionProblem problem = problem_of(kCausal);
  problem.dtype = DType::kF32;
  problem.dim_qk = 264;
  const auto ids = [&](const Target* target, const Task& task) {
    std::vector<std::string> found;
    for (const UnsupportedReason& reason : kernels_backend().objections(compiler::compile(problem), task, target))
      if (reason.id != "no_library") found.push_back(reason.id);
    return found;
  };
  const Task forward{Direction::kForward, true, {}};
  EXPECT_EQ(ids(nullptr, forward), (std::vector<std::string>{"dtype", "head_dim"}));
  problem.dtype = DType::kF16;
  problem.dim_qk = 128;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{});
  EXPECT_EQ(ids(nullptr, {Direction::kBackward, true, {0}}), std::vector<std::string>{"no_operand_gradient"});
}

TEST(KernelsBackend, ReadsSpillsFromTheCompilersReport) {
  EXPECT_EQ(kernels::spilled_bytes("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), 0);
  EXPECT_EQ(
      kernels::spilled_bytes("0 bytes spill stores\n 24 bytes stack, 48 bytes spill stores, 24 bytes spill loads"), 48);
}

}  // namespace
}  // namespace scoremod::backend
