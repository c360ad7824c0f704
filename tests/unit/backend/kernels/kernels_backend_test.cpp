#include "backend/kernels/kernels_backend.hpp"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/kernels/direction_kernels.hpp"
#include "backend/kernels/few_queries_shape.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "backend/kernels/operand_kernels.hpp"
#include "backend/kernels/recipe.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
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
  for (const OperandDecl& decl : problem.program.operands())
    problem.operands.push_back(problem::default_spec(problem, decl));
  for (OperandSpec& operand : problem.operands) operand.gradient = false;
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

std::vector<Candidate> candidates_of(const AttentionProblem& problem, Direction direction,
                                     const Target& target = h200()) {
  std::vector<UnsupportedReason> reasons;
  return kernels_backend().candidates(compiler::compile(problem), {direction, true, {}}, target, reasons);
}

Target a100() {
  Target target = h200();
  target.device.name = "NVIDIA A100";
  target.device.compute_capability = 80;
  target.device.shared_memory_per_block = 166912;
  return target;
}

constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";

TEST(KernelsBackend, OffersLargeTilesFirstAndSmallOnesForWhereThoseSpill) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto candidates = candidates_of(problem_of(kCausal), direction, a100());
    ASSERT_EQ(candidates.size(), 2u);
    EXPECT_LT(candidates[0].predicted.milliseconds, candidates[1].predicted.milliseconds);
    EXPECT_NE(candidates[0].structural_key, candidates[1].structural_key);
  }
}

TEST(KernelsBackend, OffersHopperKernelsFirstWhereTheyRun) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto candidates = candidates_of(problem_of(kCausal), direction);
    ASSERT_EQ(candidates.size(), 4u);
    EXPECT_NE(candidates[0].label.find("hopper"), std::string::npos);
    EXPECT_NE(candidates[1].label.find("hopper"), std::string::npos);
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      EXPECT_LT(candidates[i - 1].predicted.milliseconds, candidates[i].predicted.milliseconds);
      EXPECT_NE(candidates[i - 1].structural_key, candidates[i].structural_key);
    }
  }
}

TEST(KernelsBackend, SaysWhyThereAreNoHopperKernels) {
  const auto ids = [](const AttentionProblem& problem, Direction direction, const Target& target) {
    std::vector<UnsupportedReason> reasons;
    const auto found = kernels_backend().candidates(compiler::compile(problem), {direction, true, {}}, target, reasons);
    for (const Candidate& candidate : found) EXPECT_EQ(candidate.label.find("hopper"), std::string::npos);
    std::vector<std::string> names;
    for (const UnsupportedReason& reason : reasons) names.push_back(reason.id);
    return names;
  };
  using Ids = std::vector<std::string>;
  AttentionProblem problem = problem_of(kCausal);
  const auto forward_ids = [&](const Target& target) {
    Ids names = ids(problem, Direction::kForward, target);
    EXPECT_EQ(names.back(), "engine_refused") << "too many queries for the kernels of few";
    names.pop_back();
    return names;
  };
  EXPECT_EQ(forward_ids(a100()), Ids{"engine_refused"});
  problem.seq_q = 64;
  EXPECT_EQ(ids(problem, Direction::kBackward, h200()), Ids{"engine_refused"});
  problem = problem_of(kCausal);
  problem.o.strides = Strides{4096 * 16 * 129, 129, 16 * 129, 1};
  EXPECT_EQ(ids(problem, Direction::kBackward, h200()), Ids{"copy_alignment"});
  problem = problem_of(kCausal);
  problem.k.strides = Strides{4096 * 16 * 129, 129, 16 * 129, 1};
  EXPECT_EQ(forward_ids(h200()), Ids{"copy_alignment"});
  problem = problem_of(kCausal);
  problem.dtype_o = DType::kF32;
  EXPECT_EQ(ids(problem, Direction::kBackward, h200()), Ids{"output_dtype"});
  problem = problem_of(kCausal);
  problem.backward = false;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{16, 2000, 300};
  EXPECT_EQ(forward_ids(h200()), Ids{"paged"});
}

