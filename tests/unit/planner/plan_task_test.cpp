#include "planner/plan_task.hpp"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"

#include "backend/cpu/forward_plan.hpp"
#include "backend/unsupported.hpp"
#include "compiler/pipeline.hpp"
#include "planner/plan_problem.hpp"
#include "planner/prepare.hpp"
#include "problem/tensor_view.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::planner {
namespace {

using backend::Candidate;
using backend::Target;
using backend::Task;
using compiler::CompiledProblem;

constexpr std::size_t kMaxWorkspace = std::size_t{1} << 30;

class FakeArtifact final : public backend::Artifact {
 public:
  FakeArtifact(std::string library_engine, std::size_t bytes)
      : library_engine_(std::move(library_engine)), bytes_(bytes) {}
  std::vector<std::byte> serialize() const override { return {std::byte{1}}; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string library_engine() const override { return library_engine_; }
  std::vector<std::string> next_library_engines() const override {
    return bytes_ == 0 ? std::vector<std::string>() : std::vector<std::string>{"refused", "small"};
  }

 private:
  std::string library_engine_;
  std::size_t bytes_;
};

/// The cpu backend's forward, whose output is spoiled or not, and whose workspace is larger by `beside`.
class SpoiledForward final : public backend::ForwardPlan {
 public:
  SpoiledForward(const CompiledProblem& problem, bool right, std::size_t beside)
      : right_(right),
        beside_(beside),
        bytes_(problem::bytes_of(problem.problem, problem::TensorRole::kO)),
        plan_(backend::cpu::make_forward_plan(problem, {})) {}
  std::size_t workspace_bytes() const override { return plan_->workspace_bytes() + beside_; }
  void execute(const backend::ForwardTensors& tensors, const backend::CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    plan_->execute(tensors, parameters, workspace);
    if (!right_) std::fill_n(static_cast<std::byte*>(tensors.o), bytes_, std::byte{0});
  }

 private:
  bool right_;
  std::size_t beside_, bytes_;
  std::unique_ptr<backend::ForwardPlan> plan_;
};

/// The behaviour of a fake backend's candidates.
struct Behaviour {
  double milliseconds = 1;
  std::vector<double> others = {};  ///< the times of further candidates
  bool right = true;
  std::string refusal = {};                  ///< of its build
  bool refuses_once = false;                 ///< only the first build is refused
  std::optional<std::size_t> workspace = 0;  ///< known before
  bool same_structure_in_trial = true;
  bool kept_by_key = false;
  bool key_has_sizes = false;  ///< its plan for the trial is another
  bool needs_context = true;
  std::string refusal_key = {};  ///< under which its refusals are stored
  int out_of_memory = 0;         ///< so many builds find none, and are kept by key when they succeed
  bool runs_only_shown = false;
  bool any_sizes = false;  ///< its artifacts serve other sizes too
  /// Its library has an engine "short" up to 400 queries and "long" beyond, and this one is wrong.
  std::string wrong_engine = {};
  /// The workspace of its library's first engine, "large". Behind that it has "refused" and "small", which needs none.
  std::size_t beside = 0;
};

class FakeRecipe final : public backend::Recipe {
 public:
  FakeRecipe(CompiledProblem problem, const Task& task, Behaviour behaviour, int* builds)
      : problem_(std::move(problem)), behaviour_(std::move(behaviour)), builds_(builds) {
    if (behaviour_.wrong_engine.empty() && behaviour_.beside == 0) return;
    engine_ = behaviour_.beside > 0 ? "large" : problem_.problem.seq_q > 400 ? "long" : "short";
    if (!task.library_engine.empty()) engine_ = task.library_engine;
  }
  backend::BuildResult build(const Target&) const override {
    ++*builds_;
    if (*builds_ <= behaviour_.out_of_memory) throw std::bad_alloc();
    if (!behaviour_.refusal.empty() && (*builds_ == 1 || !behaviour_.refuses_once))
      return {nullptr, behaviour_.refusal};
    if (engine_ == "refused") return {nullptr, "no such engine"};
    return {std::make_shared<FakeArtifact>(engine_, beside()), ""};
  }
  std::shared_ptr<const backend::Artifact> load(std::span<const std::byte>, const Target&) const override {
    return std::make_shared<FakeArtifact>(engine_, beside());
  }
  backend::ExecutablePlan plan(std::shared_ptr<const backend::Artifact>, const backend::PlanOptions&) const override {
    return plan_of(problem_);
  }
  bool needs_context() const override { return behaviour_.needs_context; }
  std::optional<backend::ExecutablePlan> plan_at_sizes_of(const CompiledProblem& problem,
                                                          const backend::DeviceProperties&, const backend::Artifact&,
                                                          const backend::PlanOptions&) const override {
    if (!behaviour_.any_sizes) return std::nullopt;
    return plan_of(problem);
  }

