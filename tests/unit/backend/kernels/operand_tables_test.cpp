// Gradients of tables, and of operands along queries and keys that batches or heads share, from tiles of scores.

#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "backend/cuda/text/exact_sum.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "base/fail.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/check_report.hpp"
#include "support/test_seed.hpp"
#include "unit/backend/kernels/operand_case.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::backend::kernels {
namespace {

using Case = OperandCase;
using Emulated = EmulatedOperands;

/// Tables at any indices, and operands along queries and keys that batches or heads share: only separate kernels sum
/// these.
const Case kTableCases[] = {
    {"TableOfKeys", "table x: f32 rank 2\nvalue = score + x[kv_idx // 3 + q_idx % 2, h]\nkeep = kv_idx <= q_idx + 9"},
    {"OneEntry", "table x: f32 rank 2\nvalue = score * x[0, 0]\nkeep = kv_idx <= q_idx + 60"},
    {"ClampedIndices",
     "table x: f32 rank 2\nvalue = score + tanh(x[kv_idx - q_idx, q_idx - 3]) + x[kv_idx * 7, h + 1]",
     Sink::kLearned,
     0.0F,
     {0, 0, 5, 6}},
    {"TwoTables",
     "table half: f32 rank 2\ntable y: f32 rank 2\nvalue = score * y[kv_idx % 40, h] + half[q_idx % 32, h] * half[2, "
     "b]",
     Sink::kOffByOne,
     0.3F,
     {},
     2,
     4,
     2},
    {"TableRaggedOfAnyIndices",
     "table x: f32 rank 2\nvalue = score * (1.0 + x[(kv_idx + q_idx) // 9, h])",
     Sink::kNone,
     0.2F,
     {},
     3,
     2,
     1,
     240,
     150,
     ragged},
    {"TableInFloats",
     "table x: f32 rank 2\noperand y: i32 [b, kv_idx]\nvalue = score + x[y, h]",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     100,
     130,
     in_floats},
    {"SharedByBatches", "operand half: f32 [h, q_idx, kv_idx]\nvalue = score + half\nkeep = kv_idx <= q_idx + 9"},
    {"SharedByAll",
     "operand x: f32 [q_idx, kv_idx]\nvalue = score * x\nkeep = kv_idx % 5 != 3 & kv_idx <= q_idx + 60",
     Sink::kLearned,
     0.3F,
     {0, 0, 3, 5},
     3,
     4,
     2},
    {"SharedByHeadsRagged",
     "operand half: f32 [b, q_idx, kv_idx]\nvalue = score + tanh(half)",
     Sink::kNone,
     0.2F,
     {},
     3,
     2,
     1,
     240,
     150,
     ragged},
    {"SharedInFloats",
     "operand x: f32 [q_idx, kv_idx]\nvalue = tanh(score) * x",
     Sink::kNone,
     0.0F,
     {},
     2,
     2,
     2,
     100,
     130,
     in_floats},
    {"SharedWithGivenDeltas",
     "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x",
     Sink::kNone,
     0.0F,
     {},
     2,
     2,
     2,
     140,
     90,
     with_given_deltas},
    {"OfEveryKind",
     "table x: f32 rank 2\noperand s: f32 [q_idx, kv_idx]\noperand half: f32 [h, q_idx, kv_idx]\noperand e: f32 [b, h, "
     "q_idx, kv_idx]\noperand t: f32 []\noperand r: f32 [b, q_idx]\noperand c: f32 [h, kv_idx]\noperand n: f32 [h, "
     "q_idx]\nvalue = score * t + x[kv_idx % 7, h] * s + half * c + e + r\nkeep = kv_idx <= q_idx + 30",
     Sink::kLearned, 0.2F},
    {"MoreThanThereIsRoomForBeside",
     "operand a: f32 [h]\noperand c: f32 [b]\noperand d: f32 [q_idx]\noperand e: f32 [b, q_idx]\noperand f: f32 "
     "[]\noperand "
     "g: f32 [kv_idx]\noperand i: f32 [b, kv_idx]\noperand j: f32 [h, kv_idx]\nvalue = score * a + c * d + e + f * g + "
     "i * "
     "j\nkeep = kv_idx <= q_idx + 30",
     Sink::kNone,
     0.2F,
     {},
     2,
     2,
     1,
     70,
     66},
    {"OneQuery",
     "table x: f32 rank 2\noperand y: f32 [q_idx, kv_idx]\nvalue = score * y + x[q_idx - 5, h]",
     Sink::kLearned,
     0.0F,
     {},
     3,
     2,
     2,
     1,
     33},
};

const Case& case_named(std::string_view name) { return *std::ranges::find(kTableCases, name, &Case::name); }

class OperandTables : public ::testing::TestWithParam<Case> {};

TEST_P(OperandTables, AreRight) { test::expect_right(check_of(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Cases, OperandTables, ::testing::ValuesIn(kTableCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// The results that a fault of these kernels would spoil, each in a case that shows it.
TEST(OperandTablesRun, FaultsAreSeen) {
  const auto passes = [](const char* name, const Fault& fault) { return check_of(case_named(name), fault).passed(); };
  EXPECT_FALSE(passes("TableOfKeys", {"before.entry != entry && before.entry != kNoEntry", "false"}))
      << "sums are lost";
  EXPECT_FALSE(passes("TableOfKeys", {"if (kTableReads > 0) tables.finish(p);", ""}));
  EXPECT_FALSE(passes("OneEntry", {"if (own == least) own = kNone;", ""})) << "a value is added twice";
  EXPECT_FALSE(passes("ClampedIndices", {"return i < 0 ? 0 : i >= extent", "return i < 0 ? 1 : i >= extent"}));
  EXPECT_FALSE(passes("TwoTables", {"gains.entries[2] = (int)entries_of", "gains.entries[2] = 0 * (int)entries_of"}))
      << "the first table's entries";
  EXPECT_FALSE(passes("TableOfKeys", {"* kSumWords) ((long long*)operand.sums)[word] = 0;", "* kSumWords) return;"}));
  EXPECT_FALSE(passes("SharedByBatches", {"place.b + i / heads", "place.b"})) << "one batch twice";
  EXPECT_FALSE(passes("SharedByAll", {"h = place.h + i % heads", "h = place.h"}));
  EXPECT_FALSE(
      passes("SharedByBatches", {"if (gains.kept) sums.at[m][n][e] +=", "if (gains.kept) sums.at[m][n][e] ="}));
  EXPECT_FALSE(passes("OfEveryKind", {"sum_shared_elements<1>", "sum_shared_elements<0>"})) << "another operand's";
  EXPECT_FALSE(passes("OfEveryKind", {"gradient = 0.0f;", "gradient = 1.0f;"}));
}

/// Random problems with such an operand, whatever else they have: layouts, lengths, varlen tensors, dropout, sinks, o
/// in another dtype, every dtype.
TEST(OperandTablesRun, OfRandomProblemsAreRight) {
  checking::RandomProblemOptions options;
  options.max_scores = 4000;
  options.few_rows_probability = 0.2;
  options.backward_probability = 1;
  options.lengths_probability = options.sink_probability = options.dropout_probability = options.ragged_probability =
      options.gradient_layout_probability = options.output_dtype_probability = 0.3;
  constexpr int kProblems = 4, kMostDrawn = 200;
  int run = 0;
  for (int i = 0; i < kMostDrawn && run < kProblems; ++i) {
    const checking::CheckCase drawn = checking::random_problem(test::test_seed() + static_cast<unsigned>(i), options);
    const compiler::CompiledProblem compiled = compiler::compile(drawn.problem);
    if (!compiled.backward || !problem_objections(compiled, Direction::kBackward).empty()) continue;
    const auto operands = problem::operands_with_gradient(compiled.problem);
    const auto is_new = [](const OperandTarget& target) {
      return target.sum == OperandSum::kTable || target.sum == OperandSum::kShared;
    };
    if (std::ranges::none_of(operand_targets(compiled, operands, Gains::kApart), is_new)) continue;
    SCOPED_TRACE(
        concat("seed ", test::test_seed() + static_cast<unsigned>(i), "\n", drawn.problem.program.to_string()));
    ++run;
    Emulated emulated(compiled, portable(compiled.problem), {}, Gains::kApart);
    RandomInputOptions inputs;
    inputs.seed = drawn.seed;
    inputs.overrides = drawn.fills;
    CheckOptions check;
    check.call = drawn.call;
    check.seed = drawn.seed;
    test::expect_right(
        checking::check_subject(compiled, emulated.subject(), random_inputs(compiled.problem, inputs), check));
  }
  EXPECT_EQ(run, kProblems);
}

/// In whatever order warps and blocks run.
TEST(OperandTablesRun, GivesTheSameBitsEachTime) {
  const auto same_bits = [&](const char* name, const Fault& fault) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of(case_named(name)));
    Emulated emulated(compiled, portable(compiled.problem), fault, Gains::kApart);
    emulated.run_twice();
    checking::check_subject(compiled, emulated.subject(), random_inputs(compiled.problem), CheckOptions());
    return emulated.has_same_bits();
  };
  EXPECT_TRUE(same_bits("SharedByBatches", {}));
  EXPECT_TRUE(same_bits("TwoTables", {}));
  // As atomic additions of floats would.
  const std::string in_floats = "((float*)sums)[entry * 26] += value; return;";
  EXPECT_FALSE(same_bits("TwoTables", {"const unsigned bits = bits_of_float(value)",
                                       in_floats + "\n  const unsigned bits = bits_of_float(value)"}));
}

TEST(OperandTablesRun, TakeNoMemoryForEachPairOfAQueryAndAKey) {
  const auto workspace = [](const char* program) {
    AttentionProblem problem = problem_of({"", program, Sink::kNone, 0, {}, 4, 8, 8, 1000, 900});
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    return operand_layout(compiled, operand_targets(compiled, std::vector<std::uint32_t>{0}, Gains::kApart),
                          portable_shape(problem, Direction::kBackward))
        .workspace_bytes();
  };
  const std::size_t rows = std::size_t{4} * 8 * 1000 * 2 * sizeof(float);
  EXPECT_EQ(workspace("operand x: f32 [q_idx, kv_idx]\nvalue = score + x"), rows);
  // An exact sum for each of 41 x 8 entries.
  EXPECT_EQ(workspace("table x: f32 rank 2\nvalue = score + x[kv_idx % 41, h]"),
            rows + std::size_t{41} * 8 * cuda::kExactSumBytes);
}

/// A trial's plan of a problem on the emulated device.
class EmulatedPlan final : public BackwardPlan {
 public:
  EmulatedPlan(const compiler::CompiledProblem& compiled, std::span<const std::uint32_t> operands, const Fault& fault)
      : kernels_(compiled, operand_targets(compiled, operands, Gains::kApart), portable(compiled.problem), fault) {}
  std::size_t workspace_bytes() const override { return kernels_.kernels().workspace_bytes(); }
  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    kernels_.run(kernels_.kernels().arguments(tensors, parameters, workspace.data()), 1);
  }

 private:
  test::EmulatedOperandKernels kernels_;
};

/// The trial that a plan must pass on a device before it runs.
TEST(OperandTablesRun, AreRefusedByTheirTrialWhereASumIsWrong) {
  const auto verdict = [](const char* name, const Fault& fault) {
    Case small = case_named(name);
    small.seq_q = small.seq_kv = 70;
    const compiler::CompiledProblem subject = compiler::compile(problem_of(small));
    verification::Trial trial(subject);
    const std::vector<std::uint32_t> operands{0};
    const EmulatedPlan plan(trial.problem(), operands, fault);
    const auto errors = verification::verify_backward(trial, plan, host_memory(), operands, false);
    return verification::verdict_of(errors, Direction::kBackward).reason;
  };
  EXPECT_EQ(verdict("TableOfKeys", {}), "");
  EXPECT_NE(verdict("TableOfKeys", {"before.entry != entry && before.entry != kNoEntry", "false"}), "");
  EXPECT_EQ(verdict("SharedByBatches", {}), "");
  EXPECT_NE(verdict("SharedByBatches", {"place.b + i / heads", "place.b"}), "");
}

TEST(OperandKernelsBackend, RefusesTablesWhoseEntriesHaveNoNumbers) {
  const auto ids = [](std::vector<std::uint32_t> operands) {
    AttentionProblem problem =
        problem_of({"", "table x: f32 rank 1\ntable y: f32 rank 1\nvalue = score + x[kv_idx] * y[q_idx]"});
    for (OperandSpec& operand : problem.operands) operand.shape = {std::int64_t{1} << 30};  // the most of one
    std::vector<std::string> found;
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    for (const UnsupportedReason& reason :
         operand_kernels_backend().objections(compiled, {Direction::kBackward, false, std::move(operands)}, nullptr)) {
      if (reason.id != "no_library") found.push_back(reason.id);
    }
    return found;
  };
  EXPECT_EQ(ids({0}), std::vector<std::string>{});
  EXPECT_EQ(ids({0, 1}), std::vector<std::string>{"operand_gradient_size"});
}

}  // namespace
}  // namespace scoremod::backend::kernels
