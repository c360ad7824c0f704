#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "base/element.hpp"
#include "problem/tensor_view.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

AttentionProblem problem_of() {
  AttentionProblem problem;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = 3;
  problem.seq_kv = 4;
  problem.dim_qk = problem.dim_v = 2;
  problem.dtype = DType::kBF16;
  problem.program =
      Program::parse("operand x: f32 [h]\noperand ids: i32 [kv_idx]\nvalue = score * x\nkeep = ids <= q_idx");
  problem.operands = {{"ids", DType::kI32, {4}, {}}, {"x", DType::kF16, {2}, {3}}};
  return problem;
}

TEST(MakeInputs, WhatNoEntryNamesIsRandom) {
  const AttentionProblem problem = problem_of();
  const ProblemInputs made = make_inputs(problem, {}, 7);
  const ProblemInputs random = random_inputs(problem, {7, {}});
  EXPECT_EQ(made.q, random.q);
  EXPECT_EQ(made.d_o, random.d_o);
  EXPECT_EQ(made.operands[0].bytes, random.operands[0].bytes);
}

TEST(MakeInputs, ValuesLieAsTheirTensorDoes) {
  const AttentionProblem problem = problem_of();
  InputSpec x{.tensor = "x", .kind = InputKind::kValues, .path = {}, .values = {0.5, -2}};
  InputSpec ids{.tensor = "ids", .kind = InputKind::kValues, .path = {}, .values = {3, 1, -4, 0}};
  const ProblemInputs inputs = make_inputs(problem, {x, ids});
  const auto& of_x = inputs.operands[0].bytes;
  EXPECT_EQ(load_element<double>(of_x.data(), DType::kF16, 0), 0.5);
  EXPECT_EQ(load_element<double>(of_x.data(), DType::kF16, 3), -2);
  EXPECT_EQ(of_x[2], std::byte{0xff});  // gaps are as in random inputs
  EXPECT_EQ(load_element<double>(inputs.operands[1].bytes.data(), DType::kI32, 2), -4);
}

TEST(MakeInputs, FillsAreThoseOfRandomInputs) {
  const AttentionProblem problem = problem_of();
  const std::vector<InputSpec> entries{
      {.tensor = "ids", .kind = InputKind::kSegments, .path = {}, .values = {}, .high = 3},
      {.tensor = "k", .kind = InputKind::kNormal, .path = {}, .values = {}, .low = 1, .high = 2},
      {.tensor = "x", .kind = InputKind::kUniform, .path = {}, .values = {}, .low = 4, .high = 5}};
  const ProblemInputs made = make_inputs(problem, entries, 3);
  const ProblemInputs random = random_inputs(
      problem,
      {3, {{"ids", {FillKind::kSegments, 0, 3}}, {"k", {FillKind::kNormal, 1, 2}}, {"x", {FillKind::kUniform, 4, 5}}}});
  EXPECT_EQ(made.k, random.k);
  EXPECT_EQ(made.operands[0].bytes, random.operands[0].bytes);
  EXPECT_EQ(made.operands[1].bytes, random.operands[1].bytes);
}

TEST(MakeInputs, FilesAreReadByTheCaller) {
  const AttentionProblem problem = problem_of();
  const std::vector<InputSpec> entries{{.tensor = "d_o", .kind = InputKind::kNpy, .path = "some.npy", .values = {}}};
  std::string seen;
  const ProblemInputs inputs = make_inputs(problem, entries, 0, [&](const InputSpec& entry, const TensorInfo& tensor) {
    seen = entry.path + " for " + tensor.name + " of " + to_string(tensor.dtype);
    return std::vector<std::byte>(std::size_t{2} * 3 * 2 * 2, std::byte{0});
  });
  EXPECT_EQ(seen, "some.npy for d_o of bf16");
  EXPECT_EQ(inputs.d_o, std::vector<std::byte>(problem::bytes_of(problem, problem::TensorRole::kO), std::byte{0}));
  EXPECT_NE(test::refusal([&] { make_inputs(problem, entries); }).find("some.npy"), std::string::npos);
  const auto too_few = [](const InputSpec&, const TensorInfo&) { return std::vector<std::byte>(2); };
  EXPECT_NE(test::refusal([&] { make_inputs(problem, entries, 0, too_few); }).find("expected 12 elements, found 1"),
            std::string::npos);
}

TEST(MakeInputs, RefusesATensorThatIsNotThere) {
  InputSpec other{.tensor = "other", .kind = InputKind::kValues, .path = {}, .values = {1}};
  EXPECT_NE(test::refusal([&] { make_inputs(problem_of(), {other}); }).find("other"), std::string::npos);
}

}  // namespace
}  // namespace scoremod
