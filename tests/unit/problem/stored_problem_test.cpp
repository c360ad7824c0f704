#include "problem/stored_problem.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "support/problem_for.hpp"

namespace scoremod::problem {
namespace {

namespace reference = backend::reference;

/// The elements of a tensor of one problem as the other has them, times a factor that rounds nothing.
std::vector<std::byte> converted(const AttentionProblem& from, const AttentionProblem& to, TensorRole role,
                                 const std::vector<std::byte>& bytes, double factor) {
  const StridedTensor source = tensor_of("", from, role), target = tensor_of("", to, role);
  std::vector<double> values(static_cast<std::size_t>(source.elements()));
  source.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    values[static_cast<std::size_t>(number)] = load_element<double>(bytes.data(), source.dtype, offset);
  });
  std::vector<std::byte> made(target.bytes());
  target.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    store_element(made.data(), target.dtype, offset, factor * values[static_cast<std::size_t>(number)]);
  });
  return made;
}

void expect_times(const char* name, double factor, const std::vector<double>& found,
                  const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], factor * expected[i], 1e-12 * (1 + std::abs(factor * expected[i]))) << name << " " << i;
}

/// With factors that are powers of two nothing is rounded, so that the two say the same in float64.
TEST(StoredProblem, IsAttentionOfWhatIsStored) {
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kE4M3;
  problem.dtype_o = DType::kF32;
  problem.dtype_d_o = DType::kE5M2;
  problem.q.layout = Layout::kSBHD;
  problem.dk = TensorLayout{Layout::kBHSD, {}};
  problem.sink = Sink::kLearned;
  problem.max_logit = problem.backward = problem.stats = true;
  problem.program =
      Program::parse("operand bias: f32 [h]\nvalue = 3.0 * tanh(score / 3.0) + bias\nkeep = kv_idx <= q_idx + 2");
  problem.operands = {{"bias", DType::kF32, {4}, {}}};
  const compiler::CompiledProblem given = compiler::compile(problem);
  const compiler::CompiledProblem stored = compiler::compile(stored_problem(given.problem, DType::kF32));
  EXPECT_EQ(stored.problem.dtype, DType::kBF16);
  ASSERT_EQ(stored.problem.program.operands(), given.problem.program.operands());

  ProblemInputs inputs = random_inputs(problem);
  const double of_q = 0.0625, of_k = 0.125, of_v = 0.25, of_d_o = 0.5;
  std::vector<const void*> operands;
  for (OwnedOperand& operand : inputs.operands) {
    const double factor = operand.name == "descale_q"     ? of_q
                          : operand.name == "descale_k"   ? of_k
                          : operand.name == "descale_v"   ? of_v
                          : operand.name == "descale_d_o" ? of_d_o
                                                          : 0;
    if (factor > 0) store_element(operand.bytes.data(), DType::kF32, 0, factor);
    operands.push_back(operand.bytes.data());
  }
  const auto convert = [&](TensorRole role, const std::vector<std::byte>& bytes, double factor) {
    return converted(given.problem, stored.problem, role, bytes, factor);
  };
  const std::vector<std::byte> q = convert(TensorRole::kQ, inputs.q, 1), k = convert(TensorRole::kK, inputs.k, 1),
                               v = convert(TensorRole::kV, inputs.v, 1),
                               d_o = convert(TensorRole::kDO, inputs.d_o, of_d_o * of_v);
  const reference::InputTensors of_given{inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(),
                                         operands};
  const reference::InputTensors of_stored{q.data(), k.data(), v.data(), d_o.data(), operands};
  const backend::CallParameters call{problem.effective_scale(), {}, nullptr};
  const auto expected = reference::forward<double>(given, of_given, call);
  const auto found = reference::forward<double>(stored, of_stored, call);
  expect_times("o", 1 / of_v, found.o, expected.o);
  expect_times("lse", 1, found.lse, expected.lse);
  expect_times("max_logit", 1, found.max_logit, expected.max_logit);
  const auto expected_gradients = reference::backward<double>(given, of_given, call);
  const auto gradients = reference::backward<double>(stored, of_stored, call);
  expect_times("dq", of_q, gradients.dq, expected_gradients.dq);
  expect_times("dk", of_k, gradients.dk, expected_gradients.dk);
  expect_times("dv", of_v, gradients.dv, expected_gradients.dv);
  for (const char* name : {"bias", "sink"}) {
    const std::size_t number = *operand_number(given.problem.program, name);
    expect_times(name, 1, gradients.d_operands[number], expected_gradients.d_operands[number]);
  }
}

