// Trials of discontinuous programs, and of plans with approximate functions and products: right results are accepted,
// and wrong ones are still found.

#include "verification/moved_evaluation.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "backend/cpu/forward_plan.hpp"
#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"
#include "support/problem_for.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::verification {
namespace {

namespace reference = backend::reference;
using backend::BackwardTensors;
using backend::CallParameters;
using backend::Direction;
using backend::ForwardTensors;

/// As the kernels' on a GPU.
constexpr OperationErrors kOfKernels{0x1p-20, 0x1p-20};

/// log(d / 4) / log(4) * 4 is 2 at d = 8, where the last digit of float32's rounding decides. With `step` more
/// everywhere, it is wrong.
std::string buckets(int step = 0) {
  return "table bias: f32 rank 2\n"
         "let d = max(q_idx - kv_idx, 0)\n"
         "let far = i32(log(f32(max(d, 1)) / 4.0) / 1.38629436 * 4.0)\n"
         "value = score + bias[select(d < 4, d, min(4 + far, 7)) + " +
         std::to_string(step) + ", h]";
}

AttentionProblem float32_problem(const std::string& program, DType dtype = DType::kF32) {
  AttentionProblem problem = test::small_problem();
  problem.dtype = dtype;
  problem.backward = problem.stats = true;
  problem.seq_q = 33;
  problem.seq_kv = 40;
  problem.dim_qk = problem.dim_v = 16;
  problem = test::problem_for(Program::parse(program), problem, 8);
  for (OperandSpec& operand : problem.operands) operand.dtype = DType::kF32;
  return problem;
}

struct TrialOf {
  explicit TrialOf(const AttentionProblem& problem) : subject(compiler::compile(problem)), trial(subject) {}
  const compiler::CompiledProblem subject;
  Trial trial;
};

/// The plain evaluation of a problem in float32 as a plan, moved: one whose functions give other last digits. A
/// backward takes o and the LSE as they are given.
class PlainForward final : public backend::ForwardPlan {
 public:
  PlainForward(const compiler::CompiledProblem& compiled, const reference::Moves& moves)
      : compiled_(compiled), moves_(moves) {}
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const ForwardTensors& t, const CallParameters& parameters, std::span<std::byte>) const override {
    const auto result =
        reference::forward<float>(compiled_, {t.q, t.k, t.v, nullptr, t.operands}, parameters, {}, moves_);
    reference::store_dense(compiled_.problem, problem::TensorRole::kO, result.o, t.o);
    reference::store_dense(compiled_.problem, problem::TensorRole::kLse, result.lse, t.lse);
  }

 private:
  const compiler::CompiledProblem compiled_;
  const reference::Moves moves_;
};

class PlainBackward final : public backend::BackwardPlan {
 public:
  PlainBackward(compiler::CompiledProblem compiled, const reference::Moves& moves, float factor_of_dv = 1)
      : compiled_(std::move(compiled)), moves_(moves), factor_of_dv_(factor_of_dv) {
    compiled_.problem.given_deltas = true;
  }
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const BackwardTensors& t, const CallParameters& parameters, std::span<std::byte>) const override {
    const AttentionProblem& p = compiled_.problem;
    auto result =
        reference::backward<float>(compiled_, {t.q, t.k, t.v, t.d_o, t.operands, t.o, t.lse}, parameters, {}, moves_);
    for (float& x : result.dv) x *= factor_of_dv_;
    reference::store_dense(p, problem::TensorRole::kDQ, result.dq, t.dq);
    reference::store_dense(p, problem::TensorRole::kDK, result.dk, t.dk);
    reference::store_dense(p, problem::TensorRole::kDV, result.dv, t.dv);
    for (std::size_t i = 0; i < p.operands.size(); ++i) {
      if (t.d_operands[i] == nullptr) continue;
      problem::tensor_of("", p.operands[i]).for_each_offset([&](std::int64_t number, std::int64_t offset) {
        store_element(t.d_operands[i], p.operands[i].dtype, offset,
                      static_cast<double>(result.d_operands[i][static_cast<std::size_t>(number)]));
      });
    }
  }

 private:
  compiler::CompiledProblem compiled_;
  const reference::Moves moves_;
  const float factor_of_dv_;
};

