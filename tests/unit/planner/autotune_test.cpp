#include "planner/autotune.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include "backend/backend.hpp"
#include "compiler/pipeline.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::planner {
namespace {

constexpr std::size_t kRows = 40, kDim = 8;

/// A backward that looks at the forward's outputs.
class LookingBackward final : public backend::BackwardPlan {
 public:
  std::size_t workspace_bytes() const override { return 0; }
  void execute(const backend::BackwardTensors& tensors, const backend::CallParameters&,
               std::span<std::byte>) const override {
    ++calls;
    const auto is_number = [](float x) { return std::isfinite(x); };
    found_numbers = found_numbers && std::ranges::all_of(std::span(tensors.lse, kRows), is_number) &&
                    std::ranges::all_of(std::span(static_cast<const float*>(tensors.o), kRows * kDim), is_number);
  }

  mutable int calls = 0;
  mutable bool found_numbers = true;
};

class OnHost final : public test::WillingEngine {
 public:
  const char* name() const override { return "on_host"; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task&,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    return {};
  }
};

/// Kernels have slower paths for rows that hold NaN.
TEST(Autotune, TimesABackwardWithNumbersOfAForward) {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = kRows;
  problem.dim_qk = problem.dim_v = kDim;
  problem.backward = problem.stats = true;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const backend::Task task{backend::Direction::kBackward, true, {}};
  const backend::Target target{backend::host_memory().describe(), 0, 0, true};
  Request request;
  request.target = &target;
  Autotune autotune(compiled, task, request);
  const OnHost engine;
  std::array<Considered, 2> considered;
  std::array plans{std::make_shared<LookingBackward>(), std::make_shared<LookingBackward>()};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    considered[i].engine = &engine;
    considered[i].candidate.label = i == 0 ? "first" : "second";
    autotune.add(considered[i], {nullptr, plans[i], ""});
  }
  ASSERT_TRUE(autotune.fastest());
  for (const auto& plan : plans) {
    EXPECT_GT(plan->calls, 0);
    EXPECT_TRUE(plan->found_numbers);
  }
}

}  // namespace
}  // namespace scoremod::planner
