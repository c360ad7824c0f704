// Trials of the pass for operand gradients. A problem's own small one has the same structure. Right results of the pass
// are accepted, also for random problems, and wrong sums and stores are found.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/operand_gradients/gradient_source.hpp"
#include "backend/cuda/operand_gradients/operand_gradients.hpp"
#include "backend/cuda/operand_gradients/operand_gradients_backend.hpp"
#include "check/random_problem.hpp"
#include "check/zoo_cases.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/problem_for.hpp"
#include "support/rounded_backward.hpp"
#include "support/test_seed.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::backend::cuda {
namespace {

using compiler::CompiledProblem;

/// The operands whose gradients the pass makes; none where it refuses the problem.
std::vector<std::uint32_t> operands_of(const CompiledProblem& problem) {
  if (!problem.backward || is_float8(problem.problem.dtype)) return {};
  std::vector<std::uint32_t> operands = problem::operands_with_gradient(problem.problem);
  if (const auto sink = problem::sink_operand(problem.problem)) std::erase(operands, *sink);
  return OperandGradients::unsupported_reasons(problem).empty() ? operands : std::vector<std::uint32_t>{};
}

Bytes structure(const CompiledProblem& problem) { return OperandGradients::structure(problem, operands_of(problem)); }

/// The pass's operand gradients with its roundings: float32 products of rounded tensors, weights from the LSE, deltas
/// of o or of weights. A fault may be planted afterwards.
class Pass final : public BackwardPlan {
 public:
  using Spoil = std::function<void(const BackwardTensors&)>;
  explicit Pass(const CompiledProblem& problem, Spoil spoil = {}, test::KernelFault fault = test::KernelFault::kNone)
      : plan_(problem,
              {.delta_of_weights = has_weighted_deltas(problem.problem),
               .cut_off = true,
               .largest_read_lse = std::numeric_limits<float>::infinity()},
              fault),
        spoil_(std::move(spoil)) {}
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const BackwardTensors& t, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    plan_.execute(t, parameters, workspace);
    if (spoil_) spoil_(t);
  }

 private:
  const test::RoundedBackward plan_;
  const Spoil spoil_;
};

std::vector<verification::OutputError> errors_of(verification::Trial& trial, const Pass& pass) {
  const verification::OperationErrors errors{operand_gradients_backend().function_error(),
                                             operand_gradients_backend().product_error()};
  return verification::verify_backward(trial, pass, host_memory(), operands_of(trial.problem()), /*attention=*/false,
                                       errors);
}

std::string reason_of(const std::vector<verification::OutputError>& outputs) {
  return verification::verdict_of(outputs, Direction::kBackward).reason;
}

std::string wrong(verification::Trial& trial, const Pass& pass) { return reason_of(errors_of(trial, pass)); }

/// Whether the plain evaluation has lost a digit of a gradient that is refused. Its terms cancel, as do those of rows
/// with one large weight, and chance decides whose rounding is twice the other's.
bool is_mostly_rounding(const std::vector<verification::OutputError>& outputs) {
  constexpr double kLostDigit = 0.1;
  return std::ranges::all_of(outputs, [](const verification::OutputError& output) {
    return output.right() || output.tolerance >= kLostDigit;
  });
}

/// Whether the rounding of a float32 LSE makes weights that are e times too large. The pass reads weights from it, so
/// they may overflow, and a trial refuses the pass rightly.
bool has_weights_of_no_meaning(const CompiledProblem& problem) {
  verification::Trial trial(problem);
  return std::ranges::any_of(trial.forward_truth().lse,
                             [](double lse) { return std::isfinite(lse) && std::abs(lse) * 0x1p-24 >= 1; });
}

AttentionProblem problem_of(const std::string& program, std::int64_t table_extent = 16) {
  AttentionProblem problem = test::small_problem();
  problem.seq_q = 100;
  problem.seq_kv = 130;
  problem.dim_qk = problem.dim_v = 16;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  return test::problem_for(Program::parse(program), problem, table_extent);
}

constexpr const char* kKeyBias = "operand bias: f32 [h, kv_idx]\nvalue = score + bias\nkeep = kv_idx <= q_idx";
constexpr const char* kTable =
    "table bias: f32 rank 2\nvalue = score + bias[min(max(q_idx - kv_idx, 0), 15), h]\nkeep = kv_idx <= q_idx";