/// Takes d_o in bf16, as kernels do whose products are of that.
class WithRoundedDO final : public backend::BackwardPlan {
 public:
  explicit WithRoundedDO(const compiler::CompiledProblem& compiled) : problem_(compiled.problem), plan_(compiled, {}) {}
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const BackwardTensors& t, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const DType dtype = problem::dtype_of(problem_, problem::TensorRole::kDO);
    std::vector<std::byte> rounded(problem::bytes_of(problem_, problem::TensorRole::kDO)), half(2);
    for (std::size_t i = 0; i < rounded.size() / size_of(dtype); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      store_element(half.data(), DType::kBF16, 0, load_element<double>(t.d_o, dtype, at));
      store_element(rounded.data(), dtype, at, load_element<double>(half.data(), DType::kBF16, 0));
    }
    BackwardTensors tensors = t;
    tensors.d_o = rounded.data();
    plan_.execute(tensors, parameters, workspace);
  }

 private:
  const AttentionProblem problem_;
  const PlainBackward plan_;
};

class WithoutASinksGradient final : public backend::BackwardPlan {
 public:
  explicit WithoutASinksGradient(const compiler::CompiledProblem& compiled)
      : sink_(problem::sink_operand(compiled.problem).value()),
        heads_(static_cast<std::size_t>(compiled.problem.heads_q)),
        plan_(compiled, {}) {}
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const BackwardTensors& t, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    plan_.execute(t, parameters, workspace);
    std::ranges::fill(std::span(static_cast<float*>(t.d_operands[sink_]), heads_), 0.0F);
  }

 private:
  const std::uint32_t sink_;
  const std::size_t heads_;
  const PlainBackward plan_;
};

std::string wrong_forward(Trial& trial, const backend::ForwardPlan& plan, const OperationErrors& errors) {
  return verdict_of(verify_forward(trial, plan, backend::host_memory(), errors), Direction::kForward).reason;
}

std::string wrong_backward(Trial& trial, const backend::BackwardPlan& plan, const OperationErrors& errors) {
  const auto gradients = problem::operands_with_gradient(trial.problem().problem);
  return verdict_of(verify_backward(trial, plan, backend::host_memory(), gradients, true, errors), Direction::kBackward)
      .reason;
}

class Buckets : public testing::TestWithParam<double> {};

TEST_P(Buckets, OnEitherSideOfAJumpAreRight) {
  const reference::Moves moves{0, GetParam()};
  TrialOf of(float32_problem(buckets()));
  EXPECT_EQ(wrong_forward(of.trial, PlainForward(of.trial.problem(), moves), kOfKernels), "");
  EXPECT_EQ(wrong_backward(of.trial, PlainBackward(of.trial.problem(), moves), kOfKernels), "");
}

INSTANTIATE_TEST_SUITE_P(Moved, Buckets, testing::Values(-0x1p-22, 0.0, 0x1p-22));

/// Programs with jumps, and plans that are on another side of them than the oracle or the plain evaluation is.
struct Jump {
  const char* program;
  reference::Moves moves;

  friend void PrintTo(const Jump& jump, std::ostream* out) { *out << jump.program; }
};

class Jumps : public testing::TestWithParam<Jump> {};

