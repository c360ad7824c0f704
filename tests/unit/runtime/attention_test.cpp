#include "scoremod/attention.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/call_timer.hpp"
#include "scoremod/check.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/staging.hpp"

#include "problem/tensor_view.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

using test::expect_refusal;

using problem::TensorRole;

/// A float operand and an integer one, so that every kind of binding error can be made.
AttentionProblem test_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = 3;
  problem.seq_kv = 4;
  problem.dim_qk = problem.dim_v = 8;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(
      "operand slope: f32 [h]\noperand length: i32 [b]\nvalue = score * slope\nkeep = kv_idx < length + 1");
  problem.operands = {{"length", DType::kI32, {2}, {}}, {"slope", DType::kF32, {2}, {}}};
  return problem;
}

CompileOptions on_reference() {
  CompileOptions options;
  options.backend = "reference";
  return options;
}

/// One call's memory, and the arguments that point into it.
struct Call {
  explicit Call(const AttentionProblem& problem) : inputs(random_inputs(problem)) {
    const auto fill = [](std::size_t bytes) { return std::vector<std::byte>(bytes, std::byte{0xff}); };
    o = fill(problem::bytes_of(problem, TensorRole::kO));
    lse.assign(static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q), NAN);
    dq = fill(inputs.q.size());
    dk = fill(inputs.k.size());
    dv = fill(inputs.v.size());
    slope.assign(2, NAN);
    const Buffer lse_buffer{lse.data(), lse.size() * sizeof(float)};
    forward = {in(inputs.q), in(inputs.k), in(inputs.v), inputs.operand_buffers(), out(o), lse_buffer, {}};
    backward = {in(inputs.q),
                in(inputs.k),
                in(inputs.v),
                in(o),
                {lse_buffer.data, lse_buffer.bytes},
                in(inputs.d_o),
                inputs.operand_buffers(),
                out(dq),
                out(dk),
                out(dv),
                {{"slope", {slope.data(), 8}}},
                {}};
  }

  static ConstBuffer in(const std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }
  static Buffer out(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

  ProblemInputs inputs;
  std::vector<std::byte> o, dq, dk, dv;
  std::vector<float> lse, slope;
  ForwardArgs forward;
  BackwardArgs backward;
};

/// A call's argument spoiled in one way, and a part of the message that must come of it.
struct Refusal {
  const char* message;
  std::function<void(Call&)> spoil;
};

bool untouched(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte value) { return value == std::byte{0xff}; });
}

bool is_slope(const OperandBuffer& operand) { return operand.name == "slope"; }

TEST(Attention, RunsBothDirectionsAndWritesEverything) {
  const AttentionProblem problem = test_problem();
  const Attention attention = Attention::compile(problem, on_reference());
  EXPECT_EQ(attention.backend(), "reference");
  EXPECT_EQ(attention.problem(), problem);
  Call call(problem);
  attention.forward(call.forward);
  attention.backward(call.backward);
  for (const float value : call.lse) EXPECT_TRUE(std::isfinite(value));
  for (const float value : call.slope) EXPECT_TRUE(std::isfinite(value));
  for (const auto* bytes : {&call.o, &call.dq, &call.dk, &call.dv}) {
    const auto* values = reinterpret_cast<const float*>(bytes->data());
    for (std::size_t i = 0; i < bytes->size() / sizeof(float); ++i) EXPECT_TRUE(std::isfinite(values[i]));
  }
}

TEST(Attention, KeepsNothingForAGradientThatNoCallAsksFor) {
  AttentionProblem problem = test_problem();
  const auto slope = std::ranges::find(problem.operands, "slope", &OperandSpec::name);
  CompileOptions options;
  options.backend = "cpu";
  const std::size_t with_gradient = Attention::compile(problem, options).backward_workspace_bytes();
  slope->gradient = false;
  const Attention attention = Attention::compile(problem, options);
  EXPECT_LT(attention.backward_workspace_bytes(), with_gradient);
  Call call(problem);
  attention.forward(call.forward);
  expect_refusal("'slope': expected an operand that was compiled with a gradient",
                 [&] { attention.backward(call.backward); });
  call.backward.d_operands.clear();
  attention.backward(call.backward);
  CheckOptions check_options;
  check_options.compile.backend = "cpu";
  const CheckReport report = check(problem, check_options);
  EXPECT_TRUE(report.passed());
  EXPECT_TRUE(std::ranges::none_of(report.outputs, [](const OutputCheck& output) { return output.name == "d_slope"; }));
}

