#include "backend/cuda/float8/float8_candidates.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "compiler/pipeline.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend::cuda {
namespace {

AttentionProblem float8_problem() {
  AttentionProblem problem;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 16;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kE4M3;
  problem.backward = problem.stats = problem.amax_o = true;
  problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx");
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

std::vector<Candidate> candidates_of(const compiler::CompiledProblem& problem, Direction direction) {
  std::vector<UnsupportedReason> reasons;
  return kernels_backend().candidates(problem, {direction, true, {}}, h200(), reasons);
}

TEST(Float8Candidates, AreThoseOfSixteenBitsWithConversions) {
  const compiler::CompiledProblem given = compiler::compile(float8_problem());
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const std::vector<Candidate> found = candidates_of(given, direction);
    const std::vector<Candidate> stored = candidates_of(without_float8(given, direction), direction);
    ASSERT_EQ(found.size(), stored.size());
    ASSERT_FALSE(found.empty());
    EXPECT_NE(found[0].label.find("hopper"), std::string::npos);
    EXPECT_NE(found[0].label.find("e4m3"), std::string::npos);
    for (std::size_t i = 0; i < found.size(); ++i) {
      // The built plan is the same; its verdicts are not.
      EXPECT_EQ(found[i].plan_key, stored[i].plan_key);
      EXPECT_NE(found[i].structural_key, stored[i].structural_key);
      EXPECT_FALSE(found[i].known_right);
      EXPECT_FALSE(found[i].recipe->needs_context()) << "kernels are built while a context is made";
      EXPECT_GT(found[i].predicted.milliseconds, stored[i].predicted.milliseconds);
      // bf16 of q, k and v at least.
      const std::size_t tensors = std::size_t{3} * 2 * 4 * 4096 * 16 * 128;
      EXPECT_GE(found[i].workspace_bytes.value_or(0), stored[i].workspace_bytes.value_or(0) + tensors);
    }
  }
}

TEST(Float8Candidates, AreVerifiedByWhatTheyConvert) {
  std::vector<AttentionProblem> problems(6, float8_problem());
  problems[1].dtype = DType::kE5M2;
  problems[2].dtype_o = DType::kBF16;
  problems[3].dtype_d_o = DType::kF32;
  problems[4].dtype_gradients = DType::kF32;
  problems[5].amax_o = false;
  std::set<Bytes> keys;
  for (const AttentionProblem& problem : problems) {
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const Bytes key = candidates_of(compiled, Direction::kForward).front().structural_key;
    EXPECT_TRUE(keys.insert(key).second);
    // A small FP8 problem stands for it in trials.
    const compiler::CompiledProblem trial = verification::trial_problem(compiled);
    EXPECT_EQ(trial.problem.dtype, problem.dtype);
    const std::vector<Candidate> small = candidates_of(trial, Direction::kForward);
    EXPECT_TRUE(std::ranges::any_of(small, [&](const Candidate& same) { return same.structural_key.bytes() == key; }));
  }
}

TEST(Float8Candidates, OfBackwardsWithAmaxesAreRefused) {
  AttentionProblem problem = float8_problem();
  problem.amax_gradients = true;
  const compiler::CompiledProblem given = compiler::compile(problem);
  const auto refuses = [&](const Task& task) {
    const std::vector<UnsupportedReason> reasons = kernels_backend().objections(given, task, nullptr);
    return std::ranges::find(reasons, "amax_gradients", &UnsupportedReason::id) != reasons.end();
  };
  EXPECT_TRUE(refuses({Direction::kBackward, true, {}}));
  EXPECT_FALSE(refuses({Direction::kForward, true, {}}));
}

/// A decode step over an FP8 KV cache.
AttentionProblem cached_problem() {
  AttentionProblem problem = float8_problem();
  problem.dtype = DType::kBF16;
  problem.dtype_kv = DType::kE4M3;
  problem.backward = problem.amax_o = false;
  problem.heads_kv = 4;
  problem.seq_q = 1;
  return problem;
}

TEST(Float8CacheCandidates, ReadTheCacheOrConvertIt) {
  const compiler::CompiledProblem given = compiler::compile(cached_problem());
  const std::vector<Candidate> found = candidates_of(given, Direction::kForward);
  const std::vector<Candidate> stored = candidates_of(without_float8(given, Direction::kForward), Direction::kForward);
  const auto converts = [](const Candidate& candidate) {
    return candidate.label.find("of k and v in e4m3") != std::string::npos;
  };
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count_if(found, converts)), stored.size());
  const auto by_time = [](const Candidate& a, const Candidate& b) {
    return a.predicted.milliseconds < b.predicted.milliseconds;
  };
  const Candidate& best = *std::ranges::min_element(found, by_time);
  EXPECT_FALSE(converts(best)) << best.label;
  EXPECT_NE(best.label.find("bf16 over e4m3"), std::string::npos) << best.label;
  // The keys and values in bf16 alone would take this.
  EXPECT_LT(best.workspace_bytes.value_or(0), std::size_t{2} * 2 * 4 * 4096 * 4 * 128 / 4);
  const Candidate& best_stored = *std::ranges::min_element(stored, by_time);
  EXPECT_LT(best.predicted.milliseconds, best_stored.predicted.milliseconds);
}

TEST(Float8CacheCandidates, AreVerifiedByWhatTheyRead) {
  std::vector<AttentionProblem> problems(5, cached_problem());
  problems[1].dtype_kv = DType::kE5M2;
  problems[2].dtype = DType::kF16;
  problems[3].operands.push_back({"descale_k", DType::kF32, {4}, {}, false});
  problems[4].operands.push_back({"descale_v", DType::kF32, {4}, {}, false});
  std::set<Bytes> keys;
  for (const AttentionProblem& problem : problems) {
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    for (const Candidate& candidate : candidates_of(compiled, Direction::kForward)) {
      if (candidate.label.find("of k and v") == std::string::npos) continue;
      EXPECT_TRUE(keys.insert(candidate.structural_key.bytes()).second) << candidate.label;
    }
    const compiler::CompiledProblem trial = verification::trial_problem(compiled);
    EXPECT_EQ(trial.problem.dtype_kv, problem.dtype_kv);
    EXPECT_NO_THROW(validate(trial.problem));
  }
}

TEST(Float8CacheCandidates, OfManyQueriesAreConverted) {
  AttentionProblem problem = cached_problem();
  problem.seq_q = 4096;
  for (const Candidate& candidate : candidates_of(compiler::compile(problem), Direction::kForward))
    EXPECT_NE(candidate.label.find("of k and v in e4m3"), std::string::npos) << candidate.label;
}

TEST(Float8Candidates, HaveTheObjectionsOfSixteenBits) {
  AttentionProblem problem = float8_problem();
  problem.dim_qk = 584;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::string> ids;
  for (const UnsupportedReason& reason :
       kernels_backend().objections(compiled, {Direction::kForward, true, {}}, nullptr))
    ids.push_back(reason.id);
  EXPECT_TRUE(std::ranges::find(ids, "head_dim") != ids.end());
  EXPECT_TRUE(std::ranges::find(ids, "dtype") == ids.end());
}

}  // namespace
}  // namespace scoremod::backend::cuda
