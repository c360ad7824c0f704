#include "planner/build_process.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/child_process.hpp"
#include "base/companion_file.hpp"
#include "base/environment.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"
#include "base/warning.hpp"
#include "compiler/pipeline.hpp"
#include "planner/artifacts.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::planner {
namespace {

using backend::Backend;
using backend::Task;
using compiler::CompiledProblem;
using Json = nlohmann::json;

constexpr const char* kProgram = "build_plan";
constexpr const char* kVariable = "SCOREMOD_BUILD_PROCESSES";
/// A build takes a second or two. One that takes this long hangs.
constexpr std::chrono::milliseconds kLimit{60'000};

/// Set by the first that fails.
std::atomic<bool>& have_failed() {
  static std::atomic<bool> failed{false};
  return failed;
}

bool are_allowed() { return environment_flag("SCOREMOD_BUILD_PROCESSES", true) && !have_failed(); }

/// The candidate that a task is expected to choose, if its backend builds one plan at a time and has none stored; or
/// null.
const Considered* built_in_turn(const TaskAnswer& expected) {
  const Considered* chosen = expected.chosen();
  if (chosen == nullptr || !chosen->engine->builds_in_turn() || chosen->candidate.plan_key.empty()) return nullptr;
  if (plans::plan_store()->has(plans::RecordKind::kPlan, chosen->candidate.plan_key)) return nullptr;
  return chosen;
}

std::string folders_of(const Backend& engine) {
  std::string folders;
  for (const std::string& folder : engine.library_folders()) folders += folder + ":";
  return concat(folders, environment_variable("LD_LIBRARY_PATH"));
}

std::string program() {
  std::error_code error;
  for (const std::filesystem::path& file : companion_file(kProgram)) {
    if (std::filesystem::is_regular_file(file, error)) return file;
  }
  return {};
}

Json request_of(const CompiledProblem& problem, const Task& task, const Request& request, const Backend& engine) {
  Json backends = Json::array();
  for (const Backend* each : request.backends) backends.push_back(each->name());
  return {{"problem", Json::parse(to_json(problem.problem))},
          {"device", engine.device_properties_here()},
          {"backends", std::move(backends)},
          {"in_order", request.in_order},
          {"max_workspace", request.max_workspace},
          {"backward", task.direction == backend::Direction::kBackward},
          {"attention", task.attention},
          {"operand_gradients", task.operand_gradients},
          {"trial", false}};
}

BuildRequest build_request(const CompiledProblem& problem, const Task& task, const Request& request,
                           const Considered& expected) {
  Json document = request_of(problem, task, request, *expected.engine);
  BuildRequest asked{expected.engine, document.dump(), {}};
  const bool verified = request.level == Level::kVerified && !expected.candidate.structural_key.empty();
  if (verified && verification::needs_trial(subject_of(expected, *request.target))) {
    document["trial"] = true;
    asked.trial = document.dump();
  }
  return asked;
}

/// Why it failed; empty if it did not. It needs no device, and makes no context on one. The store is passed as this
/// process's own: JSON has only UTF-8, and the name of a folder may have any bytes.
std::string serve(const std::string& request, const Backend& engine) {
  const TimedStep step("helper process", engine.name());
  const auto store = plans::plan_store();
  return run_child({program(),
                    {{"LD_LIBRARY_PATH", folders_of(engine)},
                     {"CUDA_VISIBLE_DEVICES", ""},
                     {kVariable, "0"},
                     {"SCOREMOD_CACHE", "on"},
                     {"SCOREMOD_CACHE_DIR", store->directory().string()},
                     {"SCOREMOD_CACHE_BYTES", std::to_string(store->max_bytes())}},
                    request,
                    kLimit});
}

/// The contents of a request.
struct Asked {
  AttentionProblem problem;
  backend::Target target;
  std::vector<const Backend*> backends;
  Request request;
  Task task;
  bool trial = false;  ///< the plan that verifies the task's
};

Asked parse_request(std::string_view text) {
  Asked asked;
  try {
    const Json document = Json::parse(text);
    asked.problem = parse_problem(document.at("problem").dump());
    asked.target = {backend::DeviceProperties::parse(document.at("device").get<std::string>()), 0, 0, false};
    for (const auto& name : document.at("backends")) asked.backends.push_back(&backend::find_engine(name));
    asked.request.in_order = document.at("in_order");
    asked.request.max_workspace = document.at("max_workspace");
    const bool backward = document.at("backward");
    asked.task.direction = backward ? backend::Direction::kBackward : backend::Direction::kForward;
    asked.task.attention = document.at("attention");
    asked.trial = document.at("trial");
    asked.task.operand_gradients = document.at("operand_gradients").get<std::vector<std::uint32_t>>();
  } catch (const Json::exception& error) {
    fail_argument("expected a request that scoremod sends to its program build_plan, found something else: ",
                  error.what());
  }
  return asked;
}

}  // namespace

std::vector<std::optional<BuildRequest>> build_requests(const CompiledProblem& problem, const std::vector<Task>& tasks,
                                                        const Request& request, ExpectedAnswers& expected) {
  std::vector<std::optional<BuildRequest>> requests(tasks.size());
  if (request.autotune || request.ready_only || !plans::plan_store()->is_on() || !are_allowed() || program().empty())
    return requests;
  std::vector<const Backend*> building;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Considered* chosen = built_in_turn(expected.of(tasks[i]));
    if (chosen == nullptr) continue;
    // The first is this process's own.
    if (std::ranges::find(building, chosen->engine) != building.end()) {
      requests[i] = build_request(problem, tasks[i], request, *chosen);
    }
    building.push_back(chosen->engine);
  }
  return requests;
}

void build_apart(const BuildRequest& request) {
  const plans::CountedWork build(plans::WorkKind::kBuild);
  std::future<std::string> trial;
  if (!request.trial.empty()) {
    trial = std::async(std::launch::async, [&] { return serve(request.trial, *request.engine); });
  }
  std::string why = serve(request.plan, *request.engine);
  if (trial.valid()) why += trial.get();
  if (why.empty() || have_failed().exchange(true)) return;
  warn("the helper process that builds a second plan failed, so plans are built one after the other: ", why, " (",
       kVariable, "=0 starts no helper)");
}

void serve_build_request(std::string_view text) {
  Asked asked = parse_request(text);
  asked.request.target = &asked.target;
  asked.request.backends = asked.backends;
  const CompiledProblem problem = compiler::compile(asked.problem);
  for (const Backend* engine : asked.backends) engine->prepare_building_elsewhere();
  verification::Trial trial(problem);
  ExpectedAnswers expected(problem, asked.request, trial);
  const Considered* chosen = expected.of(asked.task).chosen();
  if (chosen == nullptr) return;
  std::optional<backend::Candidate> candidate = chosen->candidate;
  if (asked.trial) candidate = trial_candidate(*chosen, asked.task, asked.target, trial);
  if (!candidate || candidate->plan_key.empty()) return;
  const backend::BuildResult built = build_artifact(*chosen->engine, *candidate, asked.target);
  if (built.artifact) store_artifact(*chosen->engine, *candidate, *built.artifact, asked.target, *plans::plan_store());
}

}  // namespace scoremod::planner