TEST(Attention, ForwardRefusesBadArgumentsBeforeWriting) {
  const AttentionProblem problem = test_problem();
  const Attention attention = Attention::compile(problem, on_reference());
  const std::vector<Refusal> refusals{
      {"'q' is missing", [](Call& c) { c.forward.q = {}; }},
      {"'k' is too small", [](Call& c) { c.forward.k.bytes -= 1; }},
      {"'v' is misaligned", [](Call& c) { c.forward.v.data = static_cast<const std::byte*>(c.forward.v.data) + 2; }},
      {"'o' is missing", [](Call& c) { c.forward.o = {}; }},
      {"'o' is too small", [](Call& c) { c.forward.o.bytes = 0; }},
      {"'lse' is missing", [](Call& c) { c.forward.lse = {}; }},
      {"'lse' is too small", [](Call& c) { c.forward.lse.bytes -= 4; }},
      {"'o' overlaps 'q'", [](Call& c) { c.forward.o.data = c.inputs.q.data(); }},
      {"'lse' overlaps 'o'", [](Call& c) { c.forward.lse.data = c.o.data() + 4; }},
      {"operand 'slope' is missing", [](Call& c) { std::erase_if(c.forward.operands, is_slope); }},
      {"'slop' is no operand", [](Call& c) { c.forward.operands[0].name = "slop"; }},
      {"is given twice", [](Call& c) { c.forward.operands.push_back(c.forward.operands[0]); }},
      {"'slope' is too small", [](Call& c) { std::ranges::find_if(c.forward.operands, is_slope)->buffer.bytes = 4; }},
      {"'slope' is missing",
       [](Call& c) { std::ranges::find_if(c.forward.operands, is_slope)->buffer.data = nullptr; }},
      {"finite scale", [](Call& c) { c.forward.options.scale = std::numeric_limits<float>::quiet_NaN(); }},
      {"offsets.query", [](Call& c) { c.forward.options.offsets.query = std::numeric_limits<std::int32_t>::max(); }},
      {"offsets.key", [](Call& c) { c.forward.options.offsets.key = 1 << 30; }},
      {"offsets.head", [](Call& c) { c.forward.options.offsets.head = -1; }},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.message);
    Call call(problem);
    refusal.spoil(call);
    expect_refusal(refusal.message, [&] { attention.forward(call.forward); });
    EXPECT_TRUE(untouched(call.o));
    for (const float value : call.lse) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Attention, BackwardRefusesBadArgumentsBeforeWriting) {
  const AttentionProblem problem = test_problem();
  const Attention attention = Attention::compile(problem, on_reference());
  const std::vector<Refusal> refusals{
      {"'o' is missing", [](Call& c) { c.backward.o = {}; }},
      {"'lse' is missing", [](Call& c) { c.backward.lse = {}; }},
      {"'d_o' is too small", [](Call& c) { c.backward.d_o.bytes -= 1; }},
      {"'dq' is missing", [](Call& c) { c.backward.dq = {}; }},
      {"'dk' overlaps 'k'", [](Call& c) { c.backward.dk.data = c.inputs.k.data(); }},
      {"'dv' overlaps 'dk'", [](Call& c) { c.backward.dv = c.backward.dk; }},
      {"operand 'length': expected an f32, f16 or bf16 operand, found i32",
       [](Call& c) { c.backward.d_operands[0].name = "length"; }},
      {"'other' is no operand", [](Call& c) { c.backward.d_operands[0].name = "other"; }},
      {"the gradient of operand 'slope' is given twice",
       [](Call& c) { c.backward.d_operands.push_back(c.backward.d_operands[0]); }},
      {"'gradient of slope' is too small", [](Call& c) { c.backward.d_operands[0].buffer.bytes = 4; }},
      {"'gradient of slope' is missing", [](Call& c) { c.backward.d_operands[0].buffer = {}; }},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.message);
    Call call(problem);
    attention.forward(call.forward);
    refusal.spoil(call);
    expect_refusal(refusal.message, [&] { attention.backward(call.backward); });
    for (const auto* bytes : {&call.dq, &call.dk, &call.dv}) EXPECT_TRUE(untouched(*bytes));
  }
}

TEST(Attention, BackwardNeedsAProblemThatHasIt) {
  AttentionProblem problem = test_problem();
  problem.backward = false;
  const Attention attention = Attention::compile(problem, on_reference());
  Call call(problem);
  expect_refusal("set its field backward", [&] { attention.backward(call.backward); });
}

TEST(Attention, LseIsWrittenOnlyWhenGivenOrWanted) {
  AttentionProblem problem = test_problem();
  problem.backward = problem.stats = false;
  const Attention attention = Attention::compile(problem, on_reference());
  Call call(problem);
  call.forward.lse = {};
  attention.forward(call.forward);
  for (const float value : call.lse) EXPECT_TRUE(std::isnan(value));
  call.forward.lse = {call.lse.data(), call.lse.size() * sizeof(float)};
  attention.forward(call.forward);
  for (const float value : call.lse) EXPECT_FALSE(std::isnan(value));
}

