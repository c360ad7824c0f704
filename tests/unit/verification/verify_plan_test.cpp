#include "verification/verify_plan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/problem_for.hpp"
#include "verification/verdict.hpp"

namespace scoremod::verification {
namespace {

using backend::BackwardTensors;
using backend::CallParameters;
using backend::Direction;
using backend::ForwardTensors;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A plan that runs another one, and then spoils its outputs.
class SpoiltForward final : public backend::ForwardPlan {
 public:
  using Spoil = std::function<void(const ForwardTensors&)>;
  SpoiltForward(const compiler::CompiledProblem& problem, Spoil spoil)
      : plan_(backend::cpu::make_forward_plan(problem, {1})), spoil_(std::move(spoil)) {}

  std::size_t workspace_bytes() const override { return plan_->workspace_bytes(); }
  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    plan_->execute(tensors, parameters, workspace);
    if (spoil_) spoil_(tensors);
  }

 private:
  std::unique_ptr<backend::ForwardPlan> plan_;
  Spoil spoil_;
};

class SpoiltBackward final : public backend::BackwardPlan {
 public:
  using Spoil = std::function<void(const BackwardTensors&)>;
  SpoiltBackward(const compiler::CompiledProblem& problem, Spoil spoil)
      : plan_(backend::cpu::make_backward_plan(problem, {1})), spoil_(std::move(spoil)) {}

  std::size_t workspace_bytes() const override { return plan_->workspace_bytes(); }
  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    plan_->execute(tensors, parameters, workspace);
    if (spoil_) spoil_(tensors);
  }

 private:
  std::unique_ptr<backend::BackwardPlan> plan_;
  Spoil spoil_;
};

compiler::CompiledProblem subject_of(const std::string& program) {
  AttentionProblem problem = test::small_problem();
  problem.backward = true;
  problem.stats = true;
  problem.seq_q = 30;
  problem.seq_kv = 70;
  return compiler::compile(test::problem_for(Program::parse(program), problem));
}

struct TrialOf {
  explicit TrialOf(const std::string& program) : TrialOf(subject_of(program)) {}
  explicit TrialOf(compiler::CompiledProblem compiled)
      : subject(std::move(compiled)), trial(subject), problem(trial.problem().problem) {}

  const compiler::CompiledProblem subject;
  Trial trial;
  const AttentionProblem& problem;
};

std::vector<OutputError> forward_errors(TrialOf& of, SpoiltForward::Spoil spoil) {
  return verify_forward(of.trial, SpoiltForward(of.trial.problem(), std::move(spoil)), backend::host_memory());
}

std::vector<OutputError> backward_errors(TrialOf& of, SpoiltBackward::Spoil spoil,
                                         const std::vector<std::uint32_t>& gradients) {
  const SpoiltBackward plan(of.trial.problem(), std::move(spoil));
  return verify_backward(of.trial, plan, backend::host_memory(), gradients);
}

/// The errors that are found in a faulty forward; "" if there are none.
std::string wrong_forward(TrialOf& trial, SpoiltForward::Spoil spoil) {
  return verdict_of(forward_errors(trial, std::move(spoil)), Direction::kForward).reason;
}

std::string wrong_backward(TrialOf& trial, SpoiltBackward::Spoil spoil,
                           const std::vector<std::uint32_t>& gradients = {}) {
  return verdict_of(backward_errors(trial, std::move(spoil), gradients), Direction::kBackward).reason;
}

std::int64_t rows_of(const AttentionProblem& problem) { return problem.batch * problem.heads_q * problem.seq_q; }

/// Calls body(row) for the rows whose LSE is within (low, high), and says how many there are.
int for_rows(const float* lse, std::int64_t rows, double low, double high,
             const std::function<void(std::int64_t)>& body) {
  int count = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const bool is_empty = std::isinf(lse[row]);
    if (is_empty ? low != -kInfinity : !(lse[row] > low && lse[row] < high)) continue;
    ++count;
    body(row);
  }
  return count;
}

void fill(void* data, std::int64_t first, std::int64_t count, float value) {
  std::fill_n(static_cast<float*>(data) + first, count, value);
}

