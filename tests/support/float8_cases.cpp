#include "support/float8_cases.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"

namespace scoremod::test {
namespace {

constexpr std::array kOutputs{DType::kF32, DType::kBF16, DType::kF16};

std::int64_t dims_near(std::int64_t dims, std::int64_t most) {
  constexpr std::int64_t kStep = 32;
  return std::clamp((dims + kStep - 1) / kStep * kStep, kStep, most);
}

bool has_own_strides(const AttentionProblem& p) {
  return std::ranges::any_of(std::array{&p.q, &p.k, &p.v, &p.o},
                             [](const TensorLayout* tensor) { return tensor->strides.has_value(); });
}

}  // namespace

std::vector<checking::CheckCase> float8_cases(bool small) {
  constexpr std::int64_t kWidestOfQk = 256, kWidestOfV = 128;
  std::vector<checking::CheckCase> cases;
  for (checking::CheckCase& test : attention_kernels_cases(small)) {
    AttentionProblem& p = test.problem;
    const bool is_dense = !p.tokens_q && !p.tokens_kv && !p.paged;
    if (!is_dense || has_own_strides(p) || p.dtype == DType::kF32 || p.given_deltas) continue;
    p.dim_qk = dims_near(p.dim_qk, kWidestOfQk);
    p.dim_v = dims_near(p.dim_v, kWidestOfV);
    p.dtype = DType::kE4M3;
    p.dtype_o = kOutputs[cases.size() % kOutputs.size()];
    p.backward = false;
    p.d_o = p.dq = p.dk = p.dv = std::nullopt;
    for (OperandSpec& operand : p.operands) operand.gradient = false;
    p = problem::with_implied_operands(std::move(p));
    cases.push_back(std::move(test));
  }
  return cases;
}

}  // namespace scoremod::test
