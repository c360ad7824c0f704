#include "planner/build_process.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"
#include "scoremod/error.hpp"

#include "backend/backend.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "compiler/pipeline.hpp"
#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::planner {
namespace {

using backend::Direction;
using backend::Task;
using compiler::CompiledProblem;

const Task kForward{Direction::kForward, true, {}};
const Task kBackward{Direction::kBackward, true, {}};

std::string properties() {
  std::ifstream file(SCOREMOD_DEVICES_FOLDER "/h200.json");
  return {std::istreambuf_iterator<char>(file), {}};
}

CompiledProblem soft_cap() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = problem.seq_kv = 512;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  problem.program = Program::parse("value = 31.0 * tanh(score / 31.0)\nkeep = kv_idx <= q_idx");
  return compiler::compile(problem);
}

/// The backend cudnn as if an H200 were here.
class CudnnOnH200 : public backend::Backend {
 public:
  const char* name() const override { return "cudnn"; }
  std::string engine_text() const override { return cudnn_.engine_text(); }
  bool builds_in_turn() const override { return cudnn_.builds_in_turn(); }
  std::vector<std::string> library_folders() const override { return cudnn_.library_folders(); }
  std::string device_properties_here() const override { return properties(); }
  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task& task,
                                            const backend::Target* target) const override {
    return cudnn_.objections(problem, task, target);
  }
  std::vector<backend::Candidate> candidates(const CompiledProblem& problem, const Task& task,
                                             const backend::Target& target,
                                             std::vector<UnsupportedReason>& reasons) const override {
    return cudnn_.candidates(problem, task, target, reasons);
  }

 private:
  const backend::Backend& cudnn_ = backend::find_backend("cudnn");
};

/// A backend that builds any number of plans at once.
class BuildsAtOnce final : public CudnnOnH200 {
 public:
  bool builds_in_turn() const override { return false; }
};

class BuildProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!backend::cudnn::library().available) GTEST_SKIP() << backend::cudnn::library().reason;
    set_plan_store_directory(folder_.path().string());
    engines_ = {&engine_};
    use(engines_);
    request_.target = &target_;
    request_.max_workspace = std::size_t{1} << 33;
  }
  void TearDown() override {
    set_plan_store_directory("");
    unsetenv("SCOREMOD_BUILD_PROCESSES");
  }

  void use(const std::vector<const backend::Backend*>& engines) { request_.backends = engines; }
  std::vector<std::optional<BuildRequest>> requests(const std::vector<Task>& tasks) {
    verification::Trial trial(problem_);
    ExpectedAnswers expected(problem_, request_, trial);
    return build_requests(problem_, tasks, request_, expected);
  }
  /// The candidate that is expected to be chosen for a task, and the one that verifies it.
  std::pair<backend::Candidate, backend::Candidate> expected(const Task& task) {
    verification::Trial trial(problem_);
    Request asked = request_;
    asked.level = Level::kStatic;
    const TaskAnswer answer = plan_task(problem_, task, asked, trial);
    return {answer.chosen()->candidate, trial_candidate(*answer.chosen(), task, target_, trial).value()};
  }
  static bool is_stored(const backend::Candidate& candidate) {
    return plans::plan_store()->load(plans::RecordKind::kPlan, candidate.plan_key).has_value();
  }

  const test::ScratchFolder folder_;
  const CompiledProblem problem_ = soft_cap();
  const CudnnOnH200 engine_;
  const backend::Target target_{backend::DeviceProperties::parse(properties()), 0, 0, false};
  std::vector<const backend::Backend*> engines_;
  Request request_;
};

TEST_F(BuildProcess, IsAskedForAllButTheFirstOfTheTasksThatWouldWait) {
  const auto both = requests({kForward, kBackward});
  EXPECT_FALSE(both[0]);
  ASSERT_TRUE(both[1]);
  EXPECT_FALSE(both[1]->plan.empty());
  EXPECT_FALSE(both[1]->trial.empty());
  EXPECT_FALSE(requests({kBackward})[0]);
}

TEST_F(BuildProcess, IsAskedForNothingWhereThePlanCouldNotComeBackOrNoneWaits) {
  const BuildsAtOnce at_once;
  const std::vector<const backend::Backend*> engines{&at_once};
  use(engines);
  EXPECT_FALSE(requests({kForward, kBackward})[1]);
  use(engines_);
  request_.autotune = true;
  EXPECT_FALSE(requests({kForward, kBackward})[1]);
  request_.autotune = false;
  setenv("SCOREMOD_BUILD_PROCESSES", "0", 1);
  EXPECT_FALSE(requests({kForward, kBackward})[1]);
  setenv("SCOREMOD_BUILD_PROCESSES", "1", 1);
  EXPECT_TRUE(requests({kForward, kBackward})[1]);
  set_plan_store_directory("");
  EXPECT_FALSE(requests({kForward, kBackward})[1]);
}

TEST_F(BuildProcess, RefusesAnotherValueOfItsVariable) {
  setenv("SCOREMOD_BUILD_PROCESSES", "two", 1);
  try {
    requests({kForward, kBackward});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "SCOREMOD_BUILD_PROCESSES: expected 0 or 1, found 'two'");
  }
}

TEST_F(BuildProcess, LeavesThePlanAndItsTrialsInTheStore) {
  const auto [plan, trial] = expected(kBackward);
  EXPECT_FALSE(is_stored(plan));
  build_apart(requests({kForward, kBackward})[1].value());
  EXPECT_TRUE(is_stored(plan));
  EXPECT_TRUE(is_stored(trial));
  EXPECT_FALSE(is_stored(expected(kForward).first));
  // A stored plan is not waited for.
  EXPECT_FALSE(requests({kForward, kBackward})[1]);
}

TEST_F(BuildProcess, LeavesThemInAFolderWhoseNameIsNotUtf8) {
  set_plan_store_directory((folder_.path() / "caf\xe9").string());
  build_apart(requests({kForward, kBackward})[1].value());
  EXPECT_TRUE(is_stored(expected(kBackward).first));
}

TEST_F(BuildProcess, ServesARequestThatNamesCompanions) {
  for (const backend::Backend* backend : backend::backends()) {
    if (backend->is_companion()) engines_.push_back(backend);
  }
  ASSERT_GT(engines_.size(), 1U);
  use(engines_);
  build_apart(requests({kForward, kBackward})[1].value());
  EXPECT_TRUE(is_stored(expected(kBackward).first));
}

TEST_F(BuildProcess, AsksForNoTrialWhereNoneIsNeeded) {
  request_.level = Level::kBuilt;
  EXPECT_TRUE(requests({kForward, kBackward})[1].value().trial.empty());
}

TEST_F(BuildProcess, RefusesATextThatIsNoRequest) {
  for (const char* text : {"", "[]", "{}", R"({"problem": {}})"}) {
    try {
      serve_build_request(text);
      FAIL() << "expected an error of " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
  }
}

}  // namespace
}  // namespace scoremod::planner
