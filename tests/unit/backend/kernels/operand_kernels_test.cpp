// Gradients of operands from tiles of scores, on a host, thread by thread, against the float64 oracle.

#include "backend/kernels/operand_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include <gtest/gtest.h>

#include "backend/kernels/hopper_shape.hpp"
#include "base/fail.hpp"
#include "check/check_subject.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/call_tensors.hpp"
#include "support/check_report.hpp"
#include "support/emulated_device.hpp"
#include "support/test_seed.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = std::pair<std::string, std::string>;

CompileOptions on_the_host() {
  CompileOptions options;
  options.backend = "cpu";
  return options;
}

/// The host's attention, with the operands' gradients from the emulated device, which writes over the rest of the
/// backward too where gains are summed beside it.
class Emulated {
 public:
  Emulated(const compiler::CompiledProblem& compiled, const TileShape& shape, const Fault& fault, Gains gains)
      : problem_(compiled.problem),
        host_(Attention::compile(compiled.problem, on_the_host())),
        gradients_(compiled, operand_targets(compiled, problem::operands_with_gradient(compiled.problem), gains), shape,
                   fault, gains) {}

  checking::Subject subject() {
    checking::Subject subject = checking::subject_of(host_);
    subject.backend = "emulated operand kernels";
    workspace_.resize(gradients_.kernels().workspace_bytes() / sizeof(Line) + 1);
    subject.backward = [this, whole = subject.backward](const BackwardArgs& args, Buffer workspace) {
      BackwardArgs attention = args;
      attention.d_operands = {};
      whole(attention, workspace);
      std::memset(workspace_.data(), 0xff, workspace_.size() * sizeof(Line));  // NaN
      const Buffer own{workspace_.data(), workspace_.size() * sizeof(Line)};
      const auto call = runtime::check_call(problem_, args, own, gradients_.kernels().workspace_bytes(), host_memory());
      const auto run = [&](unsigned seed) {
        gradients_.run(gradients_.kernels().arguments(call.tensors, call.parameters, static_cast<std::byte*>(own.data)),
                       seed);
      };
      run(1);
      if (!twice_) return;
      const auto first = bytes_of(args.d_operands);
      run(2);
      same_bits_ = bytes_of(args.d_operands) == first;
    };
    return subject;
  }
  /// Has the backward run in another order too, and compares operands' gradients.
  void run_twice() { twice_ = true; }
  bool has_same_bits() const { return same_bits_; }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };

  static std::vector<std::vector<std::byte>> bytes_of(std::span<const OperandGradient> gradients) {
    std::vector<std::vector<std::byte>> all;
    for (const OperandGradient& gradient : gradients) {
      const auto* const data = static_cast<const std::byte*>(gradient.buffer.data);
      all.emplace_back(data, data + gradient.buffer.bytes);
    }
    return all;
  }

  const AttentionProblem& problem_;
  bool twice_ = false, same_bits_ = false;
  Attention host_;
  test::EmulatedOperandKernels gradients_;
  std::vector<Line> workspace_;
};

struct Case {
  const char* name;
  const char* program;
  Sink sink = Sink::kNone;
  float dropout = 0;
  IndexOffsets offsets = {};
  std::int64_t batch = 2, heads_q = 2, heads_kv = 1, seq_q = 140, seq_kv = 90;
  void (*change)(AttentionProblem&) = nullptr;
};

/// Two fifths of the room are empty, so that blocks of queries, and of keys, lie beyond a sequence's end.
void ragged(AttentionProblem& p) {
  p.tokens_q = p.batch * p.seq_q * 3 / 5;
  p.tokens_kv = p.batch * p.seq_kv * 3 / 5;
  p.q = p.o = p.k = p.v = {Layout::kTHD, {}};
  p.index_offsets = false;
}
void with_given_deltas(AttentionProblem& p) { p.given_deltas = true; }
/// Of two blocks of 64 dims.
void of_wider_heads(AttentionProblem& p) { p.dim_qk = 72; }
void that_are_copied(AttentionProblem& p) {
  of_wider_heads(p);
  p.index_offsets = false;
}
void in_floats(AttentionProblem& p) { p.dtype = DType::kF32; }

