// Times of the forward with FP8 products, beside that of 16 bits at the same sizes.

#include <array>
#include <utility>
#include <vector>

#include "backend/kernels/float8/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "compiler/pipeline.hpp"
#include "device/attention_kernel_calls.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr const char* kSoftCap = "value = tanh(score * 0.02) * 50.0";
constexpr Sizes k8192{.batch = 2, .seq_q = 8192, .seq_kv = 8192};
constexpr std::array kCases{
    Timed{"FP8, full", kPlain},
    Timed{"FP8, causal", kCausal},
    Timed{"FP8, full, 8192", kPlain, k8192},
    Timed{"FP8, causal, 8192", kCausal, k8192},
    Timed{"FP8, soft cap", kSoftCap},
    Timed{"FP8, full, head dim 64", kPlain, {.dim = 64}},
    Timed{"FP8, causal, head dim 64", kCausal, {.dim = 64}},
    Timed{"FP8, full, head dims 256 and 128", kPlain, {.dim = 256, .dim_v = 128}},
    Timed{"FP8, causal, grouped heads",
          kCausal,
          {.batch = 1, .heads_q = 32, .heads_kv = 8, .seq_q = 8192, .seq_kv = 8192}},
};

/// The forward of a case, in e4m3 with o in bf16, or in bf16.
AttentionProblem forward_of(const Timed& timed, bool float8) {
  AttentionProblem problem = problem_of(timed);
  problem.backward = false;
  if (float8) {
    problem.dtype = DType::kE4M3;
    // Random FP8 numbers of q and k have a standard deviation of 32 each, and the scales that go with them are about 1.
    problem.scale = problem.effective_scale() / (32 * 32);
    problem.dtype_o = DType::kBF16;
  }
  return problem::with_implied_operands(std::move(problem));
}

double time_of(const AttentionProblem& problem, const AnyShape& shape) {
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  std::vector<std::unique_ptr<ForwardPlan>> plans;
  plans.push_back(forward_plan(test::attention_call(compiled, Direction::kForward, shape),
                               modules_of(compiled, Direction::kForward, shape)));
  if (builds_alone()) return 0;
  AttentionProblem small = problem;
  small.batch = 1;
  ProblemInputs inputs = random_inputs(small);
  inputs.d_o = inputs.q;
  const Call call(problem, inputs);
  return medians_in_turns(plans, call.forward, call.parameters).front();
}

class Float8AttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(Float8AttentionKernelTimes, OfACase) {
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  const Timed& timed = kCases[static_cast<std::size_t>(GetParam())];
  for (const bool float8 : {true, false}) {
    const AttentionProblem problem = forward_of(timed, float8);
    const AnyShape shape =
        float8 ? AnyShape(float8_shape(problem)) : AnyShape(hopper_shapes(problem, Direction::kForward).front());
    const double ms = time_of(problem, shape);
    if (!builds_alone()) record_time(timed, "forward", shape, ms);
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, Float8AttentionKernelTimes, ::testing::Range(0, static_cast<int>(kCases.size())));

}  // namespace
}  // namespace scoremod::backend::kernels