constexpr const char* kBiased = R"(operand bias: f32 [h, kv_idx]
operand kept: bool [b, q_idx]
value = score + bias
keep = kept & kv_idx <= q_idx + 20)";

TEST(VerifyPlan, FindsRightPlansRight) {
  for (const char* program :
       {kBiased, "value = 20.0 * tanh(score / 20.0)", "value = score\nkeep = q_idx - kv_idx <= 16"}) {
    TrialOf trial(program);
    EXPECT_EQ(wrong_forward(trial, {}), "") << program;
    EXPECT_EQ(wrong_backward(trial, {}), "") << program;
  }
  TrialOf biased(kBiased);
  EXPECT_EQ(wrong_backward(biased, {}, {0}), "");
}

/// With one key the weight is 1. dq, dk and the gradient of a bias are differences of equal sums: 0, or the rounding
/// errors of each backend.
TEST(VerifyPlan, TakesWhatRoundingLeavesOfTheGradientsOfOneKey) {
  AttentionProblem one_key = subject_of(kBiased).problem;
  one_key.q.layout = Layout::kBHSD;  // dq's rows are numbered as the LSE's
  one_key.seq_kv = 1;
  one_key.dim_qk = one_key.dim_v = 64;
  one_key.operands[0].shape.back() = 1;
  TrialOf trial(compiler::compile(one_key));
  ASSERT_EQ(trial.problem.seq_kv, 1);
  const std::int64_t rows = rows_of(trial.problem), width = trial.problem.dim_qk;
  // In these rows the trial has not made d_o smaller.
  const auto left = [&](float much) {
    return [&, much](const BackwardTensors& t) {
      for_rows(t.lse, rows, -100, 100,
               [&](std::int64_t r) { fill(t.dq, r * width, width, r % 2 == 0 ? much : -much / 2); });
    };
  };
  EXPECT_EQ(wrong_forward(trial, {}), "");
  EXPECT_EQ(wrong_backward(trial, {}, {0}), "");
  EXPECT_EQ(wrong_backward(trial, left(2e-6F)), "");
  EXPECT_NE(wrong_backward(trial, left(2e-2F)), "") << "much more than their rounding";
  int empty = 0;
  const auto in_empty_rows = [&](const BackwardTensors& t) {
    empty = for_rows(t.lse, rows, -kInfinity, -kInfinity, [&](std::int64_t r) { fill(t.dq, r * width, width, 2e-6f); });
  };
  EXPECT_NE(wrong_backward(trial, in_empty_rows), "") << "rows without a key have no terms";
  EXPECT_GT(empty, 0);
  EXPECT_NE(wrong_backward(trial, [&](const BackwardTensors& t) { static_cast<float*>(t.dk)[0] = kNan; }), "");
  EXPECT_NE(wrong_backward(trial, [&](const BackwardTensors& t) { fill(t.dv, 0, width, 0.5f); }), "");
}

/// A number for each head is a sum of many rounded weights, whose error may by chance be far below their own.
TEST(VerifyPlan, HoldsFewNumbersToTheRoundingOfTheirTerms) {
  AttentionProblem p = subject_of("value = score + f32(kv_idx - q_idx) * 0.1\nkeep = kv_idx <= q_idx").problem;
  p.dtype = DType::kBF16;
  p.sink = Sink::kLearned;
  p.dropout = 0.3F;
  TrialOf trial(compiler::compile(problem::with_implied_operands(p)));
  const std::int64_t heads = trial.problem.heads_q;
  ASSERT_LT(heads, 16);
  const auto times = [&](float factor) {
    return wrong_backward(trial,
                          [&](const BackwardTensors& t) {
                            auto* const gradient = static_cast<float*>(t.d_operands[0]);
                            for (std::int64_t h = 0; h < heads; ++h) gradient[h] *= factor;
                          },
                          {0});
  };
  for (const float few : {0x1p-11f, 0x1p-10f}) {
    EXPECT_EQ(times(1 + few), "");
    EXPECT_EQ(times(1 - few), "");
  }
  EXPECT_NE(times(1 + 0x1p-5f), "");
}