AttentionProblem problem_of(const Case& from) {
  AttentionProblem p;
  p.batch = from.batch;
  p.heads_q = from.heads_q;
  p.heads_kv = from.heads_kv;
  p.seq_q = from.seq_q;
  p.seq_kv = from.seq_kv;
  p.dim_qk = 24;
  p.dim_v = 16;
  p.dtype = DType::kBF16;
  p.sink = from.sink;
  p.dropout = from.dropout;
  p.backward = p.stats = p.index_offsets = true;
  p.program = Program::parse(from.program);
  for (const OperandDecl& decl : p.program.operands()) {
    p.operands.push_back(problem::default_spec(p, decl));
    if (decl.is_table()) p.operands.back().shape = {41, p.heads_q};
  }
  for (OperandSpec& operand : p.operands)
    if (operand.name == "half") operand.dtype = DType::kBF16;
  if (from.change != nullptr) from.change(p);
  return problem::with_implied_operands(std::move(p));
}

TileShape portable(const AttentionProblem& problem) { return tile_shape(problem, Direction::kBackward); }
/// The smaller one has room for diagonals at every head dim.
TileShape hopper(const AttentionProblem& problem) {
  const std::vector<TileShape> shapes = hopper_shapes(problem, Direction::kBackward);
  return shapes.front().key_step > kMaxDiagonalStep ? shapes.back() : shapes.front();
}

CheckReport check_of(const Case& from, const Fault& fault = {}, Gains gains = Gains::kApart,
                     TileShape (&shape_of)(const AttentionProblem&) = portable) {
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(from));
  Emulated emulated(compiled, shape_of(compiled.problem), fault, gains);
  CheckOptions options;
  options.call.dropout_seed = 77;
  options.call.offsets = from.offsets;
  return checking::check_subject(compiled, emulated.subject(), random_inputs(compiled.problem), options);
}

constexpr const char* kElementsAndSums =
    "operand half: f32 [b, h, q_idx, kv_idx]\noperand x: f32 [b, q_idx]\noperand y: f32 [h, kv_idx]\noperand z: f32 "
    "[h]\nvalue = score * z + half * y + x\nkeep = kv_idx % 5 != 3 & kv_idx <= q_idx + 60";
const Case kCases[] = {
    {"Slopes", "operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx + 9"},
    {"OneNumber", "operand x: f32 []\nvalue = score * x\nkeep = kv_idx % 3 != 1"},
    {"AlongQueries",
     "operand half: f32 [b, q_idx]\noperand y: f32 [b, h]\nvalue = (score + y) * half\nkeep = kv_idx <= q_idx + 9"},
    {"AlongKeys", "operand x: f32 [h, kv_idx]\noperand half: f32 [kv_idx]\nvalue = tanh(score * x) + half"},
    {"OfElements",
     "operand half: f32 [b, h, q_idx, kv_idx]\noperand y: f32 [h]\nvalue = score * y + half\nkeep = kv_idx + 70 <= "
     "q_idx"},
    {"ASink", "value = score\nkeep = kv_idx + 40 <= q_idx", Sink::kLearned, 0.0F, {}, 2, 2, 2},
    {"SinkAndDropout",
     "operand x: f32 [h]\noperand y: f32 [kv_idx]\nvalue = score * x + y",
     Sink::kLearned,
     0.4F,
     {0, 0, 5, 6}},
    {"SinkAmongFewKeys", "operand x: f32 [h]\nvalue = score * x", Sink::kLearned, 0.0F, {}, 2, 2, 1, 140, 4},
    {"OfElementsRagged", kElementsAndSums, Sink::kNone, 0.0F, {}, 3, 2, 1, 240, 150, ragged},
    {"OfElementsWithGivenDeltas", kElementsAndSums, Sink::kOffByOne, 0.2F, {}, 2, 2, 2, 140, 90, with_given_deltas},
    {"OfElementsInFloats", kElementsAndSums, Sink::kNone, 0.0F, {}, 1, 2, 1, 100, 130, in_floats},
    {"OfElementsOfATable",
     "operand x: f32 [b, h, q_idx, kv_idx]\noperand half: f32 [b, h, q_idx, kv_idx]\nvalue = tanh(score * x) + half * "
     "half\nkeep = x > -0.5",
     Sink::kNone,
     0.0F,
     {0, 0, 3, 5}},
};

