#include "planner/plan_problem.hpp"

#include <cstdlib>
#include <future>

#include <gtest/gtest.h>

#include "backend/direct_recipe.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "support/willing_engine.hpp"

namespace scoremod::planner {
namespace {

/// The host's memory as a device's.
class MemoryOfADevice : public backend::MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return host_.alignment(); }
  void* allocate(std::size_t bytes, void* stream) const override { return host_.allocate(bytes, stream); }
  void release(void* data, void* stream) const noexcept override { host_.release(data, stream); }
  void copy_in(void* to, const void* host, std::size_t bytes) const override { host_.copy_in(to, host, bytes); }
  void copy_out(void* host, const void* from, std::size_t bytes) const override { host_.copy_out(host, from, bytes); }
  void wait(void* stream) const override { host_.wait(stream); }
  int current_device() const override { return 0; }
  backend::DeviceProperties describe() const override { return host_.describe(); }
  void make_current(int) const override {}
  std::string objection(const void*, int) const override { return {}; }

 private:
  const backend::MemorySpace& host_ = backend::host_memory();
};

/// On a device that cannot make a context.
class MemoryWithoutContext final : public MemoryOfADevice {
 public:
  backend::TargetContext begin_context() const override {
    const auto make = []() -> std::uint64_t { fail_environment("another process has all of the device's memory"); };
    return backend::TargetContext(std::async(std::launch::async, make).share());
  }
};

/// The host's, on a device that nothing can be told of, for a reason that is none of the machine's.
class MemoryWithoutDescription final : public MemoryOfADevice {
 public:
  backend::DeviceProperties describe() const override { fail_bug("a device without a name"); }
  backend::TargetContext begin_context() const override { return backend::TargetContext(0); }
};

/// Whose plans cannot be loaded, for a reason of their own.
class UnloadableEngine final : public test::WillingEngine {
 public:
  explicit UnloadableEngine(const backend::MemorySpace& memory) : memory_(memory) {}
  const char* name() const override { return "unloadable"; }
  const backend::MemorySpace& memory() const override { return memory_; }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task& task,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    backend::Candidate candidate;
    candidate.task = task;
    candidate.recipe = std::make_shared<backend::DirectRecipe>(
        [](const backend::PlanOptions&) -> backend::ExecutablePlan { fail_environment("no module can be loaded"); });
    return {std::move(candidate)};
  }

 private:
  const backend::MemorySpace& memory_;
};

PlannedProblem planned_in(const backend::MemorySpace& memory) {
  const UnloadableEngine engine(memory);
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = 8;
  problem.backward = true;
  PlannedProblem planned =
      plan_problem(compiler::compile(problem), {}, Level::kVerified, {{&engine}, memory.kind(), true, "the test"});
  planned.selection.backends.clear();
  return planned;
}

TEST(PlanProblem, HasNoDeviceWhereItsContextCannotBeMade) {
  const PlannedProblem planned = planned_in(MemoryWithoutContext());
  EXPECT_FALSE(planned.target);
  EXPECT_FALSE(planned.prepared.runs_forward());
  const std::vector<UnsupportedReason> reasons = planned.prepared.reasons();
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].id, "no_device");
  EXPECT_EQ(reasons[0].text, "another process has all of the device's memory");
}

TEST(WorkspaceLimit, IsTheOptionsOrTheEnvironmentsOr8GiB) {
  constexpr const char* kVariable = "SCOREMOD_MAX_WORKSPACE";
  ASSERT_EQ(unsetenv(kVariable), 0);
  EXPECT_EQ(workspace_limit({}), 8589934592u);
  ASSERT_EQ(setenv(kVariable, "12345", 1), 0);
  EXPECT_EQ(workspace_limit({}), 12345u);
  CompileOptions options;
  options.max_workspace = 7;
  EXPECT_EQ(workspace_limit(options), 7u);
  for (const char* wrong : {"12345 bytes", "8G", "-1"}) {
    ASSERT_EQ(setenv(kVariable, wrong, 1), 0);
    EXPECT_THROW(workspace_limit({}), Error) << wrong;
  }
  ASSERT_EQ(unsetenv(kVariable), 0);
}

TEST(PlanProblem, ThrowsWhatElseFails) {
  try {
    planned_in(backend::host_memory());
    FAIL() << "planned what cannot be loaded";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "no module can be loaded");
  }
}

TEST(PlanProblem, TakesABugForNoMissingDevice) {
  try {
    planned_in(MemoryWithoutDescription());
    FAIL() << "planned on a device that cannot be described";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBug) << error.what();
  }
}

}  // namespace
}  // namespace scoremod::planner