 private:
  backend::ExecutablePlan plan_of(const CompiledProblem& problem) const {
    backend::ExecutablePlan plan;
    plan.forward = std::make_shared<SpoiledForward>(
        problem, behaviour_.right && (engine_.empty() || engine_ != behaviour_.wrong_engine), beside());
    return plan;
  }
  std::size_t beside() const { return engine_ == "large" ? behaviour_.beside : 0; }

  const CompiledProblem problem_;
  const Behaviour behaviour_;
  int* const builds_;
  std::string engine_;
};

class FakeEngine final : public backend::Backend {
 public:
  FakeEngine(std::string name, Behaviour behaviour) : name_(std::move(name)), behaviour_(std::move(behaviour)) {}
  const char* name() const override { return name_.c_str(); }
  bool runs_only_shown() const override { return behaviour_.runs_only_shown; }
  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task&, const Target*) const override {
    if (problem.problem.dim_qk <= 64) return {};
    return {backend::unsupported(backend::Rule::kHeadDim, "dim_qk is too large")};
  }
  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target&,
                                    std::vector<UnsupportedReason>&) const override {
    Candidate candidate;
    candidate.task = task;
    candidate.label = name_;
    std::string key = name_ + problem.problem.program.to_string();
    if (!behaviour_.same_structure_in_trial) key += std::to_string(problem.problem.seq_q);
    const auto bytes = std::as_bytes(std::span(key));
    candidate.structural_key = Bytes(bytes.begin(), bytes.end());
    if (behaviour_.out_of_memory > 0 || behaviour_.kept_by_key) {
      Bytes plan_key(bytes.begin(), bytes.end());
      for (const char c : task.library_engine) plan_key.push_back(static_cast<std::byte>(c));
      if (behaviour_.key_has_sizes) plan_key.push_back(static_cast<std::byte>(problem.problem.seq_q % 251));
      candidate.plan_key = plan_key;
    }
    const auto refusal_bytes = std::as_bytes(std::span(behaviour_.refusal_key));
    candidate.refusal_key = Bytes(refusal_bytes.begin(), refusal_bytes.end());
    candidate.predicted = {behaviour_.milliseconds, "made up"};
    candidate.workspace_bytes = behaviour_.workspace;
    candidate.recipe = std::make_shared<FakeRecipe>(problem, task, behaviour_, &builds);
    std::vector<Candidate> found{std::move(candidate)};
    for (const double milliseconds : behaviour_.others) {
      found.push_back(found.front());
      found.back().predicted.milliseconds = milliseconds;
    }
    return found;
  }

  mutable int builds = 0;

 private:
  std::string name_;
  Behaviour behaviour_;
};

/// A problem whose program no other test has, so that no verdict of this process speaks for it.
CompiledProblem problem_of(const char* program, std::int64_t length = 600) {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = length;
  problem.dim_qk = problem.dim_v = 16;
  problem.program = Program::parse(program);
  return compiler::compile(problem);
}

struct Answer {
  TaskAnswer answer;
  std::string chosen;
};

Answer answer_of(const CompiledProblem& problem, const std::vector<const backend::Backend*>& engines, Level level,
                 const std::function<void(Request&)>& change = {}) {
  const backend::MemorySpace& memory = backend::host_memory();
  const Target target{memory.describe(), 0, 0, true};
  Request request;
  request.level = level;
  request.target = &target;
  request.backends = engines;
  request.max_workspace = kMaxWorkspace;
  if (change) change(request);
  verification::Trial trial(problem);
  Answer made{plan_task(problem, {.direction = backend::Direction::kForward, .operand_gradients = {}}, request, trial),
              ""};
  if (const Considered* chosen = made.answer.chosen()) made.chosen = chosen->engine->name();
  return made;
}

