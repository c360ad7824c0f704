#include "backend/third/third_backend.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"
#include "backend/unsupported.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

constexpr std::int64_t kMaxHeadDim = 64;

/// Stands for a backend's compiled artifact.
class ThirdArtifact final : public Artifact {
 public:
  std::vector<std::byte> serialize() const override { return std::vector<std::byte>(3, std::byte{3}); }
};

/// The fault of one: o is all zeros.
class WrongForward final : public ForwardPlan {
 public:
  WrongForward(std::unique_ptr<ForwardPlan> right, std::size_t bytes) : right_(std::move(right)), bytes_(bytes) {}
  std::size_t workspace_bytes() const override { return right_->workspace_bytes(); }
  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    right_->execute(tensors, parameters, workspace);
    std::fill_n(static_cast<std::byte*>(tensors.o), bytes_, std::byte{0});
  }

 private:
  std::unique_ptr<ForwardPlan> right_;
  std::size_t bytes_;
};

/// A build waits for the file that THIRD_BUILD_WAITS_FOR names, and the first one fails where THIRD_BUILD_FAILS is set.
void wait_or_fail() {
  static std::atomic<bool> has_failed{false};
  if (const char* file = std::getenv("THIRD_BUILD_WAITS_FOR")) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(file) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (std::getenv("THIRD_BUILD_FAILS") != nullptr && !has_failed.exchange(true))
    fail_environment("the third engine's library is broken");
}

class ThirdRecipe final : public Recipe {
 public:
  ThirdRecipe(const CompiledProblem& problem, Direction direction, bool right)
      : problem_(problem), direction_(direction), right_(right) {}

  BuildResult build(const Target&) const override {
    wait_or_fail();
    return {std::make_shared<ThirdArtifact>(), ""};
  }
  std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target&) const override {
    if (bytes.size() != 3) fail_environment("a stored plan of the third engine is damaged");
    return std::make_shared<ThirdArtifact>();
  }
  ExecutablePlan plan(std::shared_ptr<const Artifact>, const PlanOptions& options) const override {
    ExecutablePlan plan;
    plan.note = right_ ? "the third engine's right plan" : "the third engine's wrong plan";
    if (direction_ == Direction::kBackward) {
      plan.backward = cpu::make_backward_plan(problem_, options);
      return plan;
    }
    auto forward = cpu::make_forward_plan(problem_, options);
    if (right_) {
      plan.forward = std::move(forward);
    } else {
      const std::size_t bytes = problem::bytes_of(problem_.problem, problem::TensorRole::kO);
      plan.forward = std::make_shared<WrongForward>(std::move(forward), bytes);
    }
    return plan;
  }

 private:
  const CompiledProblem problem_;
  const Direction direction_;
  const bool right_;
};

Candidate candidate(const CompiledProblem& problem, const Task& task, bool right) {
  const char* direction = task.direction == Direction::kForward ? "forward" : "backward";
  Candidate made;
  made.task = task;
  made.label = concat("third ", direction, right ? " right" : " wrong");
  const std::string structure = concat(made.label, " ", problem.problem.program.to_string());
  const auto* bytes = reinterpret_cast<const std::byte*>(structure.data());
  made.structural_key = Bytes(bytes, bytes + structure.size());
  CanonicalWriter key;
  key.text(made.label).text(to_json(problem.problem));
  made.plan_key = key.written();
  made.predicted = {right ? 2e-12 : 1e-12, "made up for a test"};
  made.any_operand_gradients = true;
  made.notes = {made.label};
  made.recipe = std::make_shared<ThirdRecipe>(problem, task.direction, right);
  return made;
}

class ThirdBackend final : public Backend {
 public:
  const char* name() const override { return "third"; }
  std::string engine_text() const override { return "third 1.0"; }

  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task&, const Target*) const override {
    if (problem.problem.dim_qk <= kMaxHeadDim) return {};
    return {unsupported(Rule::kHeadDim,
                        concat("dim_qk is ", problem.problem.dim_qk, ": the third engine takes up to ", kMaxHeadDim))};
  }

  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target&,
                                    std::vector<UnsupportedReason>&) const override {
    std::vector<Candidate> made;
    if (task.direction == Direction::kForward) made.push_back(candidate(problem, task, false));
    made.push_back(candidate(problem, task, true));
    return made;
  }
};

}  // namespace

const Backend& third_backend() {
  static const ThirdBackend backend;
  return backend;
}

}  // namespace scoremod::backend
