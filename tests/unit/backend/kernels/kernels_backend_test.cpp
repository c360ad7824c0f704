#include "backend/kernels/backend/kernels_backend.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"

namespace scoremod::backend {
namespace {

TEST(KernelsBackend, OffersLargeTilesFirstAndSmallOnesForWhereThoseSpill) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto candidates = candidates_of(problem_of(kCausal), direction, a100());
    ASSERT_EQ(candidates.size(), 2u);
    EXPECT_LT(candidates[0].predicted.milliseconds, candidates[1].predicted.milliseconds);
    EXPECT_NE(candidates[0].structural_key, candidates[1].structural_key);
  }
}

bool has_persistent_kernels(const Candidate& candidate) {
  return candidate.label.find("persistent") != std::string::npos;
}

TEST(KernelsBackend, OffersHopperKernelsFirstWhereTheyRun) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    auto candidates = candidates_of(problem_of(kCausal), direction);
    std::erase_if(candidates, has_persistent_kernels);
    ASSERT_EQ(candidates.size(), direction == Direction::kForward ? 4u : 5u);
    EXPECT_NE(candidates[0].label.find("hopper"), std::string::npos);
    EXPECT_NE(candidates[1].label.find("hopper"), std::string::npos);
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      EXPECT_LT(candidates[i - 1].predicted.milliseconds, candidates[i].predicted.milliseconds);
      EXPECT_NE(candidates[i - 1].structural_key, candidates[i].structural_key);
    }
  }
}

/// They are expected to be faster where rows of tiles are short, and autotuning may choose them elsewhere.
TEST(KernelsBackend, OffersPersistentKernels) {
  struct Case {
    const char* program;
    bool is_short;
  };
  for (const auto& [program, is_short] :
       {Case{"value = score", false}, Case{kCausal, false},
        Case{"operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y", true},
        Case{"value = score\nkeep = abs(q_idx // 64 - kv_idx // 64) <= 4 & abs(q_idx % 64 - kv_idx % 64) <= 4",
             true}}) {
    SCOPED_TRACE(program);
    AttentionProblem problem = problem_of(program);
    const auto candidates = candidates_of(problem, Direction::kForward);
    const auto persistent = std::ranges::find_if(candidates, has_persistent_kernels);
    ASSERT_NE(persistent, candidates.end());
    for (const Candidate& other : candidates) {
      if (&other == &*persistent) continue;
      EXPECT_NE(other.structural_key, persistent->structural_key);
      // Another order of rows adds a launch and changes no kernel.
      EXPECT_EQ(other.plan_key == persistent->plan_key, has_persistent_kernels(other)) << other.label;
    }
    EXPECT_EQ(persistent->predicted.milliseconds < candidates[0].predicted.milliseconds, is_short);
    EXPECT_GT(*persistent->workspace_bytes, *candidates[0].workspace_bytes);
    EXPECT_TRUE(std::ranges::none_of(candidates_of(problem, Direction::kBackward), has_persistent_kernels));
    EXPECT_TRUE(std::ranges::none_of(candidates_of(problem, Direction::kForward, a100()), has_persistent_kernels));
    AttentionProblem narrow = problem;
    narrow.dim_qk = narrow.dim_v = 64;
    const auto of_narrow = candidates_of(narrow, Direction::kForward);
    const auto of_two_groups = std::ranges::find_if(of_narrow, has_persistent_kernels);
    ASSERT_NE(of_two_groups, of_narrow.end());
    EXPECT_EQ(of_two_groups->predicted.milliseconds < of_narrow[0].predicted.milliseconds, is_short);
    // How many blocks there are is an argument: kernels that were tried with other numbers are the same.
    Target other = h200();
    other.device.multiprocessors = 114;
    const auto others = candidates_of(problem, Direction::kForward, other);
    const auto same = std::ranges::find_if(others, has_persistent_kernels);
    ASSERT_NE(same, others.end());
    EXPECT_EQ(same->plan_key, persistent->plan_key);
    EXPECT_EQ(same->structural_key, persistent->structural_key);
  }
}

/// Which of the candidates of a backward add dq up in no fixed order, and why there are none.
struct AddedUp {
  std::size_t candidates = 0;
  std::vector<std::string> reasons;
  bool operator==(const AddedUp&) const = default;
};
AddedUp added_up(const AttentionProblem& problem, std::vector<std::uint32_t> operand_gradients = {}) {
  std::vector<UnsupportedReason> reasons;
  AddedUp found;
  for (const Candidate& candidate : kernels_backend().candidates(
           compiler::compile(problem), {Direction::kBackward, true, std::move(operand_gradients)}, h200(), reasons))
    found.candidates += candidate.label.find("dq added up") != std::string::npos ? 1 : 0;
  for (const UnsupportedReason& reason : reasons) found.reasons.push_back(reason.id);
  return found;
}