TEST(PlanTask, TakesTheFastestByPredictionOfAllEngines) {
  const FakeEngine slow("slow", {.milliseconds = 2}), fast("fast", {.milliseconds = 1});
  const CompiledProblem problem = problem_of("value = score * 1.25");
  EXPECT_EQ(answer_of(problem, {&slow, &fast}, Level::kVerified).chosen, "fast");
  EXPECT_EQ(slow.builds, 0) << "what is not tried is not built";
  EXPECT_EQ(answer_of(problem, {&slow, &fast}, Level::kVerified, [](Request& r) { r.in_order = true; }).chosen, "slow");
}

TEST(PlanTask, TakesAnOrderedEnginesFastestCandidate) {
  const FakeEngine first("first", {.milliseconds = 3, .others = {2, 4}}), second("second", {.milliseconds = 1});
  const Answer answer = answer_of(problem_of("value = score * 1.0625"), {&first, &second}, Level::kVerified,
                                  [](Request& r) { r.in_order = true; });
  EXPECT_EQ(answer.chosen, "first");
  EXPECT_EQ(answer.answer.chosen()->candidate.predicted.milliseconds, 2);
}

TEST(PlanTask, PassesOverWhatIsWrongAndSaysWhy) {
  const FakeEngine wrong("wrong", {.milliseconds = 1, .right = false}), right("right", {.milliseconds = 2});
  const Answer answer = answer_of(problem_of("value = score * 1.5"), {&wrong, &right}, Level::kVerified);
  EXPECT_EQ(answer.chosen, "right");
  ASSERT_TRUE(answer.answer.considered.front().refusal);
  EXPECT_EQ(answer.answer.considered.front().refusal->id, "wrong_result");
  EXPECT_EQ(answer.answer.considered.front().refusal->direction, "forward");
}

/// Zeros are right in rows without a key, which were all that such a program's trial had.
TEST(PlanTask, FindsWrongWhatIsWrongInFarHeadsOnly) {
  const FakeEngine wrong("writes zeros", {.milliseconds = 1, .right = false}), right("right", {.milliseconds = 2});
  AttentionProblem problem = problem_of("value = score * 1.875\nkeep = h >= 16").problem;
  problem.heads_q = problem.heads_kv = 32;
  problem.seq_q = problem.seq_kv = 40;
  EXPECT_EQ(answer_of(compiler::compile(problem), {&wrong, &right}, Level::kVerified).chosen, "right");
}

/// A plan store without the verdicts of earlier runs.
struct OwnStore {
  OwnStore() { set_plan_store_directory(folder.path().string()); }
  ~OwnStore() { set_plan_store_directory(before); }
  const std::string before = plan_store_directory();
  const test::ScratchFolder folder;
};

/// cuDNN's heuristics choose by the sizes, too: on sm_100, problems of 4096 keys have another engine than their trials.
TEST(PlanTask, TriesTheEngineThatTheLibraryChoseForTheProblem) {
  const OwnStore store;
  const FakeEngine library("library", {.milliseconds = 1, .wrong_engine = "long"}), own("own", {.milliseconds = 2});
  const auto chosen = [&](std::int64_t length) {
    return answer_of(problem_of("value = score * 2.125", length), {&library, &own}, Level::kVerified).chosen;
  };
  EXPECT_EQ(chosen(600), "own");
  EXPECT_EQ(library.builds, 3) << "the plan, the small problem as the library chooses, and by the plan's engine";
  EXPECT_EQ(chosen(300), "library");
  EXPECT_EQ(chosen(601), "own");
}

TEST(PlanTask, TrustsNoEngineForAnothersTrial) {
  const OwnStore store;
  const FakeEngine library("library with two", {.milliseconds = 1, .wrong_engine = "long"});
  EXPECT_EQ(answer_of(problem_of("value = score * 2.375", 300), {&library}, Level::kVerified).chosen, library.name());
  const Answer answer = answer_of(problem_of("value = score * 2.375", 600), {&library}, Level::kVerified);
  EXPECT_EQ(answer.answer.considered.front().refusal.value().id, "wrong_result");
}