TEST(KernelsBackend, OffersHopperKernelsForRaggedTensorsAndAnotherOutput) {
  AttentionProblem problem = problem_of(kCausal);
  problem.tokens_q = problem.tokens_kv = 9000;
  problem.q = problem.k = problem.v = problem.o = {Layout::kTHD, {}};
  for (const Direction direction : {Direction::kForward, Direction::kBackward})
    EXPECT_NE(candidates_of(problem, direction)[0].label.find("hopper"), std::string::npos);
  problem.dtype_o = DType::kF32;
  EXPECT_NE(candidates_of(problem, Direction::kForward)[0].label.find("hopper"), std::string::npos);
}

/// Four heads share one of keys.
AttentionProblem decoding(std::int64_t seq_q, const char* program = "value = score") {
  AttentionProblem problem = problem_of(program);
  problem.batch = 16;
  problem.heads_q = 32;
  problem.heads_kv = 8;
  problem.seq_q = seq_q;
  problem.seq_kv = 8192;
  problem.backward = problem.stats = false;
  for (std::size_t i = 0; i < problem.operands.size(); ++i)
    problem.operands[i] = problem::default_spec(problem, problem.program.operands()[i]);
  return problem;
}

TEST(KernelsBackend, OffersFewQueriesTheRowsThatTheyFill) {
  for (const auto& [queries, rows] : {std::pair{1, "16x"}, {4, "16x"}, {8, "32x"}, {16, "64x"}}) {
    for (const Target& target : {h200(), a100()}) {
      auto candidates = candidates_of(decoding(queries), Direction::kForward, target);
      const auto best = std::ranges::min_element(
          candidates, {}, [](const Candidate& candidate) { return candidate.predicted.milliseconds; });
      EXPECT_NE(best->label.find(concat("few-query kernels with tiles of ", rows)), std::string::npos) << best->label;
    }
  }
  for (const Candidate& candidate : candidates_of(decoding(65), Direction::kForward))
    EXPECT_EQ(candidate.label.find("few-query"), std::string::npos);
}

TEST(KernelsBackend, SharesOutKeysWhereHeadsDoNotFillTheDevice) {
  const auto workspace = [](std::int64_t batch) {
    AttentionProblem problem = decoding(1);
    problem.batch = batch;
    const auto candidates = candidates_of(problem, Direction::kForward);
    const auto milliseconds = [](const Candidate& candidate) { return candidate.predicted.milliseconds; };
    return std::ranges::min_element(candidates, {}, milliseconds)->workspace_bytes;
  };
  EXPECT_EQ(workspace(16), 0U);
  EXPECT_GT(workspace(2), 0U);
}

TEST(KernelsBackend, BuildsNothingForACacheThatGrows) {
  AttentionProblem longer = decoding(4);
  longer.seq_kv = 30000;
  longer.batch = 1;
  const auto some = candidates_of(decoding(4), Direction::kForward), more = candidates_of(longer, Direction::kForward);
  ASSERT_EQ(some.size(), more.size());
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].plan_key, more[i].plan_key);
}

/// The trial has other numbers of queries and heads: every shape is among its candidates all the same.
TEST(KernelsBackend, HasFewQueriesVerifiedByASmallProblem) {
  for (const char* program : {"value = score", kCausal, "operand x: i32 [b]\nvalue = score\nkeep = kv_idx < x"}) {
    for (const std::int64_t queries : {1, 4, 16}) {
      const compiler::CompiledProblem compiled = compiler::compile(decoding(queries, program));
      std::vector<UnsupportedReason> reasons;
      const Task forward{Direction::kForward, true, {}};
      const auto own = kernels_backend().candidates(compiled, forward, h200(), reasons),
                 tried = kernels_backend().candidates(verification::trial_problem(compiled), forward, h200(), reasons);
      for (const Candidate& candidate : own)
        EXPECT_TRUE(std::ranges::count(tried, candidate.structural_key, &Candidate::structural_key) == 1)
            << program << ", " << queries << " queries: " << candidate.label;
    }
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

TEST(KernelsBackend, KeepsOneImageForProblemsThatDifferInIntegers) {
  const auto keys = [](const char* program) {
    std::vector<Bytes> found;
    for (const Direction direction : {Direction::kForward, Direction::kBackward})
      for (const Candidate& candidate : candidates_of(problem_of(program), direction))
        found.push_back(candidate.plan_key);
    return found;
  };
  const auto some = keys("value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512");
  EXPECT_EQ(some, keys("value = score\nkeep = kv_idx < 9 | abs(q_idx - kv_idx) <= 70"));
  // 0 and 1 are known to the compiler, and so are divisors.
  EXPECT_NE(some, keys("value = score\nkeep = kv_idx < 1 | abs(q_idx - kv_idx) <= 512"));
  EXPECT_NE(keys("value = score\nkeep = q_idx // 64 == kv_idx // 64"),
            keys("value = score\nkeep = q_idx // 100 == kv_idx // 100"));
}

TEST(KernelsBackend, CompilesNothingForTheTrialOfAWindowBesideGlobalKeys) {
  const compiler::CompiledProblem compiled =
      compiler::compile(problem_of("value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512"));
  const compiler::CompiledProblem trial = verification::trial_problem(compiled);
  EXPECT_LT(trial.problem.seq_kv, 512);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::vector<UnsupportedReason> reasons;
    EXPECT_EQ(kernels_backend().candidates(compiled, {direction, true, {}}, h200(), reasons)[0].plan_key,
              kernels_backend().candidates(trial, {direction, true, {}}, h200(), reasons)[0].plan_key);
  }
}

/// Of all candidates of both directions.
std::vector<Bytes> keys_of(const compiler::CompiledProblem& compiled) {
  std::vector<Bytes> keys;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::vector<UnsupportedReason> reasons;
    for (const Candidate& candidate : kernels_backend().candidates(compiled, {direction, true, {}}, h200(), reasons))
      keys.push_back(candidate.structural_key);
  }
  return keys;
}