/// Over columns of tiles with gaps, with heads that share keys and rows without a key; Hopper kernels alone sum tables.
const Case kHopperCases[] = {
    {"TableByHead",
     "table x: f32 rank 2\nvalue = score + x[max(min(kv_idx - q_idx, 20), -20) + 20, h]\nkeep = kv_idx // 150 == q_idx "
     "// 150 | kv_idx < 9",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     430,
     290},
    {"TableWithSlopesAndKeys",
     "table x: f32 rank 2\noperand y: f32 [h]\noperand z: f32 [kv_idx]\nvalue = score * z + x[min(abs(kv_idx - q_idx), "
     "40), h] + y * f32(kv_idx - q_idx) * 0.01\nkeep = kv_idx + 70 <= q_idx",
     Sink::kLearned,
     0.2F,
     {0, 0, 5, 6},
     2,
     2,
     2,
     270,
     190,
     of_wider_heads},
    {"ElementsInTiles",
     "operand half: f32 [b, h, q_idx, kv_idx]\nvalue = score + half\nkeep = kv_idx // 150 == q_idx // 150",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     300,
     290},
    {"CopiedElements",
     "operand half: f32 [b, h, q_idx, kv_idx]\nvalue = tanh(score * half) + half\nkeep = kv_idx // 150 == q_idx // 150",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     300,
     256,
     that_are_copied},
    {"TableRagged",
     "table x: f32 rank 2\nvalue = score * (1.0 + x[(kv_idx - q_idx) // 9 + 20, h])",
     Sink::kNone,
     0.0F,
     {},
     3,
     2,
     1,
     240,
     150,
     ragged},
};

/// Of tables at any indices, and of operands along queries and keys that batches or heads share: kernels that do
/// nothing else alone sum these.
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

const Case& case_named(std::string_view name) {
  for (const std::span<const Case> cases : {std::span<const Case>(kCases), std::span<const Case>(kHopperCases)}) {
    const auto found = std::ranges::find(cases, name, &Case::name);
    if (found != cases.end()) return *found;
  }
  return *std::ranges::find(kTableCases, name, &Case::name);
}

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

class OperandKernelsRun : public ::testing::TestWithParam<Case> {};

