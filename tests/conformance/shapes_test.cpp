#include <array>

#include <gtest/gtest.h>

#include "conformance/conformance.hpp"

namespace scoremod {
namespace {

AttentionProblem base_problem(const std::string& program) {
  AttentionProblem problem;
  problem.dim_qk = problem.dim_v = 16;
  problem.program = Program::parse(program);
  problem.backward = problem.stats = true;
  return problem;
}

class Backends : public ::testing::TestWithParam<std::string> {};

TEST_P(Backends, EveryPairOfLengths) {
  constexpr std::array<std::int64_t, 8> kLengths{1, 7, 63, 64, 65, 127, 130, 200};
  for (const char* keep : {"true", "kv_idx <= q_idx", "abs(q_idx - kv_idx) < 5"}) {
    for (const std::int64_t seq_q : kLengths) {
      for (const std::int64_t seq_kv : kLengths) {
        AttentionProblem problem = base_problem(std::string("value = 8.0 * tanh(score / 8.0)\nkeep = ") + keep);
        problem.seq_q = seq_q;
        problem.seq_kv = seq_kv;
        // The larger pairs take most of the time; one mask is enough for them.
        if (seq_q * seq_kv > 10000 && std::string(keep) != "kv_idx <= q_idx") continue;
        test::expect_conforms(GetParam(), {std::string("lengths/") + keep, problem});
      }
    }
  }
}

TEST_P(Backends, EveryKindOfHeadDim) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t dim_qk : {1, 2, 3, 8, 17, 64, 100, 128, 256}) {
      for (const std::int64_t dim_v : {dim_qk, std::int64_t{5}, std::int64_t{64}}) {
        AttentionProblem problem = base_problem("value = score * score / 16.0\nkeep = kv_idx != 3");
        problem.dtype = dtype;
        problem.seq_q = 9;
        problem.seq_kv = 20;
        problem.dim_qk = dim_qk;
        problem.dim_v = dim_v;
        test::expect_conforms(GetParam(), {"head_dims", problem});
      }
    }
  }
}

TEST_P(Backends, OperandsOverEverySubsetOfTheAxes) {
  constexpr std::array kAxes{"b", "h", "q_idx", "kv_idx"};
  for (unsigned subset = 0; subset < 16; ++subset) {
    std::string axes;
    AttentionProblem problem = base_problem("value = score");
    problem.batch = 2;
    problem.heads_q = 4;
    problem.heads_kv = 2;
    problem.seq_q = 19;
    problem.seq_kv = 37;
    const std::array sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
    std::vector<std::int64_t> shape;
    for (unsigned axis = 0; axis < 4; ++axis) {
      if ((subset >> axis & 1U) == 0) continue;
      axes += std::string(axes.empty() ? "" : ", ") + kAxes[axis];
      shape.push_back(sizes[axis]);
    }
    problem.program =
        Program::parse("operand x: f32 [" + axes + "]\noperand n: i32 [" + axes + "]\noperand on: bool [" + axes +
                       "]\nvalue = select(on, score * x, score - x) + f32(n) / 8.0\n"
                       "keep = on | (kv_idx != n)");
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      problem.operands = {{"x", dtype, shape, {}}, {"n", DType::kI32, shape, {}}, {"on", DType::kBool, shape, {}}};
      test::expect_conforms(GetParam(), {"operand [" + axes + "]", problem});
    }
  }
}

TEST_P(Backends, Layouts) {
  constexpr std::array kLayouts{Layout::kBSHD, Layout::kSBHD, Layout::kBHSD};
  for (std::size_t i = 0; i < 9; ++i) {
    AttentionProblem problem = base_problem("value = score\nkeep = kv_idx <= q_idx");
    problem.batch = 2;
    problem.heads_q = 6;
    problem.heads_kv = 3;
    problem.seq_q = problem.seq_kv = 20;
    problem.q.layout = kLayouts[i % 3];
    problem.k.layout = kLayouts[i / 3];
    problem.v.layout = kLayouts[(i + 1) % 3];
    problem.o.layout = kLayouts[(i + 2) % 3];
    test::expect_conforms(GetParam(), {"layouts", problem});
  }
}

TEST_P(Backends, OffsetsOfAShard) {
  AttentionProblem problem = base_problem(
      "operand slope: f32 [h]\nvalue = score - slope * f32(q_idx - kv_idx) / 16.0 + f32(b % 3) * f32(h % 5)\n"
      "keep = (kv_idx <= q_idx) & (q_idx - kv_idx < 100)");
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = 66;
  problem.seq_kv = 130;
  problem.operands = {{"slope", DType::kF32, {2}, {}}};
  problem.index_offsets = true;
  for (const IndexOffsets offsets : {IndexOffsets{0, 0, 64, 0}, IndexOffsets{7, 9, 0, 64},
                                     IndexOffsets{1, 1, 1000, 990}, IndexOffsets{0, 0, 0, 500}}) {
    checking::CheckCase test_case{"offsets", problem};
    test_case.call.offsets = offsets;
    test::expect_conforms(GetParam(), test_case);
  }
}

TEST_P(Backends, ScaleOfTheCall) {
  AttentionProblem problem = base_problem("value = 3.0 * tanh(score / 3.0)");
  problem.seq_q = problem.seq_kv = 40;
  for (const float scale : {0.0F, 1.0F, -0.25F}) {
    checking::CheckCase test_case{"scale", problem};
    test_case.call.scale = scale;
    test::expect_conforms(GetParam(), test_case);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Backends, ::testing::ValuesIn(test::tested_backends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace scoremod