TEST(PlanTask, LeavesAnEngineForLaterThatWasNotTried) {
  const OwnStore store;
  const FakeEngine library("kept library",
                           {.milliseconds = 1, .kept_by_key = true, .key_has_sizes = true, .wrong_engine = "neither"});
  const CompiledProblem small = problem_of("value = score * 2.625", 300), large = problem_of("value = score * 2.625");
  const auto ready = [](Request& request) { request.ready_only = true; };
  EXPECT_EQ(answer_of(small, {&library}, Level::kVerified).chosen, library.name());
  EXPECT_EQ(answer_of(small, {&library}, Level::kVerified, ready).chosen, library.name());
  EXPECT_EQ(answer_of(large, {&library}, Level::kBuilt).chosen, library.name());
  const Answer later = answer_of(large, {&library}, Level::kVerified, ready);
  EXPECT_EQ(later.chosen, "");
  EXPECT_TRUE(later.answer.considered.front().left_for_later);
  EXPECT_EQ(answer_of(large, {&library}, Level::kVerified).chosen, library.name());
  EXPECT_EQ(answer_of(large, {&library}, Level::kVerified, ready).chosen, library.name());
}

constexpr const char* kKeepsNothing = "value = select((q_idx * 31 + kv_idx * 17) % 100003 == 99999, score, -inf)";

TEST(PlanTask, TakesNoTrialThatKeepsNoKeyForAProofWhereItsBackendNeedsOne) {
  const FakeEngine library("library", {.milliseconds = 1, .runs_only_shown = true}), own("own", {.milliseconds = 2});
  const Answer answer = answer_of(problem_of(kKeepsNothing), {&library, &own}, Level::kVerified);
  EXPECT_EQ(answer.chosen, "own");
  EXPECT_EQ(answer.answer.considered.front().refusal.value().id, "no_trial");
  EXPECT_NE(answer.answer.considered.front().refusal->text.find("keeps a key"), std::string::npos);
  // A mask that keeps nothing at any size is all that there is to show.
  EXPECT_EQ(answer_of(problem_of("value = score\nkeep = false"), {&library}, Level::kVerified).chosen, "library");
}

TEST(PlanTask, StoresNoVerdictOfATrialThatKeepsNoKey) {
  const test::ScratchFolder folder;
  set_plan_store_directory(folder.path().string());
  const FakeEngine own("own, not stored", {});
  EXPECT_EQ(answer_of(problem_of(kKeepsNothing), {&own}, Level::kVerified).chosen, "own, not stored");
  const auto verdicts = [] { return std::ranges::count(list_plan_store(), "verification", &StoredFile::kind); };
  EXPECT_EQ(verdicts(), 0);
  answer_of(problem_of("value = score * 1.9375"), {&own}, Level::kVerified);
  EXPECT_EQ(verdicts(), 1);
  set_plan_store_directory("");
}

TEST(PlanTask, VerifiesNothingBelowThatLevel) {
  const FakeEngine wrong("unverified", {.milliseconds = 1, .right = false});
  EXPECT_EQ(answer_of(problem_of("value = score * 1.75"), {&wrong}, Level::kBuilt).chosen, "unverified");
}

TEST(PlanTask, BuildsNothingAtTheStaticLevel) {
  const FakeEngine engine("static", {});
  const Answer answer = answer_of(problem_of("value = score * 2.5"), {&engine}, Level::kStatic);
  EXPECT_EQ(answer.chosen, "static");
  EXPECT_EQ(engine.builds, 0);
  EXPECT_FALSE(answer.answer.plan.forward);
}

TEST(PlanTask, PassesOverWhatIsRefusedAndWhatDoesNotFit) {
  const FakeEngine refused("refused", {.milliseconds = 1, .refusal = "not today"});
  const FakeEngine large("large", {.milliseconds = 2, .workspace = kMaxWorkspace + 1}),
      fits("fits", {.milliseconds = 3, .workspace = kMaxWorkspace});
  const Answer answer = answer_of(problem_of("value = score * 3.5"), {&refused, &large, &fits}, Level::kVerified);
  EXPECT_EQ(answer.chosen, "fits");
  EXPECT_EQ(answer.answer.considered[0].refusal.value().id, "engine_refused");
  EXPECT_NE(answer.answer.considered[0].refusal->text.find("not today"), std::string::npos);
  EXPECT_EQ(answer.answer.considered[1].refusal.value().id, "workspace_limit");
  EXPECT_EQ(large.builds, 0);
}

