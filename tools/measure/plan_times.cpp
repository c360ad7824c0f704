#include "plan_times.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "scoremod/cache.hpp"
#include "scoremod/error.hpp"

namespace scoremod::measure {
namespace {

using Json = nlohmann::json;

/// How much of each kind of work there was between two looks at the counts.
struct Work {
  double build_ms = 0, load_ms = 0, trial_ms = 0;
  std::uint64_t builds = 0;
};

Work work_between(const CacheStatistics& before, const CacheStatistics& after) {
  return {after.builds.milliseconds - before.builds.milliseconds, after.loads.milliseconds - before.loads.milliseconds,
          after.trials.milliseconds - before.trials.milliseconds,
          after.builds.count - before.builds.count + after.trials.count - before.trials.count};
}

/// A problem that no case has, to load the libraries with.
AttentionProblem first_problem() {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = 192;
  problem.dtype = DType::kBF16;
  return problem;
}

double compile_ms(const AttentionProblem& problem, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Attention::compile(problem, options);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// The median of some static answers.
double static_us(const AttentionProblem& problem, const CompileOptions& options) {
  std::array<double, 21> times{};
  for (double& time : times) {
    const auto start = std::chrono::steady_clock::now();
    (void)support(problem, options, SupportLevel::kStatic);
    time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

/// A child's answer for one case. A backward case has its forward's plan too, which is made first and not counted.
Json compile_case(const BenchCase& bench_case, const CompileOptions& options) {
  try {
    if (bench_case.direction == Direction::kBackward) {
      AttentionProblem forward = bench_case.problem;
      forward.backward = false;
      Attention::compile(forward, options);
    }
    const CacheStatistics before = cache_statistics();
    const double whole_ms = compile_ms(bench_case.problem, options);
    const Work work = work_between(before, cache_statistics());
    return {{"compile_ms", whole_ms},
            {"build_ms", work.build_ms},
            {"load_ms", work.load_ms},
            {"trial_ms", work.trial_ms},
            {"static_us", static_us(bench_case.problem, options)}};
  } catch (const Error&) {
    return nullptr;  // measure() reports the error
  }
}

Json compile_all(std::span<const BenchCase> cases, const CompileOptions& options, const std::string& directory) {
  set_plan_store_directory(directory);
  Json answer;
  try {
    const auto start = std::chrono::steady_clock::now();
    const Attention first = Attention::compile(first_problem(), options);
    answer["start_ms"] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    answer["on_device"] = first.memory() != MemoryKind::kHost;
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
  answer["cases"] = Json::array();
  if (!answer["on_device"].get<bool>()) return answer;
  const CacheStatistics before = cache_statistics();
  for (const BenchCase& bench_case : cases) answer["cases"].push_back(compile_case(bench_case, options));
  answer["builds"] = work_between(before, cache_statistics()).builds;
  return answer;
}

/// Runs body in a child and returns its result; an object with "error" if the child ended otherwise.
template <class Body>
Json in_child(const Body& body) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {{"error", "no pipe to a process that compiles the cases"}};
  const pid_t child = fork();
  if (child < 0) return {{"error", "no process to compile the cases in"}};
  if (child == 0) {
    close(ends[0]);
    std::string text;
    try {
      text = body().dump(-1, ' ', false, Json::error_handler_t::replace);
    } catch (...) {
      _exit(1);
    }
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t written = write(ends[1], text.data() + at, text.size() - at);
      if (written <= 0) _exit(1);
      at += static_cast<std::size_t>(written);
    }
    // The parent's unwritten output must not be written twice.
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t count = 0; (count = read(ends[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Json answer = Json::parse(text, nullptr, false);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !answer.is_discarded()) return answer;
  const std::string how = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                              : "status " + std::to_string(WEXITSTATUS(status));
  return {{"error", "the process that compiles the cases ended with " + how}};
}

}  // namespace

PlanReport plan_times(std::span<const BenchCase> cases, const CompileOptions& options, const std::string& directory) {
  PlanReport report;
  report.times.resize(cases.size());
  const Json built = in_child([&] { return compile_all(cases, options, directory); });
  set_plan_store_directory(directory);
  report.error = built.value("error", "");
  report.on_device = built.value("on_device", false);
  if (!report.on_device) return report;
  const Json loaded = in_child([&] { return compile_all(cases, options, directory); });
  report.error = loaded.value("error", "");
  if (!report.error.empty()) return report;
  report.start_ms = loaded["start_ms"].get<double>();
  report.filled_store_builds = loaded["builds"].get<int>();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Json& first = built["cases"][i];
    const Json& second = loaded["cases"][i];
    PlanTimes& times = report.times[i];
    if (first.is_null() || second.is_null()) continue;
    times.build_ms = first["build_ms"].get<double>();
    times.trial_ms = first["trial_ms"].get<double>();
    times.static_us = second["static_us"].get<double>();
    times.load_ms = second["load_ms"].get<double>();
    times.compile_ms = second["compile_ms"].get<double>();
  }
  return report;
}

}  // namespace scoremod::measure