TEST_P(OperandKernelsRun, IsRight) { test::expect_right(check_of(GetParam())); }
TEST_P(OperandKernelsRun, IsRightBesideTheBackward) { test::expect_right(check_of(GetParam(), {}, Gains::kBeside)); }
TEST_P(OperandKernelsRun, IsRightBesideTheBackwardOfHopper) {
  const std::string name = GetParam().name;
  if (name == "OneNumber" || name == "SinkAmongFewKeys" || name == "OfElementsInFloats") GTEST_SKIP() << "as others";
  test::expect_right(check_of(GetParam(), {}, Gains::kBeside, hopper));
}
INSTANTIATE_TEST_SUITE_P(Cases, OperandKernelsRun, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

class OperandTables : public ::testing::TestWithParam<Case> {};

TEST_P(OperandTables, AreRight) { test::expect_right(check_of(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Cases, OperandTables, ::testing::ValuesIn(kTableCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// What a fault of these kernels would spoil, each in a case that shows it.
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

/// Random problems with such an operand, whatever else they have: layouts, lengths, ragged tensors, dropout, sinks, o
/// in another dtype, every dtype.
TEST(OperandTablesRun, OfRandomProblemsAreRight) {
  checking::RandomProblemOptions options;
  options.max_scores = 4000;
  options.backward_probability = 1;
  options.lengths_probability = options.sink_probability = options.dropout_probability = options.ragged_probability =
      options.gradient_layout_probability = options.output_dtype_probability = 0.3;
  constexpr int kProblems = 4, kMostDrawn = 200;
  int run = 0;
  for (int i = 0; i < kMostDrawn && run < kProblems; ++i) {
    const checking::CheckCase drawn = checking::random_problem(test::test_seed() + static_cast<unsigned>(i), options);
    const compiler::CompiledProblem compiled = compiler::compile(drawn.problem);
    if (!compiled.backward || !DirectionKernels::unsupported_reasons(compiled).empty()) continue;
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
    return OperandKernels(compiled, operand_targets(compiled, std::vector<std::uint32_t>{0}, Gains::kApart),
                          portable(problem))
        .workspace_bytes();
  };
  const std::size_t rows = std::size_t{4} * 8 * 1000 * 2 * sizeof(float);
  EXPECT_EQ(workspace("operand x: f32 [q_idx, kv_idx]\nvalue = score + x"), rows);
  // An exact sum for each of 41 x 8 entries.
  EXPECT_EQ(workspace("table x: f32 rank 2\nvalue = score + x[kv_idx % 41, h]"), rows + 41 * 8 * 104);
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

TEST(OperandKernelsRun, OfManyTilesIsRightBesideTheBackwardOfHopper) {
  for (const Case& test : kHopperCases) {
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, {}, Gains::kBeside, hopper));
  }
}

/// Gradients of elements whose numbers are copied ahead.
TEST(OperandKernelsRun, OfACopiedOperandIsRight) {
  const auto shape_of = [](const AttentionProblem& problem) {
    return copying_fused_shape(problem, copied_operand(problem, Direction::kBackward).value());
  };
  TileShape (*const copying)(const AttentionProblem&) = shape_of;
  test::expect_right(check_of(case_named("CopiedElements"), {}, Gains::kBeside, *copying));
}

/// Where dq is added up beside dk and dv.
class FusedOperandKernelsRun : public ::testing::TestWithParam<const char*> {};

TEST_P(FusedOperandKernelsRun, IsRight) {
  test::expect_right(check_of(case_named(GetParam()), {}, Gains::kBeside, hopper_fused_shape));
}
INSTANTIATE_TEST_SUITE_P(Cases, FusedOperandKernelsRun,
                         ::testing::Values("Slopes", "AlongKeys", "OfElements", "ASink", "SinkAndDropout",
                                           "OfElementsOfATable", "ElementsInTiles", "TableByHead",
                                           "TableWithSlopesAndKeys", "TableRagged"),
                         [](const auto& test) { return std::string(test.param); });

TEST(FusedOperandKernelsRun, FaultsAreSeen) {
  const auto passes = [](const char* name, const Fault& fault) {
    return check_of(case_named(name), fault, Gains::kBeside, hopper_fused_shape).passed();
  };
  EXPECT_FALSE(passes("Slopes", {"add_in_order(totals[t], element.gains[t], element.centred)",
                                 "add_in_order(totals[t], element.gains[t], 1.0f)"}));
  EXPECT_FALSE(passes("Slopes", {"begin_head(p, b, gains.h + 1, first_key)", "h += 1"})) << "another head's sums";
  EXPECT_FALSE(passes("ElementsInTiles", {"clear_empty_tiles_of_keys(p, batch, h, key_tile);", ";"}));
  EXPECT_FALSE(passes("TableByHead", {"(n + 1) * 8 - kDiagonalStep", "(n + 1) * 8"})) << "other columns";
  EXPECT_FALSE(passes("TableByHead", {"(kFused ? -difference : difference)", "difference"}));
  EXPECT_FALSE(passes("TableByHead", {"add_step(own_diagonal_sums(p, b, h, first_key / kKeys)",
                                      "add_step(own_diagonal_sums(p, b, h, 0)"}))
      << "other keys";
}

/// The gradients of operands, in whatever order warps run.
TEST(FusedOperandKernelsRun, GivesOperandsTheSameBitsEachTime) {
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(case_named("TableWithSlopesAndKeys")));
  const auto same_bits = [&](const Fault& fault) {
    Emulated emulated(compiled, hopper_fused_shape(compiled.problem), fault, Gains::kBeside);
    emulated.run_twice();
    checking::check_subject(compiled, emulated.subject(), random_inputs(compiled.problem), CheckOptions());
    return emulated.has_same_bits();
  };
  EXPECT_TRUE(same_bits({}));
  EXPECT_FALSE(same_bits({"group_meets();  // nobody", ";  // nobody"})) << "a race";
}

/// The checks above would see it.
TEST(OperandKernelsRun, FaultsAreSeen) {
  EXPECT_FALSE(check_of(kCases[0], {"multiply_add(-delta, of_weight, of_product)", "of_product"}).passed());
  EXPECT_FALSE(check_of(kCases[4], {"  clear_empty_tiles(p, b, h, query_tile);", ""}).passed());
  EXPECT_FALSE(check_of(kCases[6], {"kDropout = true", "kDropout = false"}).passed());
  EXPECT_FALSE(check_of(kCases[7], {"if (kSink) weight +=", "if (false) weight +="}).passed());
  const auto beside = [](const Case& from, const Fault& fault) { return check_of(from, fault, Gains::kBeside); };
  EXPECT_FALSE(beside(kCases[0], {"multiply_add(-mean, of_weight, centred)", "centred + 1e-2f * of_weight"}).passed());
  EXPECT_FALSE(beside(kCases[3], {"if (kDk) move_gains_to(gains, p, b, steps.h, first_key);", ""}).passed());
  EXPECT_FALSE(beside(kCases[3], {"at[e / 2][t] += element.gains", "at[e / 2][t] += 1.01f * element.gains"}).passed());
  EXPECT_FALSE(beside(kCases[4], {"  clear_empty_tiles(p, b, h, query_tile);", ""}).passed());
  EXPECT_FALSE(beside(kCases[4], {"gains[kFirstElementTarget + t]", "gains[kFirstElementTarget + t] * 1.1f"}).passed());
  const Case& ragged = case_named("OfElementsRagged");
  EXPECT_FALSE(beside(ragged, {"queries) return write_no_gains(p, b, h, query_tile);", "queries) return;"}).passed());
  EXPECT_FALSE(beside(ragged, {"if (kDk) move_gains_to(none", "if (false) move_gains_to(none"}).passed());
  EXPECT_FALSE(beside(case_named("OfElementsWithGivenDeltas"), {"if (kGivenDeltas) mean = 0.0f;", ""}).passed());
  EXPECT_FALSE(beside(kCases[7], {"mean = multiply_add(-of_sink, terms[m][half][1], mean)", "mean += 0.0f"}).passed());
}

TEST(OperandTargets, SumEveryKindApartAndFewerBesideTheBackward) {
  const auto targets = [](const char* program, Gains gains) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of({"", program}));
    return operand_targets(compiled, problem::operands_with_gradient(compiled.problem), gains);
  };
  const auto sums = [&](const char* program, OperandSum apart, bool beside) {
    SCOPED_TRACE(program);
    EXPECT_EQ(targets(program, Gains::kApart).front().sum, apart);
    EXPECT_EQ(targets(program, Gains::kBeside).size(), beside ? 1u : 0u);
  };
  sums("operand x: f32 [h]\nvalue = score * x", OperandSum::kTotal, true);
  sums("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", OperandSum::kShared, false);
  sums("operand x: f32 [b, h, q_idx, kv_idx]\nvalue = score + x", OperandSum::kElement, true);
  sums("table x: f32 rank 2\nvalue = score + x[kv_idx // 3 + q_idx, h]", OperandSum::kTable, false);
  sums("operand x: f32 [q_idx]\nvalue = score", OperandSum::kNothing, false);
  EXPECT_EQ(targets("table x: f32 rank 2\nvalue = score + x[kv_idx - q_idx, h]", Gains::kApart).front().sum,
            OperandSum::kTable);
}

}  // namespace
}  // namespace scoremod::backend::kernels