TEST(PlanTask, ExpectsWhatFitsAtTheStaticLevel) {
  const FakeEngine large("large", {.milliseconds = 1, .workspace = kMaxWorkspace + 1}),
      unknown("unknown", {.milliseconds = 2, .workspace = std::nullopt});
  const Answer answer = answer_of(problem_of("value = score * 7.5"), {&large, &unknown}, Level::kStatic);
  EXPECT_EQ(answer.chosen, "unknown");
  EXPECT_EQ(answer.answer.considered[0].refusal.value().id, "workspace_limit");
  EXPECT_EQ(answer.answer.considered[0].refusal->remedy.find("'deterministic'"), std::string::npos);
}

TEST(PlanTask, PassesOverABuiltPlanThatDoesNotFit) {
  const FakeEngine engine("no room", {.workspace = std::nullopt});
  const CompiledProblem problem = problem_of("value = score * 7.25");
  const auto limit_of = [](std::size_t bytes) { return [bytes](Request& request) { request.max_workspace = bytes; }; };
  const std::size_t needed = backend::cpu::make_forward_plan(problem, {})->workspace_bytes();
  ASSERT_GT(needed, 0u);
  EXPECT_EQ(answer_of(problem, {&engine}, Level::kBuilt, limit_of(needed)).chosen, "no room");
  const Answer answer = answer_of(problem, {&engine}, Level::kBuilt, limit_of(needed - 1));
  EXPECT_EQ(answer.chosen, "");
  EXPECT_EQ(answer.answer.considered.front().refusal.value().id, "workspace_limit");
}

TEST(PlanTask, TakesALibrarysNextEngineThatFitsWhereTheFirstDoesNot) {
  constexpr std::size_t kBeside = 1000;
  const Behaviour behaviour{.workspace = std::nullopt, .beside = kBeside};
  const CompiledProblem problem = problem_of("value = score * 7.125");
  const std::size_t needed = backend::cpu::make_forward_plan(problem, {})->workspace_bytes();
  const auto of = [&](std::size_t limit, Level level, Behaviour of_engine, bool ready_only = false) {
    const FakeEngine engine("library", std::move(of_engine));
    const auto change = [&](Request& request) {
      request.max_workspace = limit;
      request.ready_only = ready_only;
    };
    return answer_of(problem, {&engine}, level, change).answer.considered.front();
  };
  EXPECT_EQ(of(needed + kBeside, Level::kBuilt, behaviour).artifact->library_engine(), "large");
  // The trial is of the engine that runs.
  const Behaviour wrong{.workspace = std::nullopt, .wrong_engine = "large", .beside = kBeside};
  const Considered next = of(needed + kBeside - 1, Level::kVerified, wrong);
  EXPECT_EQ(next.artifact->library_engine(), "small");
  EXPECT_EQ(next.chosen ? next.workspace_bytes : 0, needed);
  EXPECT_EQ(of(needed + kBeside, Level::kVerified, wrong).refusal.value().id, "wrong_result");
  const Considered none = of(needed - 1, Level::kBuilt, behaviour);
  EXPECT_EQ(none.refusal.value().id, "workspace_limit");
  EXPECT_NE(none.refusal->text.find(std::to_string(needed + kBeside)), std::string::npos) << none.refusal->text;
  // A build takes longer than a call may.
  const Behaviour kept{.workspace = std::nullopt, .kept_by_key = true, .beside = kBeside};
  EXPECT_TRUE(of(needed + kBeside, Level::kBuilt, kept).chosen);
  EXPECT_TRUE(of(needed + kBeside, Level::kBuilt, kept, true).chosen);
  EXPECT_TRUE(of(needed, Level::kBuilt, kept, true).left_for_later);
}