TEST(VerifyPlan, FindsRightPlansOfSequencesThatOffsetsPlaceRight) {
  AttentionProblem ragged = subject_of(kBiased).problem;
  ragged.tokens_q = 40;
  ragged.tokens_kv = 90;
  ragged.q = ragged.k = ragged.v = ragged.o = {Layout::kTHD, {}};
  ragged.index_offsets = true;
  TrialOf trial(compiler::compile(ragged));
  EXPECT_EQ(wrong_forward(trial, {}), "");
  EXPECT_EQ(wrong_backward(trial, {}), "");
}

TEST(VerifyPlan, JudgesRowsWhereOffsetsPlaceThem) {
  AttentionProblem ragged = subject_of(kBiased).problem;
  ragged.tokens_q = 40;
  ragged.tokens_kv = 90;
  ragged.q = ragged.k = ragged.v = ragged.o = {Layout::kTHD, {}};
  TrialOf trial(compiler::compile(ragged));
  EXPECT_LT(*trial.problem.tokens_q, trial.problem.batch * trial.problem.seq_q);
  EXPECT_EQ(wrong_forward(trial, {}), "");
  EXPECT_EQ(wrong_backward(trial, {}, {0}), "");
  const std::int64_t heads = trial.problem.heads_q, last = *trial.problem.tokens_q * heads - 1;
  EXPECT_NE(wrong_forward(trial, [&](const ForwardTensors& t) { t.lse[last] = kNan; }), "");
  EXPECT_NE(wrong_forward(trial,
                          [&](const ForwardTensors& t) {
                            auto* const o = static_cast<float*>(t.o);
                            const std::int64_t row = heads * trial.problem.dim_v;
                            std::rotate(o, o + row, o + row * *trial.problem.tokens_q);
                          }),
            "")
      << "rows of the next tokens";
  EXPECT_NE(wrong_backward(trial, [&](const BackwardTensors& t) { static_cast<float*>(t.dk)[0] = kNan; }), "");
}

TEST(VerifyPlan, JudgesRowsWhereKeysLieInBlocks) {
  AttentionProblem paged = subject_of(kBiased).problem;
  paged.backward = false;
  paged.lengths.kv = true;
  paged.paged = PagedKeys{16, 40, 7};
  TrialOf trial(compiler::compile(paged));
  EXPECT_EQ(wrong_forward(trial, {}), "");
  EXPECT_NE(wrong_forward(trial, [&](const ForwardTensors& t) { static_cast<float*>(t.o)[0] = kNan; }), "");
}

TEST(VerifyPlan, JudgesEveryOutputOnce) {
  TrialOf trial(kBiased);
  std::string names;
  for (const OutputError& output : forward_errors(trial, {})) {
    names += output.name + " ";
  }
  for (const OutputError& output : backward_errors(trial, {}, {0})) {
    names += output.name + " ";
  }
  EXPECT_EQ(names, "o lse dq dk dv gradient of 'bias' ");
}

TEST(VerifyPlan, FindsWhatIsNotWritten) {
  TrialOf trial(kBiased);
  const std::int64_t rows = rows_of(trial.problem);
  EXPECT_NE(wrong_forward(trial, [&](const ForwardTensors& t) { t.lse[rows - 1] = kNan; }), "");
  EXPECT_NE(wrong_forward(trial, [&](const ForwardTensors& t) { static_cast<float*>(t.o)[0] = kNan; }), "");
  for (void* BackwardTensors::*output : {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv}) {
    EXPECT_NE(wrong_backward(trial, [&](const BackwardTensors& t) { static_cast<float*>(t.*output)[0] = kNan; }), "");
  }
  const auto spoil_bias = [&](const BackwardTensors& t) { static_cast<float*>(t.d_operands[0])[0] = kNan; };
  EXPECT_NE(wrong_backward(trial, spoil_bias, {0}), "");
}