/// An FP8 KV cache, whose heads have their own scales. The query is the problem's own, as it lies.
TEST(StoredProblem, HasTheScalesOfKvHeadsForEachQueryHead) {
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kF16;
  problem.dtype_kv = DType::kE5M2;
  problem.q.layout = Layout::kSBHD;
  problem.stats = problem.max_logit = true;
  problem.program = Program::parse("value = 3.0 * tanh(score / 3.0)\nkeep = kv_idx <= q_idx + 2");
  problem.operands = {{"descale_k", DType::kF32, {2}, {3}, false}};
  const compiler::CompiledProblem given = compiler::compile(problem);
  const compiler::CompiledProblem stored = compiler::compile(stored_problem(given.problem, DType::kF32));
  EXPECT_EQ(stored.problem.dtype, DType::kF16);
  EXPECT_EQ(stored.problem.dtype_kv, std::nullopt);
  EXPECT_EQ(stored.problem.q, problem.q);
  EXPECT_EQ(spec_of(stored.problem, *operand_number(stored.problem.program, "descale_k")).shape,
            std::vector{problem.heads_q});

  ProblemInputs inputs = random_inputs(problem);
  const std::vector<float> of_heads{0.125F, 0.5F}, of_query_heads{0.125F, 0.125F, 0.5F, 0.5F};
  const float of_v = 0.25F;
  const std::vector<float> apart{of_heads[0], 99, 99, of_heads[1]};
  std::vector<const void*> operands, of_stored_operands;
  for (const OperandDecl& decl : given.problem.program.operands()) {
    operands.push_back(decl.name == "descale_k" ? apart.data() : &of_v);
    of_stored_operands.push_back(decl.name == "descale_k" ? of_query_heads.data() : &of_v);
  }
  const auto convert = [&](TensorRole role, const std::vector<std::byte>& bytes) {
    return converted(given.problem, stored.problem, role, bytes, 1);
  };
  const std::vector<std::byte> k = convert(TensorRole::kK, inputs.k), v = convert(TensorRole::kV, inputs.v);
  const backend::CallParameters call{problem.effective_scale(), {}, nullptr};
  const auto expected =
      reference::forward<double>(given, {inputs.q.data(), inputs.k.data(), inputs.v.data(), nullptr, operands}, call);
  const auto found =
      reference::forward<double>(stored, {inputs.q.data(), k.data(), v.data(), nullptr, of_stored_operands}, call);
  expect_times("o", 1 / double{of_v}, found.o, expected.o);
  expect_times("lse", 1, found.lse, expected.lse);
  expect_times("max_logit", 1, found.max_logit, expected.max_logit);
}

TEST(StoredProblem, KeepsWhereRaggedAndPagedTensorsLie) {
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kE5M2;
  problem.tokens_q = 9;
  problem.q = problem.o = {Layout::kTHD, {}};
  problem.lengths.kv = true;
  problem.paged = PagedKeys{4, 5, 2};
  const compiler::CompiledProblem given = compiler::compile(problem);
  const AttentionProblem stored = stored_problem(given.problem, DType::kBF16);
  EXPECT_NO_THROW(validate(stored));
  EXPECT_EQ(stored.dtype_o, std::nullopt);
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO}) {
    const TensorShape found = memory_shape_of(stored, role), expected = memory_shape_of(problem, role);
    EXPECT_EQ(found.batch, expected.batch);
    EXPECT_EQ(found.sequence, expected.sequence);
  }
}

/// The values of a tensor with block scales are stored, so that its factor is no part of the score.
TEST(StoredProblem, HasNoFactorForBlockScales) {
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kE4M3;
  problem.dtype_o = DType::kF32;
  const auto program_of = [](AttentionProblem changed, std::vector<const char*> names) {
    for (const char* name : names) changed.operands.push_back({name, DType::kF32, {1, 1, 1, 1}, {}, false});
    return stored_problem(compiler::compile(changed).problem, DType::kF32).program.to_string();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const std::string none = program_of(problem, {}), of_keys = program_of(problem, {"descale_k"}),
                    both = program_of(problem, {"descale_q", "descale_k"});
  EXPECT_TRUE(has(none, "* (descale_q * descale_k)")) << none;
  EXPECT_TRUE(has(of_keys, "score * descale_q")) << of_keys;
  EXPECT_FALSE(has(of_keys, "* descale_k")) << of_keys;
  EXPECT_FALSE(has(both, "score *")) << both;
}

}  // namespace
}  // namespace scoremod::problem
