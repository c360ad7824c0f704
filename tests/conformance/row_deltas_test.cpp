// Rows' deltas of a backward whose O is rounded. A small error in delta makes the gradient of a learned factor over a
// row all wrong.

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/concat.hpp"
#include "base/element.hpp"
#include "conformance/host_calls.hpp"
#include "support/problem_for.hpp"

namespace scoremod {
namespace {

/// Numbers of 16 bits, in float32.
std::vector<std::byte> widened(const std::vector<std::byte>& bytes, DType dtype) {
  const std::size_t count = bytes.size() / size_of(dtype);
  std::vector<std::byte> wide(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    store_element(wide.data(), DType::kF32, at, load_element<float>(bytes.data(), dtype, at));
  }
  return wide;
}

double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(squares);
}
double size_of_all(const std::vector<double>& x) { return distance(x, std::vector<double>(x.size(), 0)); }

struct Case {
  const char* name;
  DType dtype;
  std::int64_t seq_q, seq_kv;
  Sink sink = Sink::kNone;
  float dropout = 0;
  const char* program = "operand x: f32 [h]\nvalue = score - x * f32(abs(q_idx - kv_idx))";
};

class RowDeltas : public ::testing::TestWithParam<Case> {};

/// As exact as where no O is rounded, which is the same problem of the same numbers in float32.
TEST_P(RowDeltas, HaveNothingOfTheRoundingOfO) {
  AttentionProblem problem;
  problem.batch = problem.heads_kv = 1;
  problem.heads_q = 2;
  problem.seq_q = GetParam().seq_q;
  problem.seq_kv = GetParam().seq_kv;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = GetParam().dtype;
  problem.sink = GetParam().sink;
  problem.dropout = GetParam().dropout;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(GetParam().program);
  problem.operands = {{"x", DType::kF32, {problem.heads_q}, {}}};
  ProblemInputs inputs = random_inputs(problem);
  test::set_operand(problem, inputs, "x", {0.01, 0.003});
  const std::string gradient = "d_x";
  const std::vector<double> truth = test::output_values(test::run_calls(problem, inputs, "reference"), gradient);
  const std::vector<double> found = test::output_values(test::run_calls(problem, inputs, "cpu"), gradient);
  AttentionProblem wide = problem;
  wide.dtype = DType::kF32;
  for (auto* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_o}) *tensor = widened(*tensor, problem.dtype);
  const std::vector<double> unrounded = test::output_values(test::run_calls(wide, inputs, "cpu"), gradient);
  // Some roundings of float32 beside: the two make their sums in another order.
  EXPECT_LE(distance(found, truth), 2 * distance(unrounded, truth) + 0x1p-20 * size_of_all(truth))
      << found[0] << " " << found[1] << ", expected " << truth[0] << " " << truth[1];
}
INSTANTIATE_TEST_SUITE_P(Cases, RowDeltas,
                         ::testing::Values(Case{"OneTile", DType::kBF16, 96, 96},
                                           Case{"ManyTiles", DType::kBF16, 300, 700},
                                           Case{"F16", DType::kF16, 300, 700}, Case{"OneQuery", DType::kBF16, 1, 700},
                                           Case{"WithSink", DType::kBF16, 128, 300, Sink::kLearned},
                                           Case{"WithDropout", DType::kBF16, 128, 300, Sink::kNone, 0.25F},
                                           Case{"FarLse", DType::kBF16, 128, 300, Sink::kNone, 0,
                                                "operand x: f32 [h]\nvalue = score - x * f32(abs(q_idx - kv_idx)) - "
                                                "10000.0"}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace scoremod
