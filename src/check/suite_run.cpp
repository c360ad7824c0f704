#include "check/suite_run.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "base/cpu_threads.hpp"
#include "base/fail.hpp"
#include "check/plain_attention.hpp"

namespace scoremod::checking {
namespace {

/// One problem in so many passes its sizes with the call.
constexpr std::uint64_t kOpenShare = 4;

/// One call of the check, whatever came of it.
struct Attempt {
  SuiteVerdict failure = SuiteVerdict::kError;  ///< without a report
  std::vector<std::string> reasons;
  std::optional<CheckReport> report;
};

/// The backend's reasons one by one where it refuses the problem beforehand, else the message.
std::vector<std::string> refusal_reasons(const AttentionProblem& problem, const CompileOptions& options,
                                         const std::string& message) {
  std::vector<std::string> reasons;
  for (const Support& answer : support(problem, options)) {
    if (answer.supported) return {message};
    for (const UnsupportedReason& reason : answer.reasons) {
      const std::string text = to_string(reason);
      reasons.push_back(options.backend.empty() ? concat(answer.backend, ": ", text) : text);
    }
  }
  return reasons.empty() ? std::vector<std::string>{message} : reasons;
}

Attempt attempt(const AttentionProblem& problem, const CheckOptions& options, const CheckFunction& check) {
  Attempt made;
  try {
    made.report = check(problem, options);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnsupported) {
      made.failure = SuiteVerdict::kRefused;
      made.reasons = refusal_reasons(problem, options.compile, error.what());
    } else {
      made.reasons = {concat(to_string(error.code()), ": ", error.what())};
    }
  } catch (const std::exception& error) {
    made.reasons = {error.what()};
  }
  return made;
}

bool is_forward(const std::string& output) {
  return output == "o" || output == "lse" || output == "max_logit" || output == "amax_o";
}

/// A memory problem's text begins with the direction that it was found after.
bool is_backward_memory(const std::string& problem) { return problem.starts_with("backward"); }

void judge(SuiteResult& result, const CheckReport& report) {
  const bool forward = result.direction == SuiteDirection::kForward;
  result.backend = forward ? report.backend : report.backward_backend;
  for (const OutputCheck& check : report.outputs) {
    if (is_forward(check.name) != forward) continue;
    result.outputs.push_back({check, {}});
    for (const std::string& problem : check.problems) result.reasons.push_back(concat(check.name, ": ", problem));
  }
  for (const std::string& problem : report.memory_problems) {
    if (is_backward_memory(problem) != forward) result.reasons.push_back(concat("memory: ", problem));
  }
  result.verdict = result.reasons.empty() ? SuiteVerdict::kRight : SuiteVerdict::kWrong;
  if (result.outputs.empty()) {
    result.verdict = SuiteVerdict::kError;
    result.reasons.emplace_back("the check compared no output");
  }
}

void set_outcome(SuiteResult& result, const Attempt& attempt) {
  if (attempt.report) {
    judge(result, *attempt.report);
  } else {
    result.verdict = attempt.failure;
    result.reasons = attempt.reasons;
  }
}

/// Relative errors of plain attention, by output.
std::optional<double> plain_error(const CheckReport& plain, const std::string& output) {
  std::optional<double> largest;
  for (const OutputCheck& check : plain.outputs) {
    const bool answers =
        check.name == output || (output.starts_with("d_") && (check.name == "dq" || check.name == "dk"));
    if (!answers || check.name == "lse") continue;
    const std::optional<double> error = SuiteOutput{check, {}}.relative_error();
    if (error) largest = std::max(largest.value_or(0), *error);
  }
  return largest;
}

/// Adds plain attention's results on the same backend to the results of the directions that ran.
void compare_with_plain_attention(const CheckCase& test_case, const CheckOptions& options, const CheckFunction& check,
                                  std::vector<SuiteResult>& results) {
  const auto ran = [](const SuiteResult& result) { return !result.outputs.empty(); };
  if (std::none_of(results.begin(), results.end(), ran)) return;
  auto [problem, plain_options] = plain_attention(test_case.problem, options);
  problem.backward = ran(results.back()) && test_case.problem.backward;
  const Attempt plain = attempt(problem, plain_options, check);
  if (!plain.report) return;
  for (SuiteResult& result : results) {
    for (SuiteOutput& output : result.outputs) {
      output.plain_attention_error = plain_error(*plain.report, output.check.name);
    }
  }
}

/// Runs body(i) for every i below count on several threads. An exception of one is rethrown here, and no further ones
/// begin.
template <class Body>
void in_parallel(std::size_t count, int threads, const Body& body) {
  std::atomic<std::size_t> next = 0;
  std::once_flag failed;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      std::call_once(failed, [&] { failure = std::current_exception(); });
      next = count;
    }
  };
  {
    std::vector<std::jthread> workers;
    try {
      for (int t = 1; t < threads; ++t) workers.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads: those that there are do the work.
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

/// As SuiteReport::backend.
std::string allowed_backends(const CompileOptions& compile) {
  if (!compile.backend.empty()) return compile.backend;
  std::string names;
  for (const std::string& name : compile.backends) names += concat(names.empty() ? "" : ",", name);
  return !names.empty() || !compile.memory ? names : to_string(*compile.memory);
}

/// About how long the oracle takes.
std::int64_t cost(const CheckCase& one) {
  const AttentionProblem& p = one.problem;
  const auto nodes = static_cast<std::int64_t>(p.program.nodes().size());
  return p.batch * p.heads_q * p.seq_q * p.seq_kv * (p.dim_qk + p.dim_v + 4 * nodes);
}

}  // namespace

std::vector<SuiteResult> run_case(const CheckCase& test_case, const CompileOptions& compile,
                                  const CheckFunction& check) {
  AttentionProblem problem = test_case.problem;
  const auto result_of = [&](SuiteDirection direction, const Attempt& attempt) {
    SuiteResult result;
    result.name = test_case.name;
    result.problem = test_case.problem;
    result.direction = direction;
    set_outcome(result, attempt);
    return result;
  };
  std::vector<SuiteResult> results;
  CheckOptions options;
  options.compile = compile;
  options.compile.threads = 1;  // problems run side by side, and sums do not depend on how many do
  options.seed = test_case.seed;
  options.call = test_case.call;
  options.open_sizes = test_case.seed % kOpenShare == 0;
  try {
    options.inputs = random_inputs(problem, {test_case.seed, test_case.fills});
    const Attempt whole = attempt(problem, options, check);
    Attempt forward = whole;
    if (problem.backward && !whole.report) {
      problem.backward = false;
      forward = attempt(problem, options, check);
    }
    results.push_back(result_of(SuiteDirection::kForward, forward));
    if (test_case.problem.backward) results.push_back(result_of(SuiteDirection::kBackward, whole));
    compare_with_plain_attention(test_case, options, check, results);
  } catch (const std::exception& error) {
    Attempt failed;
    failed.reasons = {error.what()};
    results = {result_of(SuiteDirection::kForward, failed)};
    if (test_case.problem.backward) results.push_back(result_of(SuiteDirection::kBackward, failed));
  }
  return results;
}

SuiteReport run_suite(const std::vector<CheckCase>& cases, const CheckSuiteOptions& options,
                      const CheckFunction& check) {
  const auto start = std::chrono::steady_clock::now();
  // The longest first, so that no thread is left alone with one at the end.
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cost(cases[a]) > cost(cases[b]); });
  const int threads = cpu_threads(options.threads);
  std::vector<std::vector<SuiteResult>> results(cases.size());
  std::mutex progress_mutex;
  std::size_t done = 0;
  const auto tell = [&](const CheckCase& one, bool begins) {
    const std::lock_guard lock(progress_mutex);
    done += begins ? 0 : 1;
    if (options.on_progress) options.on_progress({one.name, begins, done, cases.size()});
  };
  in_parallel(cases.size(), threads, [&](std::size_t i) {
    const CheckCase& one = cases[order[i]];
    tell(one, true);
    results[order[i]] = run_case(one, options.compile, check);
    tell(one, false);
  });
  SuiteReport report;
  report.backend = allowed_backends(options.compile);
  report.seed = options.seed.value_or(0);
  for (std::vector<SuiteResult>& of_case : results) {
    std::move(of_case.begin(), of_case.end(), std::back_inserter(report.results));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace scoremod::checking