/// For a device that isn't there: artifacts are built, and nothing runs.
Answer built_elsewhere(const CompiledProblem& problem, const std::vector<const backend::Backend*>& engines,
                       bool every_candidate = false) {
  const Target absent{backend::host_memory().describe(), 0, 0, false};
  return answer_of(problem, engines, Level::kVerified, [&](Request& request) {
    request.target = &absent;
    request.every_candidate = every_candidate;
  });
}

TEST(PlanTask, BuildsTheFirstThatCanBeBuiltForADeviceElsewhere) {
  const FakeEngine large("large", {.milliseconds = 1, .workspace = kMaxWorkspace + 1}),
      refused("refused", {.milliseconds = 2, .refusal = "not today"}),
      taken("taken", {.milliseconds = 3, .right = false, .workspace = 7, .kept_by_key = true, .key_has_sizes = true}),
      slower("slower", {.milliseconds = 4});
  const Answer answer = built_elsewhere(problem_of("value = score * 8.5"), {&large, &refused, &taken, &slower});
  EXPECT_EQ(answer.chosen, "taken") << "nobody saw that its results are wrong";
  EXPECT_FALSE(answer.answer.plan.forward);
  const auto& considered = answer.answer.considered;
  EXPECT_EQ(considered[0].refusal.value().id, "workspace_limit");
  EXPECT_EQ(large.builds, 0);
  EXPECT_EQ(considered[1].refusal.value().id, "engine_refused");
  EXPECT_EQ(considered[2].workspace_bytes, 7u);
  EXPECT_TRUE(considered[2].artifact && considered[2].trial && considered[2].trial_artifact);
  EXPECT_EQ(taken.builds, 2) << "the plan and its trial's";
  EXPECT_EQ(slower.builds, 0);
}

TEST(PlanTask, BuildsNoTrialElsewhereThatIsThePlanItself) {
  const FakeEngine engine("same", {.kept_by_key = true});
  const Answer answer = built_elsewhere(problem_of("value = score * 8.25"), {&engine});
  EXPECT_TRUE(answer.answer.considered.front().artifact);
  EXPECT_FALSE(answer.answer.considered.front().trial);
  EXPECT_EQ(engine.builds, 1);
}

TEST(PlanTask, BuildsEveryCandidateElsewhereWhereAsked) {
  const FakeEngine fast("fast", {.milliseconds = 1, .kept_by_key = true, .key_has_sizes = true}),
      slow("slow", {.milliseconds = 2, .kept_by_key = true, .key_has_sizes = true});
  const Answer answer = built_elsewhere(problem_of("value = score * 8.75"), {&slow, &fast}, true);
  EXPECT_EQ(answer.chosen, "fast");
  for (const Considered& considered : answer.answer.considered) {
    EXPECT_TRUE(considered.artifact);
    EXPECT_FALSE(considered.trial_artifact);
  }
  EXPECT_EQ(std::ranges::count_if(answer.answer.considered, &Considered::chosen), 1);
}

/// A plan that was built and verified for one length serves another; others wait.
TEST(PlanTask, TakesAReadyPlanForANewLengthAndLeavesTheFasterForLater) {
  const FakeEngine slow("ready", {.milliseconds = 2, .kept_by_key = true}),
      fast("not ready", {.milliseconds = 1, .kept_by_key = true});
  const auto ready_only = [](Request& request) { request.ready_only = true; };
  constexpr const char* kProgram = "value = score * 11.5";
  const Answer none = answer_of(problem_of(kProgram), {&slow, &fast}, Level::kVerified, ready_only);
  EXPECT_EQ(none.chosen, "");
  EXPECT_EQ(slow.builds + fast.builds, 0);
  answer_of(problem_of(kProgram), {&slow}, Level::kVerified);
  const int builds = slow.builds;
  EXPECT_GT(builds, 0);
  const Answer served = answer_of(problem_of(kProgram, 700), {&slow, &fast}, Level::kVerified, ready_only);
  EXPECT_EQ(served.chosen, "ready");
  EXPECT_TRUE(served.answer.considered.front().left_for_later);
  EXPECT_EQ(slow.builds, builds) << "a new length builds nothing";
  EXPECT_EQ(fast.builds, 0);
  EXPECT_EQ(answer_of(problem_of(kProgram, 700), {&slow, &fast}, Level::kVerified).chosen, "not ready");
}

