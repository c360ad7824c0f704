#include "check/rounding_band.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "check/check_memory.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;

constexpr double kFunctionError = 0x1p-17;
constexpr int kKeys = 400;
const backend::CallParameters kCall{.scale = 0.25F, .offsets = {}};

compiler::CompiledProblem one_row(const std::string& value, bool backward = false) {
  AttentionProblem problem;
  problem.seq_q = 1;
  problem.seq_kv = kKeys;
  problem.dim_qk = problem.dim_v = 16;
  problem.backward = problem.stats = backward;
  problem.program = Program::parse("value = " + value);
  return compiler::compile(problem);
}

/// The inputs of the one-row problems, whatever their program.
struct Inputs {
  CheckMemory memory{one_row("score", true).problem, random_inputs(one_row("score", true).problem), 0};

  reference::InputTensors tensors() { return memory.reference_inputs(); }
  double lse(const std::string& value) {
    return reference::forward<double>(one_row(value), tensors(), kCall).lse.front();
  }
  double lse_band(const std::string& value, const ErrorSources& sources) {
    return rounding_band(one_row(value), tensors(), kCall, sources).forward.lse.front();
  }
};

TEST(RoundingBand, HoldsWhatApproximateFunctionsMissInEveryKeyAlike) {
  Inputs inputs;
  const std::string miss = "0.0000076";  // not quite kFunctionError
  for (const auto& [value, missed] :
       {std::pair{std::string("30.0 * tanh(score / 30.0)"), "30.0 * (tanh(score / 30.0) + " + miss + ")"},
        {std::string("20.0 * exp(score / 20.0)"), "20.0 * (exp(score / 20.0) + " + miss + ")"},
        {std::string("20.0 * pow(abs(score) / 9.0, 1.5)"), "20.0 * (pow(abs(score) / 9.0, 1.5) + " + miss + ")"}}) {
    const double moved = std::abs(inputs.lse(missed) - inputs.lse(value));
    EXPECT_GE(inputs.lse_band(value, {kFunctionError, true}), moved) << value;
    // Nothing is allowed for where functions are as good as float32.
    EXPECT_LT(inputs.lse_band(value, {}), moved) << value;
  }
}

TEST(RoundingBand, HoldsWhatTheSoftmaxsOwnFunctionsMiss) {
  Inputs inputs;
  const double more = inputs.lse_band("score * 0.01", {kFunctionError, true}) - inputs.lse_band("score * 0.01", {});
  // Each exponential, and the logarithm of a sum near the number of keys.
  EXPECT_GE(more, kFunctionError * (1 + std::log(kKeys) / 2));
  EXPECT_LE(more, kFunctionError * (1 + std::log(kKeys)));
}

TEST(RoundingBand, LeavesOutTheRoundingOfAnLseThatIsNotRead) {
  Inputs inputs;
  const auto dv_band = [&](bool reads_lse) {
    double largest = 0;
    const ErrorSources sources{0, reads_lse};
    for (const double move : rounding_band(one_row("-1e9", true), inputs.tensors(), kCall, sources).backward.dv) {
      largest = std::max(largest, move);
    }
    return largest;
  };
  EXPECT_GT(dv_band(true), 0.1);  // spacing at 1e9 is 64
  EXPECT_LT(dv_band(false), 1e-5);
}

/// Keys of equal weights whose values cancel in the end: the rounding errors of the partial sums are larger than all
/// else.
TEST(RoundingBand, HoldsTheRoundingsOfTheOutputsOwnSum) {
  const compiler::CompiledProblem compiled = one_row("0.0");
  ProblemInputs given = random_inputs(compiled.problem);
  const std::int64_t half = kKeys / 2 * compiled.problem.dim_v;
  auto* v = reinterpret_cast<float*>(given.v.data());
  for (std::int64_t i = 0; i < half; ++i) v[i] = 1 + 0.1F * v[i];
  for (std::int64_t i = half; i < 2 * half; ++i) v[i] = -1 + 0.1F * v[i];
  CheckMemory memory(compiled.problem, given, 0);
  const reference::InputTensors inputs = memory.reference_inputs();
  const auto exact = reference::forward<double>(compiled, inputs, kCall).o;
  const auto plain = reference::forward<float>(compiled, inputs, kCall).o;
  const auto band = rounding_band(compiled, inputs, kCall).forward.o;
  double error = 0, allowed = 0;
  for (std::size_t d = 0; d < exact.size(); ++d) {
    error += std::pow(plain[d] - exact[d], 2);
    allowed += std::pow(band[d], 2);
  }
  // In quadrature, of roundings that are uniform within the unit roundoff.
  EXPECT_LT(error, allowed);
  EXPECT_GT(error, 0.01 * allowed);
}

