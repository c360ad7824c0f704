// Gradients of operands from tiles of scores, on a host, thread by thread, against the float64 oracle.

#include "backend/kernels/operand_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include <gtest/gtest.h>

#include "backend/kernels/hopper_shape.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/call_tensors.hpp"
#include "support/check_report.hpp"
#include "support/emulated_device.hpp"

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
        gradients_(compiled, operand_targets(compiled, problem::operands_with_gradient(compiled.problem)), shape, fault,
                   gains) {}

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
      gradients_.run(gradients_.kernels().arguments(call.tensors, call.parameters, static_cast<std::byte*>(own.data)),
                     1);
    };
    return subject;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };

  const AttentionProblem& problem_;
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
  for (const OperandDecl& decl : p.program.operands()) p.operands.push_back(problem::default_spec(p, decl));
  for (OperandSpec& operand : p.operands)
    if (operand.name == "half") operand.dtype = DType::kBF16;
  if (from.change != nullptr) from.change(p);
  return problem::with_implied_operands(std::move(p));
}

CheckReport check_of(const Case& from, const Fault& fault = {}, Gains gains = Gains::kApart,
                     Family family = Family::kPortable) {
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(from));
  const TileShape shape = family == Family::kHopper ? hopper_shapes(compiled.problem, Direction::kBackward).front()
                                                    : tile_shape(compiled.problem, Direction::kBackward);
  Emulated emulated(compiled, shape, fault, gains);
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

const Case& case_named(std::string_view name) { return *std::ranges::find(kCases, name, &Case::name); }

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

class OperandKernelsRun : public ::testing::TestWithParam<Case> {};

TEST_P(OperandKernelsRun, IsRight) { test::expect_right(check_of(GetParam())); }
TEST_P(OperandKernelsRun, IsRightBesideTheBackward) { test::expect_right(check_of(GetParam(), {}, Gains::kBeside)); }
TEST_P(OperandKernelsRun, IsRightBesideTheBackwardOfHopper) {
  const std::string name = GetParam().name;
  if (name == "OneNumber" || name == "SinkAmongFewKeys" || name == "OfElementsInFloats") GTEST_SKIP() << "as others";
  test::expect_right(check_of(GetParam(), {}, Gains::kBeside, Family::kHopper));
}
INSTANTIATE_TEST_SUITE_P(Cases, OperandKernelsRun, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// The checks above would see it.
TEST(OperandKernelsRun, FaultsAreSeen) {
  EXPECT_FALSE(check_of(kCases[0], {"multiply_add(-delta, of_weight, of_product)", "of_product"}).passed());
  EXPECT_FALSE(check_of(kCases[4], {"  clear_empty_tiles(p, b, h, query_tile);", ""}).passed());
  EXPECT_FALSE(check_of(kCases[6], {"kDropout = true", "kDropout = false"}).passed());
  EXPECT_FALSE(check_of(kCases[7], {"if (kSink) weight +=", "if (false) weight +="}).passed());
  const auto beside = [](const Case& from, const Fault& fault) { return check_of(from, fault, Gains::kBeside); };
  EXPECT_FALSE(beside(kCases[0], {"multiply_add(-mean, of_weight, centred)", "centred + 1e-2f * of_weight"}).passed());
  EXPECT_FALSE(beside(kCases[3], {"(!more || steps.h != h)", "!more"}).passed());
  EXPECT_FALSE(beside(kCases[3], {"element.centred, at[half][t]", "1.0f, at[half][t]"}).passed());
  EXPECT_FALSE(beside(kCases[4], {"  clear_empty_tiles(p, b, h, query_tile);", ""}).passed());
  EXPECT_FALSE(
      beside(kCases[4], {"[kFirstElementTarget + t] * element.centred", "[kFirstElementTarget + t]"}).passed());
  const Case& ragged = case_named("OfElementsRagged");
  EXPECT_FALSE(beside(ragged, {"queries) return write_no_gains(p, b, h, query_tile);", "queries) return;"}).passed());
  EXPECT_FALSE(beside(ragged, {"if (kDk) none.finish_group", "if (false) none.finish_group"}).passed());
  EXPECT_FALSE(beside(case_named("OfElementsWithGivenDeltas"), {"if (kGivenDeltas) mean = 0.0f;", ""}).passed());
  EXPECT_FALSE(beside(kCases[7], {"mean = multiply_add(-of_sink, terms[m][half][1], mean)", "mean += 0.0f"}).passed());
}

TEST(OperandTargets, AreEmptyWhereOneIsSummedInNoSuchWay) {
  const auto targets = [](const char* program) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of({"", program}));
    return operand_targets(compiled, problem::operands_with_gradient(compiled.problem)).size();
  };
  EXPECT_EQ(targets("operand x: f32 [h]\nvalue = score * x"), 1u);
  EXPECT_EQ(targets("operand x: f32 [h]\noperand y: i32 [q_idx, kv_idx]\noperand z: f32 [q_idx, kv_idx]\nvalue = score "
                    "* x + f32(y) + z"),
            0u);
  EXPECT_EQ(targets("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x"), 0u) << "summed over batches";
}

}  // namespace
}  // namespace scoremod::backend::kernels
