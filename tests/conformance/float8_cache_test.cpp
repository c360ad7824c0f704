// FP8 keys and values under wider queries (dtype_kv) against the dense formula on their scaled values: the oracle to
// its own rounding, the other backends by check(). Scales that are taken of the wrong KV head must be found.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"
#include "scoremod/sizes.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/conformance.hpp"
#include "conformance/host_calls.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

using problem::TensorRole;

enum class Scales { kOfTensors, kOfHeads };

AttentionProblem cached_problem(DType dtype, DType dtype_kv, Scales scales) {
  AttentionProblem problem = test::small_problem();
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.dtype = dtype;
  problem.dtype_kv = dtype_kv;
  problem.stats = true;
  if (scales == Scales::kOfHeads) {
    for (const char* name : {"descale_k", "descale_v"})
      problem.operands.push_back({name, DType::kF32, {problem.heads_kv}, {}, false});
  }
  return problem;
}

OwnedOperand& operand_of(ProblemInputs& inputs, const std::string& name) {
  return *std::ranges::find(inputs.operands, name, &OwnedOperand::name);
}

/// The values of keys or values, dense: [batch, head, sequence, dim].
std::vector<double> scaled(const AttentionProblem& problem, TensorRole role, const std::vector<std::byte>& bytes,
                           const OwnedOperand& scales) {
  const problem::StridedTensor tensor = problem::tensor_of("", problem, role);
  std::vector<double> values = test::to_dense(bytes, tensor.dtype, tensor.shape, tensor.strides);
  const std::size_t of_head = static_cast<std::size_t>(tensor.shape[2] * tensor.shape[3]);
  const bool of_heads = scales.bytes.size() > sizeof(float);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto head = static_cast<std::int64_t>(i / of_head) % problem.heads_kv;
    values[i] *= load_element<double>(scales.bytes.data(), DType::kF32, of_heads ? head : 0);
  }
  return values;
}

test::DenseResult dense(const AttentionProblem& problem, ProblemInputs inputs) {
  const problem::StridedTensor q = problem::tensor_of("", problem, TensorRole::kQ);
  return test::dense_attention(problem,
                               {test::to_dense(inputs.q, q.dtype, q.shape, q.strides),
                                scaled(problem, TensorRole::kK, inputs.k, operand_of(inputs, "descale_k")),
                                scaled(problem, TensorRole::kV, inputs.v, operand_of(inputs, "descale_v")),
                                {}},
                               {});
}

void expect_near(const std::string& name, DType dtype, const std::vector<double>& found,
                 const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], unit_roundoff(dtype) * std::abs(expected[i]) + 1e-7) << name << " " << i;
}

TEST(Float8Caches, AreAttentionOfTheNumbersThatTheyStandFor) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType dtype_kv : {DType::kE4M3, DType::kE5M2}) {
      for (const Scales scales : {Scales::kOfTensors, Scales::kOfHeads}) {
        const AttentionProblem problem = cached_problem(dtype, dtype_kv, scales);
        const ProblemInputs inputs = random_inputs(problem);
        const ProblemBuffers found = test::run_calls(problem, inputs, "reference");
        const test::DenseResult expected = dense(problem, inputs);
        expect_near("o", dtype, test::output_values(found, "o"), expected.o);
        expect_near("lse", DType::kF32, test::output_values(found, "lse"), expected.lse);
        test::expect_backends_conform(problem, inputs);
      }
    }
  }
}

/// Also strided ones, of which every second is read.
TEST(Float8Caches, TakeScalesThatLieApart) {
  AttentionProblem problem = cached_problem(DType::kBF16, DType::kE4M3, Scales::kOfHeads);
  const ProblemInputs inputs = random_inputs(problem);
  AttentionProblem apart = problem;
  for (OperandSpec& spec : apart.operands) spec.strides = {2};
  ProblemInputs spread = random_inputs(apart);
  spread.q = inputs.q;
  spread.k = inputs.k;
  spread.v = inputs.v;
  for (const OwnedOperand& from : inputs.operands) {
    for (std::int64_t head = 0; head < problem.heads_kv; ++head)
      store_element(operand_of(spread, from.name).bytes.data(), DType::kF32, 2 * head,
                    load_element<double>(from.bytes.data(), DType::kF32, head));
  }
  for (const char* backend : {"reference", "cpu"}) {
    EXPECT_EQ(test::output_values(test::run_calls(apart, spread, backend), "o"),
              test::output_values(test::run_calls(problem, inputs, backend), "o"))
        << backend;
  }
}

