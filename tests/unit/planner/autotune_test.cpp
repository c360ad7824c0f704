#include "planner/autotune.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <thread>

#include <gtest/gtest.h>

#include "backend/backend.hpp"
#include "compiler/pipeline.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::planner {
namespace {

constexpr std::size_t kRows = 40, kDim = 8;

/// A backward that looks at the forward's outputs, and takes at least so long.
class LookingBackward final : public backend::BackwardPlan {
 public:
  explicit LookingBackward(std::chrono::milliseconds pause = {}) : pause_(pause) {}
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const backend::BackwardTensors& tensors, const backend::CallParameters&,
               std::span<std::byte>) const override {
    ++calls;
    std::this_thread::sleep_for(pause_);
    const auto is_number = [](float x) { return std::isfinite(x); };
    found_numbers = found_numbers && std::ranges::all_of(std::span(tensors.lse, kRows), is_number) &&
                    std::ranges::all_of(std::span(static_cast<const float*>(tensors.o), kRows * kDim), is_number);
  }

  mutable int calls = 0;
  mutable bool found_numbers = true;

 private:
  std::chrono::milliseconds pause_;
};

class OnHost final : public test::WillingEngine {
 public:
  const char* name() const override { return "on_host"; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task&,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    return {};
  }
};

/// Two candidates that are timed on the host.
struct Timed {
  compiler::CompiledProblem compiled;
  backend::Task task{backend::Direction::kBackward, true, {}};
  backend::Target target{backend::host_memory().describe(), 0, 0, true};
  Request request;
  OnHost engine;
  std::array<Considered, 2> considered;

  explicit Timed(const char* program) {
    AttentionProblem problem;
    problem.seq_q = problem.seq_kv = kRows;
    problem.dim_qk = problem.dim_v = kDim;
    problem.backward = problem.stats = true;
    problem.program = Program::parse(program);
    compiled = compiler::compile(problem);
    request.target = &target;
  }
  /// The place of the fastest of the plans.
  std::size_t fastest(const std::array<std::shared_ptr<LookingBackward>, 2>& plans) {
    Autotune autotune(compiled, task, request);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      considered[i].engine = &engine;
      considered[i].candidate.label = i == 0 ? "first" : "second";
      autotune.add(considered[i], {nullptr, plans[i], ""});
    }
    const auto found = autotune.fastest();
    return found ? static_cast<std::size_t>(found->first - considered.data()) : plans.size();
  }
};

/// Kernels have slower paths for rows that hold NaN.
TEST(Autotune, TimesABackwardWithNumbersOfAForward) {
  const std::array plans{std::make_shared<LookingBackward>(), std::make_shared<LookingBackward>()};
  ASSERT_LT(Timed("value = score").fastest(plans), plans.size());
  for (const auto& plan : plans) {
    EXPECT_GT(plan->calls, 0);
    EXPECT_TRUE(plan->found_numbers);
  }
}

TEST(Autotune, TakesThePlanThatTakesTheLeastTime) {
  constexpr std::chrono::milliseconds kPause{20};
  Timed timed("value = score * 0.75");
  EXPECT_EQ(timed.fastest({std::make_shared<LookingBackward>(kPause), std::make_shared<LookingBackward>()}), 1u);
  EXPECT_GE(*timed.considered[0].measured_milliseconds, 20);
  Timed other("value = score * 0.875");
  EXPECT_EQ(other.fastest({std::make_shared<LookingBackward>(), std::make_shared<LookingBackward>(kPause)}), 0u);
}

/// Strides make tensors as large as nobody's memory is. A fuzzer's call took 128 GiB for them.
TEST(Autotune, MeasuresNoTensorsThatNoMemoryMayHold) {
  Timed timed("value = score * 0.625");
  timed.compiled.problem.q.strides = Strides{std::int64_t{1} << 40, std::int64_t{1} << 38, kDim, 1};
  timed.compiled.problem.batch = 2;
  const std::array plans{std::make_shared<LookingBackward>(), std::make_shared<LookingBackward>()};
  EXPECT_EQ(timed.fastest(plans), 0u);
  for (const auto& plan : plans) EXPECT_EQ(plan->calls, 0);
}

}  // namespace
}  // namespace scoremod::planner
