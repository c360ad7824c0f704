#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/export.hpp"

#include "planner/expected_answers.hpp"

namespace scoremod::planner {

/// A request to a helper process to build the plan of a task.
struct BuildRequest {
  const backend::Backend* engine = nullptr;  ///< whose plans they are
  std::string plan;                          ///< JSON: the request for the task's plan
  std::string trial;                         ///< the one for the plan that verifies it; empty where none is needed
};

/// For each of a problem's tasks a request, if a helper process would finish its plan sooner. That is so if its first
/// candidate's backend builds one plan at a time and has another one to build first. There is none if plans are not
/// stored, because the store is how they come back, and if SCOREMOD_BUILD_PROCESSES is 0. Builds nothing. Throws
/// Error(kInvalidArgument) for a value of the variable other than 0 or 1.
std::vector<std::optional<BuildRequest>> build_requests(const compiler::CompiledProblem& problem,
                                                        const std::vector<backend::Task>& tasks, const Request& request,
                                                        ExpectedAnswers& expected);

/// Has the program lib/scoremod/build_plan serve a request, once for each plan and side by side, so that plan_task()
/// finds them in this process's store. On failure it warns, this process makes no further request, and plans are built
/// without it.
void build_apart(const BuildRequest& request);

/// The helper program's work: builds the plan of a request, as for a device elsewhere, and stores it, or the backend's
/// refusal. build_apart() gave it the store of the process that asks. A refusal is no error: the process that asked
/// finds it in the store. Throws Error(kInvalidArgument) for a text that is no request, and as plan_task() does.
SCOREMOD_API void serve_build_request(std::string_view text);

}  // namespace scoremod::planner