TEST(Attention, OutputsThatInterleaveAreNotTakenForOverlapping) {
  AttentionProblem problem = test_problem();
  // dq, dk and dv packed in one allocation: batch, sequence, three tensors, heads, dim.
  problem.q.strides = problem.k.strides = problem.v.strides = Strides{4 * 48, 8, 48, 1};
  const Attention attention = Attention::compile(problem, on_reference());
  Call call(problem);
  attention.forward(call.forward);
  std::vector<float> packed(2 * 4 * 48 + 48, NAN);
  const std::size_t bytes = packed.size() * sizeof(float);
  call.backward.dq = {packed.data(), bytes};
  call.backward.dk = {packed.data() + 16, bytes - 64};
  call.backward.dv = {packed.data() + 32, bytes - 128};
  attention.backward(call.backward);
  call.backward.dv = {packed.data() + 31, bytes - 124};
  expect_refusal("'dv' overlaps 'dk'", [&] { attention.backward(call.backward); });
}

TEST(Attention, CompileRefusesWhatItCannotDo) {
  AttentionProblem problem = test_problem();
  CompileOptions options;
  options.backend = "abacus";
  expect_refusal("reference), found 'abacus'", [&] { Attention::compile(problem, options); });
  options.backend = "";
  options.threads = -1;
  expect_refusal("threads", [&] { Attention::compile(problem, options); });
  problem.heads_kv = 3;
  expect_refusal("heads_kv", [&] { Attention::compile(problem); });
}

TEST(Attention, EveryBackendAnswersSupport) {
  const std::vector<Support> answers = support(test_problem());
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(answers.back().backend, "reference");
  EXPECT_TRUE(answers.back().supported);
  for (const Support& answer : answers) EXPECT_EQ(answer.supported, answer.reasons.empty());
}

TEST(Attention, SupportGivesItsReasonsAsValuesAndPrintsNothing) {
  AttentionProblem problem = test_problem();
  problem.dtype = DType::kBF16;
  ::testing::internal::CaptureStdout();
  const std::vector<Support> first = support(problem), again = support(problem);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].supported, first[i].reasons.empty()) << first[i].backend;
    EXPECT_EQ(first[i].reasons, again[i].reasons) << first[i].backend;
  }
}

TEST(Attention, ScaleOfTheCallOverridesTheProblems) {
  AttentionProblem problem = test_problem();
  const Attention attention = Attention::compile(problem, on_reference());
  Call call(problem);
  attention.forward(call.forward);
  const std::vector<std::byte> with_default = call.o;
  call.forward.options.scale = 0.125F;
  attention.forward(call.forward);
  const std::vector<std::byte> with_override = call.o;
  EXPECT_NE(with_override, with_default);
  problem.scale = 0.125F;
  call.forward.options.scale.reset();
  Attention::compile(problem, on_reference()).forward(call.forward);
  EXPECT_EQ(call.o, with_override);
}

// NOLINTBEGIN(bugprone-use-after-move): what is tested
TEST(Attention, OneThatWasMovedFromRefusesEveryCall) {
  const AttentionProblem problem = test_problem();
  Attention first = Attention::compile(problem, on_reference());
  const Attention second = std::move(first);
  Call call(problem);
  const std::vector<std::function<void()>> calls = {[&] { first.forward(call.forward); },
                                                    [&] { first.backward(call.backward); },
                                                    [&] { first.problem(); },
                                                    [&] { first.backend(); },
                                                    [&] { first.backward_backend(); },
                                                    [&] { first.backward_reasons(); },
                                                    [&] { first.memory(); },
                                                    [&] { first.device(); },
                                                    [&] { first.alignment(); },
                                                    [&] { first.forward_workspace_bytes(); },
                                                    [&] { first.backward_workspace_bytes(); },
                                                    [&] { Staging{first}; },
                                                    [&] { CallTimer{first}; }};
  for (const auto& each : calls)
    expect_refusal("Attention: expected one that holds something, found one that was moved", each);
  second.forward(call.forward);
  first = Attention::compile(problem, on_reference());
  first.forward(call.forward);
}

TEST(Attention, StagingsAndTimersThatWereMovedFromRefuseEveryCall) {
  const Attention attention = Attention::compile(test_problem(), on_reference());
  Staging staging(attention);
  CallTimer timer(attention);
  const Staging other_staging = std::move(staging);
  const CallTimer other_timer = std::move(timer);
  expect_refusal("Staging: expected one that holds something", [&] { staging.stage(ForwardArgs{}); });
  expect_refusal("Staging: expected one that holds something", [&] { staging.workspace(1); });
  expect_refusal("Staging: expected one that holds something", [&] { staging.fetch(); });
  expect_refusal("CallTimer: expected one that holds something", [&] { timer.start(); });
  expect_refusal("CallTimer: expected one that holds something", [&] { timer.stop(); });
}
// NOLINTEND(bugprone-use-after-move)

}  // namespace
}  // namespace scoremod