TEST(KernelsBackend, AddsDqUpInNoOrderWhereGradientsMayDiffer) {
  AttentionProblem problem = problem_of(kCausal);
  EXPECT_EQ(added_up(problem), (AddedUp{1, {}}));
  problem.deterministic = true;
  EXPECT_EQ(added_up(problem), (AddedUp{0, {"deterministic"}}));
  problem.deterministic = false;
  problem.dim_v = 136;
  EXPECT_EQ(added_up(problem), (AddedUp{0, {"head_dim"}}));
  EXPECT_EQ(added_up(problem_of("value = pow(1.5 + abs(score), 1.3)")), (AddedUp{0, {"engine_refused"}}));
  problem = problem_of("operand x: f32 [h]\nvalue = score * x");
  problem.operands[0].gradient = true;
  EXPECT_EQ(added_up(problem), (AddedUp{1, {}}));
  EXPECT_EQ(added_up(problem, {0}), (AddedUp{1, {}}));
  problem = problem_of("operand x: f32 [q_idx]\nvalue = score * x");
  problem.operands[0].gradient = true;
  EXPECT_EQ(added_up(problem, {0}), (AddedUp{0, {"no_operand_gradient"}})) << "its walk has no sums along queries";
}

/// Until somebody has measured it (LearnedAttentionKernelTimes).
TEST(KernelsBackend, AddsDqUpBesideOperandsGradientsFirst) {
  for (const char* const program :
       {"operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx",
        "table x: f32 rank 1\nvalue = score + x[max(min(kv_idx - q_idx, 128), -128) + 128]"}) {
    SCOPED_TRACE(program);
    AttentionProblem problem = problem_of(program);
    problem.operands[0].gradient = true;
    if (problem.program.operands()[0].is_table()) problem.operands[0].shape = {257};
    std::vector<UnsupportedReason> reasons;
    const auto candidates =
        kernels_backend().candidates(compiler::compile(problem), {Direction::kBackward, true, {0}}, h200(), reasons);
    const auto is_fused = [](const Candidate& each) { return each.label.find("dq added up") != std::string::npos; };
    const auto fused = std::ranges::find_if(candidates, is_fused);
    ASSERT_NE(fused, candidates.end());
    for (const Candidate& other : candidates) {
      if (&other == &*fused || other.label.find("hopper") == std::string::npos) continue;
      EXPECT_GT(other.predicted.milliseconds, fused->predicted.milliseconds);
      EXPECT_NE(other.structural_key, fused->structural_key);
      EXPECT_NE(other.plan_key, fused->plan_key);
      EXPECT_NE(other.workspace_bytes, fused->workspace_bytes);
    }
  }
}

/// If few rows see all keys, the longest ones are first. If many do, or the contents decide which, the order stays.
TEST(KernelsBackend, PutsTheLongestRowsFirstWhereTheyAreFew) {
  const auto in_order = [](const Candidate& each) {
    return each.label.find("longest rows first") != std::string::npos;
  };
  const auto global = candidates_of(
      problem_of("value = score\nkeep = kv_idx < 64 | q_idx < 64 | abs(q_idx - kv_idx) < 512"), Direction::kForward);
  const auto first =
      std::ranges::min_element(global, {}, [](const Candidate& each) { return each.predicted.milliseconds; });
  EXPECT_TRUE(in_order(*first)) << first->label;
  EXPECT_EQ(std::ranges::count_if(global, in_order), 2);
  for (const Candidate& other : global) {
    if (!in_order(other)) {
      EXPECT_NE(other.structural_key, first->structural_key) << other.label;
    }
  }
  const auto grid = candidates_of(
      problem_of("value = score\nkeep = abs(q_idx // 64 - kv_idx // 64) <= 4 & abs(q_idx % 64 - kv_idx % 64) <= 4"),
      Direction::kForward);
  EXPECT_FALSE(
      in_order(*std::ranges::min_element(grid, {}, [](const Candidate& each) { return each.predicted.milliseconds; })));
  for (const char* const other : {kCausal,
                                  "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = "
                                  "score\nkeep = x == y | kv_idx < 64"})
    EXPECT_EQ(std::ranges::count_if(candidates_of(problem_of(other), Direction::kForward), in_order), 0) << other;
}

/// A fixed order is assumed to cost a small part of the time, so smaller differences don't outweigh it.
TEST(KernelsBackend, PrefersAFixedOrderToALittleTime) {
  const auto candidates = candidates_of(problem_of(kCausal), Direction::kBackward);
  ASSERT_NE(candidates[0].label.find("dq added up"), std::string::npos);
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(kCausal));
  const kernels::HopperShape shape = kernels::hopper_fused_shape(compiled.problem);
  const double predicted = kernels::tiled_time(compiled, Direction::kBackward, shape,
                                               kernels::mask_work(compiled, Direction::kBackward, shape.score_tile()),
                                               h200().device.rates, kernels::kHopperFusedTimes, false)
                               .milliseconds;
  EXPECT_DOUBLE_EQ(candidates[0].predicted.milliseconds, 1.05 * predicted);
}