std::vector<Bytes> keys_of_forward(const compiler::CompiledProblem& compiled) {
  std::vector<Bytes> keys;
  std::vector<UnsupportedReason> reasons;
  for (const Candidate& candidate :
       kernels_backend().candidates(compiled, {Direction::kForward, true, {}}, h200(), reasons))
    keys.push_back(candidate.structural_key);
  return keys;
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWithTheSameKey) {
  for (const char* program :
       {"value = score", kCausal, "value = tanh(score * 0.1) * 10.0\nkeep = q_idx // 100 == kv_idx // 100",
        "value = score\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512",
        "value = score\nkeep = kv_idx < 900 | kv_idx <= q_idx", "value = score\nkeep = kv_idx <= q_idx + 4000",
        "value = score\nkeep = kv_idx * 300 <= q_idx * 600",
        "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y | kv_idx < 300"}) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of(program));
    EXPECT_TRUE(keys_of(compiled) == keys_of(verification::trial_problem(compiled))) << program;
  }
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWhoseRowsAreAlignedAlike) {
  for (const std::int64_t gap : {0, 1, 4, 8, 129}) {
    AttentionProblem problem = problem_of(kCausal);
    const std::int64_t row = problem.dim_qk + gap;
    problem.k.strides = Strides{16 * 4096 * row, 4096 * row, row, 1};
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    EXPECT_TRUE(keys_of(compiled) == keys_of(verification::trial_problem(compiled))) << "gap " << gap;
  }
}

void make_ragged(AttentionProblem& p) {
  p.tokens_q = 5000;
  p.tokens_kv = 6000;
  p.q = p.k = p.v = p.o = {Layout::kTHD, {}};
}
void make_paged(AttentionProblem& p) {
  p.backward = false;
  p.lengths.kv = true;
  p.paged = PagedKeys{16, 2000, 300};
}

TEST(KernelsBackend, IsVerifiedByASmallProblemWhoseRowsLieInTheSameWay) {
  const auto same = [](void (*place)(AttentionProblem&)) {
    AttentionProblem problem = problem_of(kCausal);
    place(problem);
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const compiler::CompiledProblem trial = verification::trial_problem(compiled);
    const auto keys = [](const compiler::CompiledProblem& one) {
      return one.backward ? keys_of(one) : keys_of_forward(one);
    };
    EXPECT_LT(trial.problem.tokens_q.value_or(0), 1000);
    return keys(compiled) == keys(trial);
  };
  EXPECT_TRUE(same(make_ragged));
  EXPECT_TRUE(same(make_paged));
  EXPECT_TRUE(same([](AttentionProblem& p) { p.dtype_o = DType::kF32; }));
}

