// The attention kernels on a host, thread by thread, against the float64 oracle.

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "backend/kernels/direction_kernels.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "runtime/call_tensors.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/emulated_device.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = std::pair<std::string, std::string>;

/// Both directions on the emulated device.
class Emulated {
 public:
  explicit Emulated(const compiler::CompiledProblem& compiled, const Fault& forward_fault = {},
                    const Fault& backward_fault = {})
      : problem_(compiled.problem),
        forward_(compiled, Direction::kForward, tile_shape(problem_, Direction::kForward), forward_fault),
        backward_(compiled, Direction::kBackward, tile_shape(problem_, Direction::kBackward), backward_fault) {}

  checking::Subject subject() {
    checking::Subject subject;
    subject.backend = "emulated kernels";
    subject.forward_workspace_bytes = forward_.kernels().workspace_bytes();
    subject.backward_workspace_bytes = backward_.kernels().workspace_bytes();
    subject.forward = [this](const ForwardArgs& args, Buffer workspace) { run(forward_, args, workspace); };
    subject.backward = [this](const BackwardArgs& args, Buffer workspace) { run(backward_, args, workspace); };
    return subject;
  }

 private:
  template <class Args>
  void run(const test::EmulatedKernels& kernels, const Args& args, Buffer workspace) {
    const auto call =
        runtime::check_call(problem_, args, workspace, kernels.kernels().workspace_bytes(), host_memory());
    auto* at = static_cast<std::byte*>(workspace.data);
    kernels.run(kernels.kernels().arguments(call.tensors, call.parameters, at), 1);
  }

  const AttentionProblem& problem_;
  test::EmulatedKernels forward_, backward_;
};

/// Without gradients of operands: these are other kernels'.
checking::CheckCase case_of(const std::string& name) {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  checking::CheckCase test = std::move(
      cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin())));
  for (OperandSpec& operand : test.problem.operands) operand.gradient = false;
  return test;
}

CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, const Fault& forward_fault = {},
                     const Fault& backward_fault = {}) {
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  Emulated emulated(compiled, forward_fault, backward_fault);
  CheckOptions options;
  options.call = test.call;
  return checking::check_subject(compiled, emulated.subject(), inputs, options);
}

void expect_right(const CheckReport& report) {
  for (const std::string& found : report.memory_problems) ADD_FAILURE() << found;
  for (const OutputCheck& output : report.outputs)
    for (const std::string& found : output.problems) ADD_FAILURE() << output.name << ": " << found;
}

class AttentionKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(AttentionKernels, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  SCOPED_TRACE(test.name);
  expect_right(check_of(test, random_inputs(test.problem)));
}

TEST_P(AttentionKernels, AreRightWithInfinitiesAndNan) {
  const checking::CheckCase test = case_of(GetParam());
  SCOPED_TRACE(test.name);
  expect_right(check_of(test, test::poisoned_inputs(test.problem, 0)));
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionKernels,
                         ::testing::Values("causal", "causal with offsets", "one query", "documents",
                                           "mask by the score", "infinite values", "wide heads", "unaligned rows",
                                           "dropout with one query"));

/// A learned sink, dropout and the largest score; and those with odd offsets.
TEST(AttentionKernelFields, AreRight) {
  for (const char* const name :
       {"a learned sink, dropout and the largest score", "a sink of 0, dropout with odd offsets, scores as they are"}) {
    const checking::CheckCase test = case_of(name);
    SCOPED_TRACE(test.name);
    expect_right(check_of(test, random_inputs(test.problem)));
  }
}

/// Where nothing that a call binds decides the mask, its tiles' states are found once.
TEST(AttentionKernelStates, AreFoundOnceWhereTheyAreTheSameInEveryCall) {
  checking::CheckCase test = case_of("mask by head");
  const auto kernels = [&] {
    const compiler::CompiledProblem compiled = compiler::compile(test.problem);
    return DirectionKernels(compiled, Direction::kForward, tile_shape(test.problem, Direction::kForward));
  };
  EXPECT_FALSE(kernels().states_launch()) << "a call's offsets move the mask";
  test.problem.index_offsets = false;
  ASSERT_TRUE(kernels().states_launch()) << test.name;
  EXPECT_EQ(kernels().launches().size(), 1U);
  EXPECT_EQ(kernels().workspace_bytes(), 0U);
  const ProblemInputs inputs = random_inputs(test.problem);
  expect_right(check_of(test, inputs));
  const Fault empty{"!some ? kEmptyTile", "!all ? kEmptyTile"};
  EXPECT_FALSE(check_of(test, inputs, empty).passed()) << "tiles that are called empty wrongly";
  test = case_of("documents");
  test.problem.index_offsets = false;
  EXPECT_FALSE(kernels().states_launch()) << "operands decide";
}

double error_of(const CheckReport& report, const std::string& name) {
  return std::ranges::find(report.outputs, name, &OutputCheck::name)->l2.error;
}

/// With a single key nothing depends on the query. A row's sum of o d_o is another sum than that of its products.
TEST(AttentionKernelDeltas, LeaveNothingWhereOneKeyIsSummedOver) {
  AttentionProblem p;
  p.seq_q = 40;
  p.seq_kv = 1;
  p.dim_qk = p.dim_v = 64;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  p.program = Program::parse("value = score - 200.0");
  checking::CheckCase test;
  test.problem = p;
  const ProblemInputs inputs = random_inputs(p);
  EXPECT_EQ(error_of(check_of(test, inputs), "dq"), 0);
  const Fault rounded{"kOwnDeltas = true", "kOwnDeltas = false"};
  EXPECT_GT(error_of(check_of(test, inputs, {}, rounded), "dq"), 0);
}

/// The checks above would see it: each of these faults makes them fail.
TEST(AttentionKernelFaults, AreSeen) {
  const checking::CheckCase documents = case_of("documents");
  const ProblemInputs inputs = random_inputs(documents.problem);
  const Fault full{"? kFullTile : kPartialTile);", "? kFullTile : kFullTile);"};
  EXPECT_FALSE(check_of(documents, inputs, full).passed()) << "tiles that are called full wrongly";
  EXPECT_FALSE(check_of(documents, inputs, {}, full).passed());
  const Fault empty{"!some ? kEmptyTile", "!all ? kEmptyTile"};
  EXPECT_FALSE(check_of(documents, inputs, empty).passed()) << "tiles that are called empty wrongly";
}

struct FieldFault {
  const char* name;
  Fault forward, backward;
};
class AttentionKernelFieldFaults : public ::testing::TestWithParam<FieldFault> {};

TEST_P(AttentionKernelFieldFaults, AreSeen) {
  const checking::CheckCase test = case_of("a learned sink, dropout and the largest score");
  EXPECT_FALSE(check_of(test, random_inputs(test.problem), GetParam().forward, GetParam().backward).passed());
}
const FieldFault kFieldFaults[] = {
    {"NoSink", {"kSink = true", "kSink = false"}, {}},
    {"NoDropoutInBackward", {}, {"kDropout = true", "kDropout = false"}},
    {"AnotherSeed", {"key0 = call.key[0]", "key0 = call.key[0] + 1"}, {}},
    {"NoRescaling", {"stays ? x * call.dropout.factor", "stays ? x"}, {}},
    {"MaskedLargest", {"rows.largest[m][half] = fmaxf(rows.largest[m][half], x)", "rows.largest[m][half] = 9.0f"}, {}},
};
INSTANTIATE_TEST_SUITE_P(Faults, AttentionKernelFieldFaults, ::testing::ValuesIn(kFieldFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

}  // namespace
}  // namespace scoremod::backend::kernels