TEST_P(Jumps, AreTakenOnEitherSide) {
  for (const double side : {-1.0, 1.0}) {
    const reference::Moves moves{side * GetParam().moves.score, side * GetParam().moves.function};
    TrialOf of(float32_problem(GetParam().program));
    EXPECT_EQ(wrong_forward(of.trial, PlainForward(of.trial.problem(), moves), kOfKernels), "") << side;
    EXPECT_EQ(wrong_backward(of.trial, PlainBackward(of.trial.problem(), moves), kOfKernels), "") << side;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Jumps,
                         testing::Values(Jump{"value = score + floor(score * 1024.0) / 8.0", {0x1p-21, 0}},
                                         Jump{"value = select(i32(score * 64.0) % 2 == 0, score, score * -1.0)",
                                              {0x1p-21, 0}},
                                         Jump{"let d = f32(max(q_idx - kv_idx, 1))\n"
                                              "value = score + select(log(d) / 1.38629436 < 1.5, 0.0, 4.0)",
                                              {0, 0x1p-22}},
                                         Jump{"let d = f32(max(q_idx - kv_idx, 1))\n"
                                              "value = score + floor(log(d) / 1.38629436 * 2.0)",
                                              {0, 0x1p-22}}));

/// MMAs of float32 in the kernels have larger errors than the plain evaluation's products. In rows whose score is
/// nearly one product these do not average out.
AttentionProblem long_float32_problem() {
  AttentionProblem problem =
      float32_problem("operand factor: f32 [b]\noperand bias: f32 [h]\nvalue = score * factor + bias");
  problem.seq_q = problem.seq_kv = 128;
  problem.dim_qk = problem.dim_v = 64;
  problem.q = problem.k = problem.v = problem.o = test::small_problem().q;
  return problem;
}

TEST(MovedEvaluation, TakesProductsOfFloat32AsTheKernelsMakeThem) {
  TrialOf of(long_float32_problem());
  for (const double side : {-1.0, 1.0}) {
    const PlainForward plan(of.trial.problem(), {side * 0x1p-21, side * 0x1p-22});
    EXPECT_NE(wrong_forward(of.trial, plan, {}), "") << "so this is what float32's own rounding does not explain";
    EXPECT_EQ(wrong_forward(of.trial, plan, kOfKernels), "");
    EXPECT_EQ(wrong_backward(of.trial, PlainBackward(of.trial.problem(), {side * 0x1p-21, side * 0x1p-22}), kOfKernels),
              "");
  }
}

TEST(MovedEvaluation, FindsProductsOfTwoDigitsLessWrong) {
  TrialOf of(long_float32_problem());
  const reference::Moves moves{0x1p-16, 0};
  EXPECT_NE(wrong_forward(of.trial, PlainForward(of.trial.problem(), moves), kOfKernels), "");
  EXPECT_NE(wrong_backward(of.trial, PlainBackward(of.trial.problem(), moves), kOfKernels), "");
}

/// A trial of one program, and plans of another with the same operands.
TEST(MovedEvaluation, FindsBucketsThatAreOffByOneWrong) {
  TrialOf of(float32_problem(buckets()));
  compiler::CompiledProblem wrong = of.trial.problem();
  wrong.problem.program = Program::parse(buckets(1));
  EXPECT_NE(wrong_forward(of.trial, PlainForward(wrong, {}), kOfKernels), "");
  EXPECT_NE(wrong_backward(of.trial, PlainBackward(wrong, {}), kOfKernels), "");
}

/// The gradients of this problem follow from the given o. A tolerance by o's rounding in memory, which equals d_o's
/// here, accepted the second plan.
TEST(MovedEvaluation, FindsGradientsOfOperandsFromARoundedDOWrong) {
  AttentionProblem problem = test::small_problem();
  problem.backward = problem.stats = problem.given_deltas = true;
  problem.heads_q = 6;
  problem.heads_kv = 2;
  problem.seq_q = 17;
  problem.seq_kv = 130;
  problem.dim_qk = 128;
  problem.dim_v = 40;
  problem.dtype = DType::kBF16;
  problem.dtype_o = DType::kF16;
  problem = test::problem_for(Program::parse("operand x: f32 [kv_idx]\noperand y: f32 [q_idx]\n"
                                             "value = (tanh(score) + x + score - y) * 0.88\nkeep = q_idx >= h"),
                              problem, 8);
  for (OperandSpec& operand : problem.operands) operand.dtype = DType::kF32;
  TrialOf of(problem);
  const compiler::CompiledProblem& trial = of.trial.problem();
  EXPECT_EQ(wrong_backward(of.trial, PlainBackward(trial, {}), kOfKernels), "");
  const std::string reason = wrong_backward(of.trial, WithRoundedDO(trial), kOfKernels);
  EXPECT_NE(reason.find("gradient of 'x'"), std::string::npos) << reason;
}

/// A sink that is far below the scores, and the trial of a plan without the sink's gradient.
std::string wrong_without_the_sinks_gradient(const std::string& program) {
  AttentionProblem problem = float32_problem(program);
  problem.sink = Sink::kLearned;
  TrialOf of(problem);
  return wrong_backward(of.trial, WithoutASinksGradient(of.trial.problem()), kOfKernels);
}

/// A GPU flushes weights below float32's normal numbers, and with them the gradient of such a sink. Trials were refused
/// for that.
TEST(MovedEvaluation, TakesASinkWhoseWeightsAreFlushed) {
  EXPECT_EQ(wrong_without_the_sinks_gradient("value = score + 90.0"), "");
  EXPECT_NE(wrong_without_the_sinks_gradient("value = score + 20.0").find("gradient of 'sink'"), std::string::npos);
}

TEST(MovedEvaluation, FindsAWrongDvWrong) {
  TrialOf of(float32_problem(buckets()));
  EXPECT_NE(wrong_backward(of.trial, PlainBackward(of.trial.problem(), {}, 1.5F), kOfKernels).find("dv"),
            std::string::npos);
}

}  // namespace
}  // namespace scoremod::verification