TEST(OperandGradientsTrial, HasTheStructureOfItsProblem) {
  std::vector<checking::CheckCase> cases = checking::zoo_cases(std::array{DType::kBF16});
  checking::RandomProblemOptions options;
  options.backward_probability = 1;
  options.row_alignment = 8;
  options.head_dims = {8, 64};
  for (std::uint64_t i = 0; i < 150; ++i) cases.push_back(checking::random_problem(test::test_seed() + i, options));
  int compared = 0;
  for (checking::CheckCase& made : cases) {
    for (const bool deterministic : {false, true}) {
      made.problem.deterministic = deterministic;
      const CompiledProblem problem = compiler::compile(made.problem);
      if (operands_of(problem).empty()) continue;
      verification::Trial trial(problem);
      EXPECT_EQ(structure(problem), structure(trial.problem())) << made.name << made.problem.program.to_string();
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(OperandGradientsTrial, IsAnotherWhereThePassDoesSomethingElse) {
  const auto of = [](const AttentionProblem& problem) { return structure(compiler::compile(problem)); };
  const AttentionProblem bias = problem_of(kKeyBias);
  const Bytes own = of(bias);
  AttentionProblem other = bias;
  other.batch = 3;
  other.seq_q = 1000;
  other.operands[0].strides = {200, 1};
  EXPECT_EQ(of(other), own) << "sizes alone";
  const auto differs = [&](const char* what, const std::function<void(AttentionProblem&)>& change) {
    AttentionProblem changed = bias;
    change(changed);
    EXPECT_NE(of(changed), own) << what;
  };
  differs("dtype", [](AttentionProblem& p) { p.dtype = DType::kF16; });
  differs("dtype of an operand", [](AttentionProblem& p) { p.operands[0].dtype = DType::kBF16; });
  differs("exact sums", [](AttentionProblem& p) { p.deterministic = true; });
  differs("offsets", [](AttentionProblem& p) { p.index_offsets = true; });
  differs("no gradient", [](AttentionProblem& p) { p.operands[0].gradient = false; });
  differs("deltas of weights", [](AttentionProblem& p) { p.seq_q = 40; });
  EXPECT_NE(of(problem_of("operand bias: f32 [h, q_idx]\nvalue = score + bias\nkeep = kv_idx <= q_idx")), own);
  EXPECT_NE(of(problem_of("operand bias: f32 [h, kv_idx]\nvalue = score * bias\nkeep = kv_idx <= q_idx")), own);
  EXPECT_NE(of(problem_of(kTable)), of(problem_of(kTable, 100))) << "sums in shared memory, and not";
}

TEST(OperandGradientsTrial, IsAskedForByEveryCandidate) {
  const CompiledProblem problem = compiler::compile(problem_of(kTable));
  Target target;
  target.device.compute_capability = 90;
  std::vector<UnsupportedReason> reasons;
  const Task task{Direction::kBackward, false, operands_of(problem)};
  for (const Candidate& candidate : operand_gradients_backend().candidates(problem, task, target, reasons)) {
    EXPECT_FALSE(candidate.structural_key.empty());
    target.device.compute_capability = 80;
    EXPECT_NE(candidate.structural_key,
              operand_gradients_backend().candidates(problem, task, target, reasons)[0].structural_key);
  }
}

TEST(OperandGradientsTrial, TakesThePassOfRandomProblems) {
  checking::RandomProblemOptions options;
  options.max_scores = 20000;
  options.backward_probability = 1;
  options.row_alignment = 8;
  options.head_dims = {8, 32, 64};
  options.shifted_value_probability = 0.3;
  options.few_rows_probability = 0.2;
  options.row_class_probability = options.sink_probability = 0.2;
  int tried = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const checking::CheckCase made = checking::random_problem(test::test_seed() + i, options);
    const CompiledProblem problem = compiler::compile(made.problem);
    if (operands_of(problem).empty()) continue;
    verification::Trial trial(problem);
    const std::vector<verification::OutputError> outputs = errors_of(trial, Pass(trial.problem()));
    const std::string reason = reason_of(outputs);
    if (!reason.empty() && (has_weights_of_no_meaning(problem) || is_mostly_rounding(outputs))) continue;
    EXPECT_EQ(reason, "") << "problem " << i << " (SCOREMOD_TEST_SEED=" << test::test_seed() << ")\n"
                          << made.problem.program.to_string();
    ++tried;
  }
  EXPECT_GT(tried, 5);
}

/// Every kind of sum: along queries, keys, both, neither, and tables.
TEST(OperandGradientsTrial, FindsWhatIsSummedOrStoredWrong) {
  for (const char* program : {kKeyBias, kTable, "operand bias: f32 [b, q_idx]\nvalue = score * bias",
                              "operand slope: f32 [h]\nvalue = score + f32(kv_idx - q_idx) * slope * 0.1",
                              "operand bias: f32 [q_idx, kv_idx]\nvalue = score + bias",
                              "operand bias: f32 [b, h, q_idx, kv_idx]\nvalue = score + bias"}) {
    const CompiledProblem problem = compiler::compile(problem_of(program));
    verification::Trial trial(problem);
    EXPECT_EQ(wrong(trial, Pass(trial.problem())), "") << program;
    const OperandSpec& spec = problem::spec_of(trial.problem().problem, 0);
    const auto entries = problem::tensor_of(spec.name, spec).elements();
    const auto gradient = [](const BackwardTensors& t) { return static_cast<float*>(t.d_operands[0]); };
    const std::vector<std::pair<const char*, Pass::Spoil>> faults{
        {"each entry stored in the next one's place",
         [&](const BackwardTensors& t) { std::rotate(gradient(t), gradient(t) + entries - 1, gradient(t) + entries); }},
        {"sums of half the rows",
         [&](const BackwardTensors& t) {
           for (std::int64_t i = 0; i < entries; ++i) gradient(t)[i] *= 0.5F;
         }},
        {"an entry added twice",
         [&](const BackwardTensors& t) { *std::max_element(gradient(t), gradient(t) + entries) *= 2; }},
        {"an entry not stored",
         [&](const BackwardTensors& t) { gradient(t)[entries - 1] = std::numeric_limits<float>::quiet_NaN(); }}};
    for (const auto& [name, spoil] : faults)
      EXPECT_NE(wrong(trial, Pass(trial.problem(), spoil)), "") << name << "\n" << program;
  }
}

TEST(OperandGradientsTrial, FindsAMissingDeltaOfRowsWithOneKey) {
  const CompiledProblem problem =
      compiler::compile(problem_of("operand row_key: i32 [b, h, q_idx]\noperand bias: f32 [h, q_idx]\nvalue = score * "
                                   "bias\nkeep = kv_idx == row_key"));
  verification::Trial trial(problem);
  EXPECT_EQ(wrong(trial, Pass(trial.problem())), "");
  EXPECT_NE(wrong(trial, Pass(trial.problem(), {}, test::KernelFault::kNoDeltaOfOneKey)), "");
}

}  // namespace
}  // namespace scoremod::backend::cuda