TEST(KernelsBackend, TellsWhereRowsLieApart) {
  const auto keys = [](auto place) {
    AttentionProblem problem = problem_of(kCausal);
    place(problem);
    return keys_of_forward(compiler::compile(problem));
  };
  const auto ragged = keys(make_ragged), paged = keys(make_paged);
  const auto dense = keys([](AttentionProblem&) {});
  EXPECT_TRUE(ragged != dense);
  EXPECT_TRUE(paged != dense);
  EXPECT_TRUE(ragged == keys([](AttentionProblem& p) {
                make_ragged(p);
                p.tokens_q = 777;
              }));
  EXPECT_TRUE(paged != keys([](AttentionProblem& p) {
                make_paged(p);
                p.paged->block_size = 32;
              }));
  EXPECT_TRUE(dense != keys([](AttentionProblem& p) { p.dtype_o = DType::kF32; }));
  EXPECT_TRUE(dense == keys([](AttentionProblem& p) { p.dtype_o = p.dtype; }));
}

TEST(KernelsBackend, TellsProblemsOfAnotherStructureApart) {
  const char* const program = "operand x: f32 [h]\nvalue = score * x\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512";
  const auto keys = keys_of(compiler::compile(problem_of(program)));
  const auto with = [](const char* text, auto change) {
    AttentionProblem problem = problem_of(text);
    change(problem);
    return keys_of(compiler::compile(problem));
  };
  const auto unchanged = [](AttentionProblem&) {};
  EXPECT_TRUE(keys ==
              with("operand y: f32 [h]\nvalue = score * y\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 300", unchanged));
  EXPECT_TRUE(keys !=
              with("operand x: f32 [h]\nvalue = score + x\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512", unchanged));
  EXPECT_TRUE(keys != with("operand x: f32 [h]\nvalue = score * x\nkeep = kv_idx <= q_idx", unchanged));
  EXPECT_TRUE(keys !=
              with("operand x: f32 [b]\nvalue = score * x\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512", unchanged));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.operands[0].dtype = DType::kBF16; }));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.dim_v = 64; }));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.dtype = DType::kF16; }));
  EXPECT_TRUE(keys != with(program, [](AttentionProblem& p) { p.heads_kv = 4; }));
}

TEST(KernelsBackend, RefusesWithEveryReason) {
  AttentionProblem problem = problem_of(kCausal);
  problem.dtype = DType::kF16;
  problem.dtype_o = DType::kF32;
  problem.dim_qk = 264;
  const auto ids = [&](const Target* target, const Task& task) {
    std::vector<std::string> found;
    for (const UnsupportedReason& reason : kernels_backend().objections(compiler::compile(problem), task, target))
      if (reason.id != "no_library") found.push_back(reason.id);
    return found;
  };
  const Task forward{Direction::kForward, true, {}};
  EXPECT_EQ(ids(nullptr, forward), (std::vector<std::string>{"output_dtype", "head_dim"}));
  problem.dtype_o.reset();
  problem.dim_qk = 128;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{});
  EXPECT_EQ(ids(nullptr, {Direction::kBackward, true, {0}}), std::vector<std::string>{"no_operand_gradient"});
  problem.dtype_o = DType::kF32;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{"output_dtype"}) << "gradients that halves cannot hold";
  problem.backward = false;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{});
  problem.backward = true;
  problem.dtype = DType::kBF16;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{});
}

TEST(KernelsBackend, HasEveryKernelOfACallInOneOfItsModules) {
  const AttentionProblem problem = problem_of("value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512");
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::vector shapes{kernels::tile_shape(problem, direction), kernels::hopper_shapes(problem, direction).front()};
    if (direction == Direction::kForward) shapes.push_back(kernels::few_query_shapes(problem, h200().device).front());
    for (const kernels::TileShape& shape : shapes) {
      const std::vector<std::string> modules = kernels::attention_modules(compiled, direction, shape);
      EXPECT_EQ(modules.size(), direction == Direction::kForward ? 1U : 2U);
      const kernels::DirectionKernels made(compiled, direction, shape);
      for (const kernels::KernelLaunch& launch : made.launches()) {
        const std::string definition = concat(") ", launch.kernel, "(");
        EXPECT_TRUE(std::ranges::any_of(modules, [&](const std::string& text) {
          return text.find(definition) != std::string::npos;
        })) << launch.kernel;
      }
    }
  }
}