/// Rows that begin at no multiple of 16 bytes.
constexpr Strides kOddRows{std::int64_t{4096} * 16 * 129, 129, std::int64_t{16} * 129, 1};

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
  problem.o.strides = kOddRows;
  EXPECT_EQ(ids(problem, Direction::kBackward, h200()), Ids{"copy_alignment"});
  problem = problem_of(kCausal);
  problem.k.strides = kOddRows;
  EXPECT_EQ(forward_ids(h200()), Ids{"copy_alignment"});
  problem = problem_of(kCausal);
  problem.dtype_o = DType::kF32;
  EXPECT_EQ(ids(problem, Direction::kBackward, h200()), Ids{"output_dtype"});
  problem = problem_of(kCausal);
  problem.backward = false;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{12, 2000, 400};
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

TEST(KernelsBackend, RefusesWithEveryReason) {
  AttentionProblem problem = problem_of(kCausal);
  const auto ids = [&](const Target* target, const Task& task) {
    std::vector<std::string> found;
    for (const UnsupportedReason& reason : kernels_backend().objections(compiler::compile(problem), task, target))
      if (reason.id != "no_library") found.push_back(reason.id);
    return found;
  };
  const Task forward{Direction::kForward, true, {}}, backward{Direction::kBackward, true, {0}};
  problem.dim_qk = 584;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{"head_dim"});
  problem.dim_qk = 264;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{});
  EXPECT_EQ(ids(nullptr, backward), (std::vector<std::string>{"head_dim", "no_operand_gradient"}));
  problem.dim_qk = 128;
  EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{});
  EXPECT_EQ(ids(nullptr, backward), std::vector<std::string>{"no_operand_gradient"});
  problem.dtype_o = DType::kF32;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    problem.dtype = dtype;
    EXPECT_EQ(ids(nullptr, forward), std::vector<std::string>{}) << to_string(dtype);
  }
}

/// A module for each large kernel; the small kernels beside a forward's have one of their own, where there are some.
std::size_t expected_modules(Direction direction, const kernels::AnyShape& shape, bool has_states) {
  const kernels::KernelTraits traits = kernels::traits_of(shape);
  if (direction == Direction::kBackward) return traits.separate_dv ? 3 : 2;
  return has_states && !traits.pack_gqa ? 2 : 1;
}

struct ModulesCase {
  const char* program;
  std::int64_t dim;
};

class KernelsBackendModules : public testing::TestWithParam<ModulesCase> {};

TEST_P(KernelsBackendModules, HaveEveryKernelOfACallInOneOfThem) {
  AttentionProblem problem = problem_of(GetParam().program);
  problem.dim_qk = problem.dim_v = GetParam().dim;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    std::vector<kernels::AnyShape> shapes{kernels::portable_shape(problem, direction),
                                          kernels::hopper_shapes(problem, direction).front()};
    if (direction == Direction::kForward) {
      shapes.push_back(kernels::split_kv_shapes(problem, h200().device).front());
    } else if (problem.dim_qk <= 128) {
      shapes.push_back(kernels::hopper_fused_shape(problem));
    }
    for (const kernels::AnyShape& shape : shapes) {
      const std::vector<std::string> modules =
          kernels::render_modules(kernels::attention_source(compiled, direction, shape));
      const kernels::KernelCall made = test::attention_call(compiled, direction, shape);
      const bool has_states = problem.program.keep() != kNoNode;
      EXPECT_EQ(modules.size(), expected_modules(direction, shape, has_states));
      for (const kernels::KernelLaunch& launch : made.launches()) {
        const std::string definition = concat(") ", launch.kernel, "(");
        EXPECT_EQ(std::ranges::count_if(
                      modules, [&](const std::string& text) { return text.find(definition) != std::string::npos; }),
                  1)
            << launch.kernel;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, KernelsBackendModules,
    testing::Values(ModulesCase{"value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512", 128},
                    ModulesCase{"value = score * 2.0", 128},
                    ModulesCase{"value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512", 256}));

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

  const auto targets = kernels::operand_targets(compiled, std::vector<std::uint32_t>{0, 1}, kernels::Gains::kBeside);
  const kernels::HopperShape shape = kernels::hopper_shapes(problem, Direction::kBackward).front();
  const std::vector<std::string> modules =
      kernels::render_modules(kernels::attention_source(compiled, Direction::kBackward, shape, targets));
  const kernels::KernelCall made = test::attention_call(compiled, Direction::kBackward, shape, targets);
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

TEST(KernelsBackend, SumsAPositionTableBesideTheBackwardWhereItsSumsAreNotTooLarge) {
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
  EXPECT_FALSE(kernels::serializes_products("wgmma is used\nwhat is serialized is another line's"));
  EXPECT_FALSE(kernels::serializes_products("serialized wgmma"));
}

TEST(KernelsBackend, ReadsSpillsFromTheCompilersReport) {
  EXPECT_EQ(kernels::register_spill_bytes("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), 0);
  EXPECT_EQ(kernels::register_spill_bytes(
                "0 bytes spill stores\n 24 bytes stack, 48 bytes spill stores, 24 bytes spill loads"),
            48);
  EXPECT_EQ(kernels::register_spill_bytes("7 bytes spill stores"), 7);
  EXPECT_EQ(kernels::register_spill_bytes(" bytes spill stores"), 0);
}

}  // namespace
}  // namespace scoremod::backend
