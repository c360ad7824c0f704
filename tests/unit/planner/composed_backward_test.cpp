#include "planner/composed_backward.hpp"

#include <array>
#include <memory>

#include <gtest/gtest.h>

namespace scoremod::planner {
namespace {

/// Counts its calls.
class CountingBackward final : public backend::BackwardPlan {
 public:
  explicit CountingBackward(std::size_t bytes) : bytes_(bytes) {}
  std::size_t workspace_bytes() const override { return bytes_; }
  void execute(const backend::BackwardTensors&, const backend::CallParameters&, std::span<std::byte>) const override {
    ++calls;
  }
  mutable int calls = 0;

 private:
  std::size_t bytes_;
};

struct Plans {
  std::shared_ptr<CountingBackward> attention = std::make_shared<CountingBackward>(10);
  std::shared_ptr<CountingBackward> fused = std::make_shared<CountingBackward>(30);
  std::shared_ptr<CountingBackward> gradients = std::make_shared<CountingBackward>(20);

  /// The fused plan writes operand 2; another gradient than that needs the pass. Either may be missing.
  Prepared prepared(bool has_fused = true, bool has_gradients = true) const {
    Prepared made;
    made.backward.emplace().plan.backward = attention;
    if (has_fused) {
      made.fused_backward.emplace().plan.backward = fused;
      made.fused_backward->task.operand_gradients = {2};
    }
    if (has_gradients) made.operand_gradients.emplace().plan.backward = gradients;
    return made;
  }

  std::array<int, 3> calls() const { return {attention->calls, fused->calls, gradients->calls}; }
};

std::array<int, 3> calls_of(const std::array<bool, 3>& wanted, bool has_fused = true, bool has_gradients = true) {
  const Plans plans;
  const auto backward = compose_backward(plans.prepared(has_fused, has_gradients));
  int memory = 0;
  std::array<void*, 3> gradients{};
  for (std::size_t i = 0; i < wanted.size(); ++i) gradients[i] = wanted[i] ? &memory : nullptr;
  backend::BackwardTensors tensors;
  tensors.d_operands = gradients;
  backward->execute(tensors, {}, {});
  return plans.calls();
}

TEST(ComposedBackward, TakesTheFusedPlanWhereItWritesExactlyWhatIsAskedFor) {
  EXPECT_EQ(calls_of({false, false, false}), (std::array{1, 0, 0}));
  EXPECT_EQ(calls_of({false, false, true}), (std::array{0, 1, 0}));
  EXPECT_EQ(calls_of({true, false, true}), (std::array{1, 0, 1}));
  EXPECT_EQ(calls_of({true, false, false}), (std::array{1, 0, 1}));
}

TEST(ComposedBackward, NeedsTheLargestWorkspaceOfItsPlans) {
  EXPECT_EQ(compose_backward(Plans().prepared())->workspace_bytes(), 30u);
  EXPECT_EQ(compose_backward(Plans().prepared(false))->workspace_bytes(), 20u);
  EXPECT_EQ(compose_backward(Plans().prepared(true, false))->workspace_bytes(), 30u);
}

TEST(ComposedBackward, RunsThePassForEveryGradientWithoutAFusedPlan) {
  EXPECT_EQ(calls_of({false, false, false}, false), (std::array{1, 0, 0}));
  EXPECT_EQ(calls_of({false, false, true}, false), (std::array{1, 0, 1}));
}

TEST(ComposedBackward, TakesTheFusedPlanForAnyGradientWithoutThePass) {
  EXPECT_EQ(calls_of({false, false, false}, true, false), (std::array{1, 0, 0}));
  EXPECT_EQ(calls_of({false, false, true}, true, false), (std::array{0, 1, 0}));
  EXPECT_EQ(calls_of({true, false, false}, true, false), (std::array{0, 1, 0}));
}

TEST(ComposedBackward, IsTheAttentionsPlanWhereNoOtherRuns) {
  const Plans plans;
  EXPECT_EQ(compose_backward(plans.prepared(false, false)), plans.attention);
  for (const bool has_fused : {false, true}) {
    Prepared without = plans.prepared(has_fused);
    without.backward->plan.backward = nullptr;
    EXPECT_EQ(compose_backward(without), nullptr);
  }
}

}  // namespace
}  // namespace scoremod::planner