TEST(KernelsBackend, SumsOperandsGradientsBesideTheBackwardOnHopper) {
  AttentionProblem problem = problem_of("operand x: f32 [h]\noperand y: f32 [kv_idx]\nvalue = score * x + y");
  for (OperandSpec& operand : problem.operands) operand.gradient = true;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::string> notes;
  using Sets = std::vector<std::vector<std::uint32_t>>;
  EXPECT_EQ(kernels_backend().fused_operand_gradients(compiled, h200(), notes), (Sets{{0, 1}}));
  Target other = h200();
  other.device.compute_capability = 80;
  EXPECT_EQ(kernels_backend().fused_operand_gradients(compiled, other, notes), Sets{});

  AttentionProblem sinks = problem;
  sinks.sink = Sink::kLearned;
  EXPECT_EQ(kernels_backend().fused_operand_gradients(compiler::compile(problem::with_implied_operands(sinks)), h200(),
                                                      notes),
            (Sets{{0, 1, 2}}));

  std::vector<UnsupportedReason> reasons;
  const auto plain = kernels_backend().candidates(compiled, {Direction::kBackward, true, {}}, h200(), reasons);
  const auto fused = kernels_backend().candidates(compiled, {Direction::kBackward, true, {0, 1}}, h200(), reasons);
  ASSERT_FALSE(fused.empty());
  EXPECT_GT(fused[0].predicted.milliseconds, plain[0].predicted.milliseconds);
  EXPECT_GT(fused[0].workspace_bytes, plain[0].workspace_bytes);
  EXPECT_NE(fused[0].plan_key, plain[0].plan_key);
  EXPECT_NE(fused[0].structural_key, plain[0].structural_key);

  const auto targets = kernels::operand_targets(compiled, std::vector<std::uint32_t>{0, 1});
  const kernels::TileShape shape = kernels::hopper_shapes(problem, Direction::kBackward).front();
  const std::vector<std::string> modules = kernels::attention_modules(compiled, Direction::kBackward, shape, targets);
  const kernels::OperandKernels made(compiled, targets, shape, kernels::Gains::kBeside);
  for (const kernels::KernelLaunch& launch : made.launches()) {
    const std::string definition = concat(") ", launch.kernel);
    EXPECT_TRUE(std::ranges::any_of(modules, [&](const std::string& text) {
      return text.find(definition) != std::string::npos;
    })) << launch.kernel;
  }
}

TEST(KernelsBackend, WritesGradientsAlongQueriesAndKeysBesideTheBackwardEverywhere) {
  AttentionProblem problem = problem_of("operand x: f32 [b, h, q_idx, kv_idx]\nvalue = score + x");
  problem.operands.front().gradient = true;
  std::vector<std::string> notes;
  const auto fused = [&](const AttentionProblem& p, int compute_capability) {
    Target target = h200();
    target.device.compute_capability = compute_capability;
    return kernels_backend().fused_operand_gradients(compiler::compile(p), target, notes).size();
  };
  EXPECT_EQ(fused(problem, 90), 1U);
  EXPECT_EQ(fused(problem, 80), 1U) << "without sums it takes no registers";
  AttentionProblem given = problem;
  given.given_deltas = true;
  EXPECT_EQ(fused(given, 90), 1U);
  AttentionProblem shared = problem_of("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x");
  shared.operands.front().gradient = true;
  EXPECT_EQ(fused(shared, 90), 0U) << "a sum over batches";

  std::vector<UnsupportedReason> reasons;
  Target other = h200();
  other.device.compute_capability = 80;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const auto plain = kernels_backend().candidates(compiled, {Direction::kBackward, true, {}}, other, reasons);
  const auto written = kernels_backend().candidates(compiled, {Direction::kBackward, true, {0}}, other, reasons);
  ASSERT_FALSE(written.empty());
  EXPECT_GT(written[0].predicted.milliseconds, plain[0].predicted.milliseconds);
  EXPECT_NE(written[0].plan_key, plain[0].plan_key);
}

TEST(KernelsBackend, SumsATableOfDifferencesBesideTheBackwardWhereItsSumsAreNotTooLarge) {
  std::vector<std::string> notes;
  const auto fused = [&](AttentionProblem problem, std::int64_t length) {
    problem.seq_q = problem.seq_kv = length;
    for (OperandSpec& operand : problem.operands) {
      operand.gradient = true;
      operand.shape = {300};
    }
    return kernels_backend().fused_operand_gradients(compiler::compile(problem), h200(), notes).size();
  };
  const AttentionProblem one = problem_of("table x: f32 rank 1\nvalue = score + x[max(kv_idx - q_idx, 0)]");
  EXPECT_EQ(fused(one, 4096), 1U);
  EXPECT_EQ(fused(one, 65536), 0U) << "one sum for each 64 queries and each key";
  EXPECT_EQ(fused(problem_of("table x: f32 rank 1\nvalue = score + x[kv_idx]"), 4096), 0U);
  EXPECT_EQ(fused(problem_of("table x: f32 rank 1\ntable y: f32 rank 1\nvalue = score * y[kv_idx - q_idx] + x[q_idx - "
                             "kv_idx]"),
                  4096),
            0U)
      << "two of them";
}