TEST(PlanTask, PlansOtherSizesLikeWhatWasChosen) {
  const FakeEngine any("any sizes", {.any_sizes = true}), one("one size", {.milliseconds = 2});
  const Answer first = answer_of(problem_of("value = score * 14.5"), {&any, &one}, Level::kVerified);
  const int builds = any.builds;
  const CompiledProblem other = problem_of("value = score * 14.5", 700);
  const backend::DeviceProperties device = backend::host_memory().describe();
  const auto like = [&](const Considered& chosen) { return plan_like(chosen, nullptr, other, {}, device); };
  const auto plans = like(*first.answer.chosen());
  ASSERT_TRUE(plans);
  EXPECT_EQ(any.builds, builds) << "its artifact serves";
  EXPECT_EQ(plans->backward, nullptr);
  ASSERT_TRUE(plans->forward);
  // The plan is of these sizes.
  EXPECT_EQ(plans->forward->workspace_bytes(), backend::cpu::make_forward_plan(other, {})->workspace_bytes());
  const Answer second = answer_of(problem_of("value = score * 14.5"), {&one}, Level::kVerified);
  EXPECT_FALSE(like(*second.answer.chosen()));
}

/// One program may run on both, with a workspace that one of them has asked for.
TEST(PlanTask, TakesTheSameForEachDeviceOfAKindWhateverIsRefusedNow) {
  const FakeEngine fast("refuses once",
                        {.milliseconds = 1, .refusal = "not today", .refuses_once = true, .kept_by_key = true}),
      slow("never refuses", {.milliseconds = 2, .kept_by_key = true});
  const Target other{backend::host_memory().describe(), 1, 0, true};
  const CompiledProblem problem = problem_of("value = score * 12.5");
  EXPECT_EQ(answer_of(problem, {&fast, &slow}, Level::kBuilt).chosen, "never refuses");
  const Answer second =
      answer_of(problem, {&fast, &slow}, Level::kBuilt, [&](Request& request) { request.target = &other; });
  EXPECT_EQ(second.chosen, "never refuses");
  EXPECT_NE(second.answer.considered.front().refusal.value().text.find("not today"), std::string::npos);
}

/// How often a plan's context was asked for, whose making would have been waited for.
int waits_for_context(const FakeEngine& engine, const CompiledProblem& problem) {
  int waits = 0;
  const auto make = [&waits]() -> std::uint64_t { return static_cast<std::uint64_t>(++waits); };
  const Target target{backend::host_memory().describe(), 0,
                      backend::TargetContext(std::async(std::launch::deferred, make).share()), true};
  answer_of(problem, {&engine}, Level::kBuilt, [&](Request& request) { request.target = &target; });
  return waits;
}

TEST(PlanTask, BuildsWhileTheContextIsMadeWhatNeedsNone) {
  const FakeEngine without("needs no context", {.kept_by_key = true, .needs_context = false}),
      with("needs a context", {.kept_by_key = true});
  const CompiledProblem problem = problem_of("value = score * 13.5");
  EXPECT_EQ(waits_for_context(without, problem), 0);
  EXPECT_EQ(waits_for_context(with, problem), 1);
  waits_for_context(without, problem);
  EXPECT_EQ(without.builds, 1) << "what needs no context serves all of them";
}

TEST(PlanTask, LearnsFromTheStoreWhatWasRefusedInAnotherProcess) {
  const test::ScratchFolder folder;
  set_plan_store_directory(folder.path().string());
  // Backends of one kind in two processes: this process's memory of the one does not hold for the other.
  const Behaviour refuses{.refusal = "not today", .kept_by_key = true, .refusal_key = "compiler 1"};
  Behaviour later = refuses;
  later.refusal_key = "compiler 2";
  const FakeEngine here("refuses", refuses), there("refuses there", refuses), newer("refuses later", later);
  const CompiledProblem problem = problem_of("value = score * 3.625");
  for (const FakeEngine* engine : {&here, &there, &newer}) {
    const Answer answer = answer_of(problem, {engine}, Level::kBuilt);
    EXPECT_EQ(answer.chosen, "");
    const std::string text = answer.answer.considered.front().refusal.value().text;
    EXPECT_NE(text.find("refused it: not today"), std::string::npos) << text;
  }
  set_plan_store_directory("");
  EXPECT_EQ(here.builds, 1);
  EXPECT_EQ(there.builds, 0);
  EXPECT_EQ(newer.builds, 1) << "it follows from the compiler";
}