TEST(Float8Caches, KeepNan) {
  const AttentionProblem problem = cached_problem(DType::kBF16, DType::kE4M3, Scales::kOfTensors);
  ProblemInputs inputs = random_inputs(problem);
  inputs.v[0] = std::byte{0x7f};
  for (const char* backend : {"reference", "cpu"})
    EXPECT_TRUE(std::isnan(test::output_values(test::run_calls(problem, inputs, backend), "o").front())) << backend;
}

TEST(Float8Caches, OfRandomProgramsConform) {
  for (int number = 0; number < 60; ++number) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(number);
    checking::RandomProblemOptions options;
    options.float8_keys_probability = 1;
    options.few_rows_probability = 0.2;
    options.lengths_probability = options.sink_probability = options.dropout_probability = 0.2;
    options.max_logit_probability = options.ragged_probability = options.output_dtype_probability = 0.2;
    options.paged_probability = 0.4;
    checking::CheckCase made = checking::random_problem(seed, options);
    made.name = "problem " + std::to_string(number) + " (SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()) + ")";
    for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, made);
    if (HasFailure()) return;
  }
}

TEST(Float8Caches, MayHaveOpenSizes) {
  AttentionProblem problem = cached_problem(DType::kBF16, DType::kE4M3, Scales::kOfHeads);
  AttentionProblem open = problem;
  open.batch = open.heads_q = open.heads_kv = open.seq_kv = kOpenSize;
  for (OperandSpec& spec : open.operands) spec.shape = {kOpenSize};
  Sizes sizes;
  sizes.batch = problem.batch;
  sizes.heads_q = problem.heads_q;
  sizes.heads_kv = problem.heads_kv;
  sizes.seq_kv = problem.seq_kv;
  EXPECT_EQ(problem_at(open, sizes), problem);
}

TEST(Float8CacheCalls, BindBothScales) {
  const AttentionProblem problem = cached_problem(DType::kF16, DType::kE5M2, Scales::kOfTensors);
  const ProblemInputs inputs = random_inputs(problem);
  const Attention attention = Attention::compile(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  for (const char* name : {"descale_k", "descale_v"}) {
    ForwardArgs args = buffers.forward();
    std::erase_if(args.operands, [&](const OperandBuffer& operand) { return operand.name == name; });
    test::expect_refusal("operand '" + std::string(name) + "' is missing", [&] { attention.forward(args); });
  }
  ForwardArgs args = buffers.forward();
  const float scale = 1;
  args.operands.push_back({"descale_q", {&scale, sizeof scale}});
  test::expect_refusal("'descale_q' is no operand", [&] { attention.forward(args); });
}

TEST(Float8CacheCalls, RefuseScalesThatAreNone) {
  const AttentionProblem problem = cached_problem(DType::kBF16, DType::kE4M3, Scales::kOfHeads);
  const Attention attention = Attention::compile(problem);
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    ProblemInputs inputs = random_inputs(problem);
    store_element(operand_of(inputs, "descale_v").bytes.data(), DType::kF32, problem.heads_kv - 1, wrong);
    ProblemBuffers buffers(problem, buffers_of(inputs));
    test::expect_refusal("operand 'descale_v': expected a positive finite factor, found",
                         [&] { attention.forward(buffers.forward()); });
  }
}

/// The right implementation with the scales of the KV heads in another order.
TEST(Float8CacheNegativeControls, ScalesOfOtherHeadsAreFound) {
  const AttentionProblem problem = cached_problem(DType::kBF16, DType::kE4M3, Scales::kOfHeads);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  const checking::Subject right = test::reference_subject(compiled);
  EXPECT_TRUE(checking::check_subject(compiled, right, inputs, {}).passed());
  for (const char* name : {"descale_k", "descale_v"}) {
    ProblemInputs turned = inputs;
    std::vector<std::byte>& scales = operand_of(turned, name).bytes;
    std::rotate(scales.begin(), scales.begin() + sizeof(float), scales.end());
    checking::Subject wrong = right;
    wrong.forward = [&](ForwardArgs args, Buffer workspace) {
      for (OperandBuffer& operand : args.operands)
        if (operand.name == name) operand.buffer.data = scales.data();
      right.forward(args, workspace);
    };
    EXPECT_FALSE(test::output(checking::check_subject(compiled, wrong, inputs, {}), "o").passed()) << name;
  }
}

}  // namespace
}  // namespace scoremod