TEST(KernelsBackend, KeysAreEqualWhereTextsAre) {
  std::vector<compiler::CompiledProblem> compiled;
  for (const char* program : {"value = score", kCausal, "value = tanh(score)",
                              "value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512",
                              "value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 12",
                              "value = score\nkeep = q_idx // 9 == kv_idx // 9", "value = score\nkeep = score > 0.5",
                              "operand x: f32 [h]\nvalue = score * x", "operand x: f32 [b, h]\nvalue = score * x",
                              "operand x: i32 [b, kv_idx]\nvalue = score\nkeep = x == q_idx"}) {
    compiled.push_back(compiler::compile(problem_of(program)));
    AttentionProblem other = problem_of(program);
    other.seq_kv = 999;
    for (OperandSpec& operand : other.operands) operand.shape.clear();
    for (std::size_t i = 0; i < other.operands.size(); ++i)
      other.operands[i] = problem::default_spec(other, other.program.operands()[i]);
    compiled.push_back(compiler::compile(other));
    other.dtype = DType::kF16;
    other.dim_v = 64;
    compiled.push_back(compiler::compile(other));
    other.sink = Sink::kOffByOne;
    compiled.push_back(compiler::compile(other));
    other.sink = Sink::kNone;
    other.dropout = 0.25F;
    compiled.push_back(compiler::compile(other));
  }
  std::map<std::string, Bytes> key_of;
  std::map<Bytes, std::string> text_of;
  std::size_t equal = 0;
  for (const compiler::CompiledProblem& one : compiled) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      std::vector shapes{kernels::tile_shape(one.problem, direction),
                         kernels::hopper_shapes(one.problem, direction).front()};
      if (direction == Direction::kForward) {
        const auto few = kernels::few_query_shapes(one.problem, h200().device);
        shapes.insert(shapes.end(), few.begin(), few.end());
      }
      for (const kernels::TileShape& shape : shapes) {
        const std::string text = kernels::attention_source(one, direction, shape);
        const Bytes key = kernels::key_of_source(one, direction, shape);
        EXPECT_LT(key.size(), text.size() / 10);
        EXPECT_EQ(key_of.emplace(text, key).first->second, key) << text;
        equal += text_of.emplace(key, text).second ? 0 : 1;
        EXPECT_EQ(text_of.at(key), text);
      }
    }
  }
  EXPECT_GT(equal, 20U);  // other lengths, and windows of another length
}

TEST(KernelsBackend, ReadsBackWhatItStores) {
  const kernels::Images images({std::string("\177ELF\0one", 8), "", "another"});
  EXPECT_EQ(kernels::Images(images.serialize()).modules(), images.modules());
  std::vector<std::byte> damaged = images.serialize();
  damaged.resize(damaged.size() / 2);
  EXPECT_THROW(kernels::Images{damaged}, Error);
  EXPECT_THROW(kernels::Images{std::vector<std::byte>(40)}, Error);
}

TEST(KernelsBackend, ReadsFromTheCompilersReportThatProductsAreSerialized) {
  EXPECT_TRUE(kernels::serializes_products(
      "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
      "insufficient register resources for the wgmma pipeline in the function 'hopper_forward'"));
  EXPECT_FALSE(kernels::serializes_products(
      "ptxas info    : (C7519) warpgroup.arrive is injected in around line 2694 by compiler to allow use of registers "
      "in GMMA in function 'hopper_forward'"));
}

TEST(KernelsBackend, ReadsSpillsFromTheCompilersReport) {
  EXPECT_EQ(kernels::spilled_bytes("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), 0);
  EXPECT_EQ(
      kernels::spilled_bytes("0 bytes spill stores\n 24 bytes stack, 48 bytes spill stores, 24 bytes spill loads"), 48);
}

}  // namespace
}  // namespace scoremod::backend