TEST(PlanTask, RemembersNothingOfABuildThatFoundNoMemory) {
  const FakeEngine engine("memory", {.out_of_memory = 1});
  const CompiledProblem problem = problem_of("value = score * 9.5");
  EXPECT_THROW(answer_of(problem, {&engine}, Level::kVerified), std::bad_alloc);
  EXPECT_EQ(answer_of(problem, {&engine}, Level::kVerified).chosen, "memory");
}

TEST(PlanTask, TakesNothingWhoseTrialHasAnotherStructure) {
  const FakeEngine odd("odd", {.same_structure_in_trial = false});
  const Answer answer = answer_of(problem_of("value = score * 4.5"), {&odd}, Level::kVerified);
  EXPECT_EQ(answer.chosen, "");
  EXPECT_EQ(answer.answer.considered.front().refusal.value().id, "no_trial");
}

TEST(PlanTask, GivesTheReasonsOfEveryEngineAlsoWithoutADevice) {
  const FakeEngine a("a", {}), b("b", {});
  AttentionProblem problem;
  problem.dim_qk = problem.dim_v = 128;
  Request request;
  request.level = Level::kStatic;
  const std::vector<const backend::Backend*> engines{&a, &b};
  request.backends = engines;
  const CompiledProblem compiled = compiler::compile(problem);
  verification::Trial trial(compiled);
  const TaskAnswer answer =
      plan_task(compiled, {.direction = backend::Direction::kForward, .operand_gradients = {}}, request, trial);
  EXPECT_EQ(answer.chosen(), nullptr);
  ASSERT_EQ(answer.reasons.size(), 2u);
  for (const EngineReasons& engine : answer.reasons) {
    ASSERT_EQ(engine.reasons.size(), 1u);
    EXPECT_EQ(engine.reasons[0].id, "head_dim");
  }
  EXPECT_EQ(answer.all_reasons().size(), 1u) << "each once";
}

TEST(PlanTask, AutotuneTakesTheFastestByTheClock) {
  // The one that is predicted to be slower is measured to be as fast or faster; whichever wins was measured.
  const FakeEngine one("one", {.milliseconds = 1}), two("two", {.milliseconds = 2});
  const Answer answer = answer_of(problem_of("value = score * 5.5"), {&one, &two}, Level::kVerified,
                                  [](Request& r) { r.autotune = true; });
  ASSERT_NE(answer.chosen, "");
  for (const Considered& considered : answer.answer.considered) {
    ASSERT_TRUE(considered.measured_milliseconds);
    EXPECT_GE(*considered.measured_milliseconds, *answer.answer.chosen()->measured_milliseconds);
  }
}

/// A tensor missing from a timed call would make a backend read or write at address 0.
TEST(PlanTask, AutotuneBindsAllThatAProblemHas) {
  const FakeEngine one("one", {.milliseconds = 1}), two("two", {.milliseconds = 2});
  AttentionProblem problem = problem_of("value = score * 5.25").problem;
  problem.max_logit = true;
  const Answer answer =
      answer_of(compiler::compile(problem), {&one, &two}, Level::kVerified, [](Request& r) { r.autotune = true; });
  EXPECT_NE(answer.chosen, "");
}

TEST(PlanTask, VerifiesAPlanOnce) {
  const FakeEngine engine("once", {});
  const CompiledProblem problem = problem_of("value = score * 6.5");
  const std::uint64_t before = cache_statistics().trials.count;
  answer_of(problem, {&engine}, Level::kVerified);
  EXPECT_EQ(cache_statistics().trials.count, before + 1);
  answer_of(problem, {&engine}, Level::kVerified);
  EXPECT_EQ(cache_statistics().trials.count, before + 1);
}

}  // namespace
}  // namespace scoremod::planner