TEST(VerifyPlan, AsksForTheNamedGradientsOnly) {
  TrialOf trial("operand slope: f32 [h]\noperand shift: f32 [q_idx]\nvalue = score * slope + shift");
  bool asked = false;
  const auto look = [&](const BackwardTensors& t) {
    asked = true;
    EXPECT_EQ(t.d_operands[0], nullptr);
    EXPECT_NE(t.d_operands[1], nullptr);
  };
  EXPECT_EQ(wrong_backward(trial, look, {1}), "");
  EXPECT_TRUE(asked);
}

struct WrongRows {
  double low, high;  ///< of their LSE; -infinity is that of rows without a key
  const char* named;
};

constexpr WrongRows kEmptyRows{-kInfinity, -kInfinity, "rows without a key"};
constexpr WrongRows kLowRows{-1e3, -100, "rows whose LSE is below -100"};
constexpr WrongRows kHighRows{100, 1e3, "rows whose LSE is above 100"};

TEST(VerifyPlan, FindsForwardsThatAreWrongInOneClassOfRows) {
  TrialOf trial(kBiased);
  const std::int64_t rows = rows_of(trial.problem), width = trial.problem.dim_v;
  for (const WrongRows& wrong : {kEmptyRows, kLowRows, kHighRows}) {
    int count = 0;
    const std::string nan_in_o = wrong_forward(trial, [&](const ForwardTensors& t) {
      count = for_rows(t.lse, rows, wrong.low, wrong.high, [&](std::int64_t r) { fill(t.o, r * width, width, kNan); });
    });
    EXPECT_GT(count, 0) << wrong.named;
    EXPECT_LT(count, rows / 2) << wrong.named;
    EXPECT_NE(nan_in_o.find("wrong o"), std::string::npos) << wrong.named << ": " << nan_in_o;
    const std::string off_lse = wrong_forward(trial, [&](const ForwardTensors& t) {
      for_rows(t.lse, rows, wrong.low, wrong.high,
               [&](std::int64_t r) { t.lse[r] = std::isinf(t.lse[r]) ? -1e30f : t.lse[r] * (1 + 0x1p-16f); });
    });
    EXPECT_NE(off_lse.find("wrong lse"), std::string::npos) << wrong.named << ": " << off_lse;
  }
}

TEST(VerifyPlan, FindsAWrongBackwardOfOneClassOfRows) {
  TrialOf trial(kBiased);
  const std::int64_t rows = rows_of(trial.problem), width = trial.problem.dim_qk;
  for (const WrongRows& wrong : {kEmptyRows, kLowRows, kHighRows}) {
    for (const float value : {kNan, 1.0f}) {
      const std::string reason = wrong_backward(trial, [&](const BackwardTensors& t) {
        for_rows(t.lse, rows, wrong.low, wrong.high, [&](std::int64_t r) { fill(t.dq, r * width, width, value); });
      });
      EXPECT_NE(reason.find("wrong dq"), std::string::npos) << wrong.named << ": " << reason;
    }
  }
}

TEST(VerifyPlan, FindsOneRowOfDqThatIsZero) {
  TrialOf trial(kBiased);
  const std::int64_t width = trial.problem.dim_qk;
  const std::string reason = wrong_backward(trial, [&](const BackwardTensors& t) {
    int row = 0;
    for_rows(t.lse, rows_of(trial.problem), -20, 20, [&](std::int64_t r) {
      if (row++ == 7) fill(t.dq, r * width, width, 0);
    });
    EXPECT_GT(row, 7);
  });
  EXPECT_NE(reason.find("wrong dq"), std::string::npos) << reason;
}

TEST(Trial, MakesEachPartOnceForAllThreads) {
  TrialOf of("value = score\nkeep = q_idx - kv_idx <= 16");
  of.trial.begin(Direction::kForward);
  of.trial.begin(Direction::kBackward);
  const auto* truth = &of.trial.backward_truth();
  std::vector<std::future<const void*>> asked;
  for (int i = 0; i < 4; ++i)
    asked.push_back(std::async(std::launch::async, [&]() -> const void* { return &of.trial.backward_truth(); }));
  for (auto& answer : asked) EXPECT_EQ(answer.get(), truth);
  EXPECT_EQ(of.trial.plain_backward().dq.size(), truth->dq.size());
}

}  // namespace
}  // namespace scoremod::verification
