#include "planner/artifacts.hpp"

#include <memory>

#include <gtest/gtest.h>

#include "support/refusing_recipe.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::planner {
namespace {

class RefusingEngine final : public test::WillingEngine {
 public:
  const char* name() const override { return "refusing"; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task&,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    return {};
  }
};

/// A process that plans for months must not keep every refusal.
TEST(Artifacts, ForgetTheOldestRefusalsBeyondALimit) {
  const RefusingEngine engine;
  const backend::Target target{backend::host_memory().describe(), 0, 0, true};
  const auto first = std::make_shared<test::RefusingRecipe>(5u << 20),
             second = std::make_shared<test::RefusingRecipe>(5u << 20);
  const auto refuse = [&](const std::shared_ptr<test::RefusingRecipe>& recipe, std::byte key) {
    backend::Candidate candidate;
    candidate.plan_key = Bytes{key};
    candidate.recipe = recipe;
    EXPECT_EQ(build_artifact(engine, candidate, target).refusal.size(), 5u << 20);
    return recipe->builds.load();
  };
  EXPECT_EQ(refuse(first, std::byte{1}), 1);
  EXPECT_EQ(refuse(first, std::byte{1}), 1) << "it is remembered";
  EXPECT_EQ(refuse(second, std::byte{2}), 1);
  EXPECT_EQ(refuse(second, std::byte{2}), 1);
  EXPECT_EQ(refuse(first, std::byte{1}), 2) << "both are too many";
}

}  // namespace
}  // namespace scoremod::planner
