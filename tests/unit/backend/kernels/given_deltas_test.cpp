// A gradient of the LSE that o and d_o carry, in the host's backward and in the operand-gradient kernel on a host.

#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"

#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/emulated_device.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr int kLength = 100, kDim = 16, kWide = kDim + 8;

AttentionProblem problem_of(bool given_deltas) {
  AttentionProblem p;
  p.seq_q = p.seq_kv = kLength;
  p.dim_qk = kDim;
  p.dim_v = kWide;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  p.given_deltas = given_deltas;
  p.program =
      Program::parse("operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx");
  for (const OperandDecl& declared : p.program.operands()) p.operands.push_back(problem::default_spec(p, declared));
  return p;
}

/// The slope's gradient of both, where v has columns of ones, d_o a gradient of the LSE and o zeros in the first.
class LseGradient {
 public:
  LseGradient() : random_(test::test_seed()) {
    q_ = tensor(kDim, [&](int) { return normal_(random_); });
    k_ = tensor(kDim, [&](int) { return normal_(random_); });
    v_ = tensor(kWide, [&](int d) { return d < kDim ? normal_(random_) : 1.0; });
    d_o_ = tensor(kWide, [&](int d) { return d < kDim ? normal_(random_) : d == kDim ? 2.0 + normal_(random_) : 0.0; });
    o_ = tensor(kWide, [](int) { return 0.0; });
  }

  float on_the_host(const AttentionProblem& p) {
    CompileOptions options;
    options.backend = "cpu";
    const Attention cpu = Attention::compile(p, options);
    ForwardArgs forward;
    forward.q = in(q_);
    forward.k = in(k_);
    forward.v = in(v_);
    forward.o = out(o_);
    forward.lse = out(lse_);
    forward.operands = {{"slope", in(slope_)}};
    cpu.forward(forward);
    for (int row = 0; row < kLength; ++row) {
      for (int d = kDim; d < kWide; ++d) store_element(o_.data(), DType::kBF16, row * kWide + d, 0.0);
    }
    std::vector<std::byte> dq = q_, dk = k_, dv = v_;
    std::array<float, 1> gradient{};
    BackwardArgs backward;
    backward.q = in(q_);
    backward.k = in(k_);
    backward.v = in(v_);
    backward.o = in(o_);
    backward.lse = in(lse_);
    backward.d_o = in(d_o_);
    backward.operands = {{"slope", in(slope_)}};
    backward.dq = out(dq);
    backward.dk = out(dk);
    backward.dv = out(dv);
    backward.d_operands = {{"slope", out(gradient)}};
    cpu.backward(backward);
    return gradient[0];
  }

  /// After on_the_host(), which makes o and the LSE.
  float by_the_kernel(const AttentionProblem& p) {
    const auto compiled = compiler::compile(p);
    const test::EmulatedOperandKernels kernels(
        compiled, operand_targets(compiled, problem::operands_with_gradient(p), Gains::kApart),
        portable_shape(p, Direction::kBackward));
    std::vector<std::byte> dq = q_, dk = k_, dv = v_, scratch(kernels.kernels().workspace_bytes() + 256);
    std::array<float, 1> gradient{};
    const std::vector<const void*> operands{slope_.data()};
    std::vector<void*> gradients{gradient.data()};
    const BackwardTensors tensors{q_.data(), k_.data(), v_.data(), o_.data(), lse_.data(), d_o_.data(),
                                  operands,  dq.data(), dk.data(), dv.data(), gradients};
    const auto aligned = (reinterpret_cast<std::uintptr_t>(scratch.data()) + 255) / 256 * 256;
    kernels.run(kernels.kernels().arguments(tensors, {p.effective_scale(), {}, nullptr, 0, 0},
                                            reinterpret_cast<std::byte*>(aligned)),
                1);
    return gradient[0];
  }

 private:
  template <class Value>
  static std::vector<std::byte> tensor(int dim, Value value) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(kLength * dim) * size_of(DType::kBF16));
    for (int i = 0; i < kLength * dim; ++i) store_element(bytes.data(), DType::kBF16, i, value(i % dim));
    return bytes;
  }
  template <class Range>
  static ConstBuffer in(const Range& x) {
    return {x.data(), x.size() * sizeof(x[0])};
  }
  template <class Range>
  static Buffer out(Range& x) {
    return {x.data(), x.size() * sizeof(x[0])};
  }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<std::byte> q_, k_, v_, d_o_, o_;
  std::vector<float> lse_ = std::vector<float>(kLength);
  std::array<float, 1> slope_{0.1F};
};

TEST(GivenDeltas, BringAGradientOfTheLseToOperands) {
  LseGradient run;
  const AttentionProblem given = problem_of(true), own = problem_of(false);
  const float expected = run.on_the_host(given);
  // Both add up the same float32 products of the same bf16 numbers, in another order.
  EXPECT_NEAR(run.by_the_kernel(given), expected, 1e-3F * std::abs(expected));
  // Deltas of the kernel's own weights know nothing of it.
  EXPECT_GT(std::abs(run.by_the_kernel(own) - expected), 0.1F * std::abs(expected));
}

TEST(GivenDeltas, AreNotMadeOfFewRowsOwnWeights) {
  AttentionProblem few = problem_of(false);
  few.seq_q = 20;
  EXPECT_TRUE(portable_shape(few, Direction::kBackward).recomputed_delta);
  few.given_deltas = true;
  EXPECT_FALSE(portable_shape(few, Direction::kBackward).recomputed_delta);
}

}  // namespace
}  // namespace scoremod::backend::kernels
