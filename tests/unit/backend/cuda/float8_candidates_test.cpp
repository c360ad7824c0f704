#include "backend/cuda/float8/float8_candidates.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
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

/// The problem with scales of rows of k.
AttentionProblem block_scaled(AttentionProblem problem) {
  problem.operands.push_back({"descale_k", DType::kF32, {1, problem.heads_kv, problem.seq_kv, 1}, {}, false});
  return problem;
}

TEST(Float8Candidates, OfBlockScalesAreConvertedWithThem) {
  const compiler::CompiledProblem given = compiler::compile(block_scaled(float8_problem()));
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    EXPECT_TRUE(kernels_backend().objections(given, {direction, true, {}}, nullptr).empty());
    const std::vector<Candidate> found = candidates_of(given, direction);
    ASSERT_FALSE(found.empty());
    // A scale of the whole tensor stands for no block scales in trials.
    const std::vector<Candidate> plain = candidates_of(compiler::compile(float8_problem()), direction);
    EXPECT_NE(found.front().structural_key.bytes(), plain.front().structural_key.bytes());
    const compiler::CompiledProblem trial = verification::trial_problem(given);
    const auto spec = std::ranges::find(trial.problem.operands, std::string("descale_k"), &OperandSpec::name);
    EXPECT_EQ(spec->shape, (std::vector<std::int64_t>{1, trial.problem.heads_kv, trial.problem.seq_kv, 1}));
    const std::vector<Candidate> small = candidates_of(trial, direction);
    EXPECT_TRUE(std::ranges::any_of(small, [&](const Candidate& same) {
      return same.structural_key.bytes() == found.front().structural_key.bytes();
    }));
  }
}

/// A forward that FP8 products can make.
AttentionProblem forward_problem() {
  AttentionProblem problem = float8_problem();
  problem.backward = problem.amax_o = false;
  problem.dtype_o = DType::kBF16;
  return problem;
}

bool has_products(const Candidate& candidate) { return candidate.label.find("FP8 products") != std::string::npos; }

TEST(Float8Products, AreTakenBeforeConversions) {
  const compiler::CompiledProblem given = compiler::compile(forward_problem());
  const std::vector<Candidate> found = candidates_of(given, Direction::kForward);
  const Candidate& best =
      *std::ranges::min_element(found, {}, [](const Candidate& each) { return each.predicted.milliseconds; });
  EXPECT_TRUE(has_products(best)) << best.label;
  EXPECT_EQ(std::ranges::count_if(found, has_products), 1);
  // A small FP8 problem stands for it in trials.
  const std::vector<Candidate> small = candidates_of(verification::trial_problem(given), Direction::kForward);
  const auto same = std::ranges::find_if(small, has_products);
  ASSERT_NE(same, small.end());
  EXPECT_EQ(same->structural_key.bytes(), best.structural_key.bytes());
  EXPECT_EQ(same->plan_key.bytes(), best.plan_key.bytes());
}

TEST(Float8Products, LeaveToConversionsWhatTheyCannotMake) {
  using Change = void (*)(AttentionProblem&);
  constexpr std::array<std::pair<const char*, Change>, 8> kChanges{{
      {"engine_refused", [](AttentionProblem& p) { p.backward = true; }},
      {"dtype", [](AttentionProblem& p) { p.dtype = DType::kE5M2; }},
      {"output_dtype", [](AttentionProblem& p) { p.dtype_o = std::nullopt; }},
      {"output_dtype", [](AttentionProblem& p) { p.amax_o = true; }},
      {"head_dim", [](AttentionProblem& p) { p.dim_v = 144; }},
      {"head_dim", [](AttentionProblem& p) { p.dim_qk = 80; }},
      {"ragged",
       [](AttentionProblem& p) {
         p.tokens_kv = 9000, p.k = p.v = {Layout::kTHD, {}};
       }},
      {"copy_alignment",
       [](AttentionProblem& p) {
         p.k = TensorLayout{Layout::kBSHD, Strides{std::int64_t{4096} * 16 * 136, 136, std::int64_t{16} * 136, 1}};
       }},
  }};
  for (const auto& [id, change] : kChanges) {
    AttentionProblem problem = forward_problem();
    change(problem);
    const compiler::CompiledProblem given = compiler::compile(problem);
    std::vector<UnsupportedReason> reasons;
    const Task task{Direction::kForward, true, {}};
    const std::vector<Candidate> found = kernels_backend().candidates(given, task, h200(), reasons);
    EXPECT_FALSE(found.empty()) << id;
    EXPECT_TRUE(std::ranges::none_of(found, has_products)) << id;
    const auto says = [id = id](const UnsupportedReason& reason) {
      return reason.id == id && reason.text.starts_with("FP8 products");
    };
    EXPECT_TRUE(std::ranges::any_of(reasons, says)) << id;
    EXPECT_TRUE(kernels_backend().forward_rounding(given) == ForwardRounding{}) << id;
  }
}

TEST(Float8Products, SayHowCoarseTheyAre) {
  const ForwardRounding rounding = kernels_backend().forward_rounding(compiler::compile(forward_problem()));
  EXPECT_EQ(rounding.weights, 0x1p-4);
  EXPECT_GT(rounding.scores, 0x1p-14);
  EXPECT_GT(rounding.lost_weights, 0);
  AttentionProblem halves = forward_problem();
  halves.dtype = DType::kBF16;
  halves.dtype_o = std::nullopt;
  EXPECT_TRUE(kernels_backend().forward_rounding(compiler::compile(halves)) == ForwardRounding{});
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