/// Weights with few digits, of which the second program's are lost but for one.
TEST(RoundingBand, HoldsWhatCoarseWeightsMiss) {
  constexpr backend::ForwardRounding kCoarse{0, 0x1p-4, 0x1p-18};
  for (const char* const value : {"score", "select(kv_idx == 0, 0.0, -13.5)"}) {
    const compiler::CompiledProblem compiled = one_row(value);
    CheckMemory memory(compiled.problem, random_inputs(compiled.problem), 0);
    const reference::InputTensors inputs = memory.reference_inputs();
    const auto exact = reference::forward<double>(compiled, inputs, kCall).o;
    const auto coarse = reference::forward<float>(compiled, inputs, kCall, {}, {.forward = kCoarse}).o;
    const auto allowed_by = [&](const ErrorSources& sources) {
      double sum = 0;
      for (const double move : rounding_band(compiled, inputs, kCall, sources).forward.o) sum += move * move;
      return sum;
    };
    double error = 0;
    for (std::size_t d = 0; d < exact.size(); ++d) error += std::pow(coarse[d] - exact[d], 2);
    EXPECT_LT(error, allowed_by({0, true, kCoarse})) << value;
    EXPECT_GT(error, 9 * allowed_by({})) << value;
  }
}

/// With nothing but its sink, a row's gradient of it is -D, which follows from the o that is given.
TEST(RoundingBand, HoldsTheSinksGradientOfRowsWithoutAKey) {
  AttentionProblem problem = one_row("score\nkeep = kv_idx < 0", true).problem;
  problem.sink = Sink::kLearned;
  problem.given_deltas = true;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  CheckMemory memory(compiled.problem, random_inputs(compiled.problem), 0);
  const std::vector<float> o(static_cast<std::size_t>(problem.dim_v), 0.7F);
  reference::InputTensors inputs = memory.reference_inputs();
  inputs.o = o.data();
  inputs.lse = static_cast<const float*>(inputs.operands.back());  // the sink alone
  const double gradient = reference::backward<double>(compiled, inputs, kCall).d_operands.back().front();
  const double band = rounding_band(compiled, inputs, kCall).backward.d_operands.back().front();
  EXPECT_NE(gradient, 0);
  EXPECT_GE(band, 0x1p-24 * std::abs(gradient));
  EXPECT_LE(band, 0x1p-14);  // some units of 16 products of numbers near 1
}

/// cuDNN's LSE of such a row was one unit in the last place off, where a plain evaluation had the sink itself.
TEST(RoundingBand, HoldsTheLseOfRowsThatHaveTheirSinkAlone) {
  for (const Sink sink : {Sink::kNone, Sink::kLearned}) {
    AttentionProblem problem = one_row("score\nkeep = kv_idx < 0").problem;
    problem.sink = sink;
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    CheckMemory memory(compiled.problem, random_inputs(compiled.problem), 0);
    const reference::InputTensors inputs = memory.reference_inputs();
    const double lse = reference::forward<double>(compiled, inputs, kCall).lse.front();
    const double band = rounding_band(compiled, inputs, kCall).forward.lse.front();
    if (sink == Sink::kNone) {
      EXPECT_EQ(band, 0);
      continue;
    }
    EXPECT_GE(3 * band, std::abs(lse * 0x1p-23));
    EXPECT_LE(band, 0x1p-21 * (1 + std::abs(lse)));
  }
}

}  // namespace
}  // namespace scoremod::checking
