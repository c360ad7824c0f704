#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"
#include "scoremod/staging.hpp"
#include "scoremod/tensors.hpp"
#include "scoremod/work.hpp"

#include "commands.hpp"
#include "exit_code.hpp"
#include "fail.hpp"
#include "integer_range.hpp"
#include "load_inputs.hpp"
#include "npy.hpp"
#include "output_file.hpp"
#include "problem_source.hpp"
#include "progress_bar.hpp"
#include "selection_options.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

/// The number of a tensor's elements.
std::int64_t element_count(const TensorInfo& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= size;
  return count;
}

/// Calls body(offset in elements) for each element in row-major order.
template <class Body>
void for_each_offset(const TensorInfo& tensor, const Body& body) {
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t left = element_count(tensor); left > 0; --left) {
    body(offset);
    for (std::size_t d = index.size(); d-- > 0;) {
      offset += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      offset -= tensor.strides[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
}

/// The elements in row-major order, dense.
std::vector<std::byte> gather(const TensorInfo& tensor, std::span<const std::byte> memory) {
  const std::size_t bytes = size_of(tensor.dtype);
  std::vector<std::byte> elements(static_cast<std::size_t>(element_count(tensor)) * bytes);
  std::byte* to = elements.data();
  for_each_offset(tensor, [&](std::int64_t offset) {
    std::memcpy(to, memory.data() + static_cast<std::size_t>(offset) * bytes, bytes);
    to += bytes;
  });
  return elements;
}

struct Arguments {
  std::string problem;
  CompileOptions compile;
  bool backward = false;
  std::optional<std::uint64_t> seed;
  int repeat = 1;
  std::string out;
  bool json = false;
};

/// The printed part of an output.
struct Summary {
  double minimum = std::numeric_limits<double>::infinity();
  double maximum = -std::numeric_limits<double>::infinity();
  double mean = 0;  ///< like the others, of the finite elements
  std::int64_t finite = 0;
  std::int64_t elements = 0;
};

/// Seconds of each call. More than one call is preceded by one that is not timed, so that no cold start is among them.
template <class Call>
std::vector<double> time_calls(const Call& call, int repeat, const std::string& stage, ProgressBar& progress) {
  std::vector<double> seconds;
  const int warm_up = repeat > 1 ? 1 : 0;
  for (int i = -warm_up; i < repeat; ++i) {
    progress.update(stage, static_cast<double>(i + warm_up) / (repeat + warm_up));
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (i >= 0) seconds.push_back(elapsed.count());
  }
  return seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Summary summarize(const OutputTensor& output) {
  Summary summary;
  const std::vector<std::byte> elements = gather(output.tensor, output.bytes);
  const std::size_t bytes = size_of(output.tensor.dtype);
  double sum = 0;
  for (std::size_t at = 0; at < elements.size(); at += bytes) {
    const double value = read_element(output.tensor.dtype, elements.data() + at);
    ++summary.elements;
    if (!std::isfinite(value)) continue;
    ++summary.finite;
    summary.minimum = std::min(summary.minimum, value);
    summary.maximum = std::max(summary.maximum, value);
    sum += value;
  }
  summary.mean = sum / static_cast<double>(summary.finite);
  return summary;
}

/// Makes the folder and shows that it can be written to before time is spent on computing.
void prepare_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) input::fail(ErrorCode::kEnvironment, folder.string(), ": this folder cannot be made: ", error.message());
  const std::filesystem::path probe = folder / ".scoremod_probe.npy";
  input::write_npy(probe, DType::kBool, {0}, {});
  std::filesystem::remove(probe, error);
}

/// The report of `run`.
struct Report {
  std::string backend;
  std::vector<double> forward_seconds, backward_seconds;
  WorkEstimate work;
  std::vector<OutputTensor> outputs;
};

nlohmann::ordered_json time_json(const std::vector<double>& seconds, double flops) {
  return {{"median_seconds", median(seconds)}, {"seconds", seconds}, {"flops_per_second", flops / median(seconds)}};
}

std::string as_json(const Report& report, const std::string& out) {
  nlohmann::ordered_json json;
  json["backend"] = report.backend;
  json["forward"] = time_json(report.forward_seconds, report.work.forward_flops);
  json["backward"] = nullptr;
  if (!report.backward_seconds.empty())
    json["backward"] = time_json(report.backward_seconds, report.work.backward_flops);
  json["flops_are_exact"] = report.work.exact;
  json["outputs"] = nlohmann::ordered_json::array();
  for (const OutputTensor& output : report.outputs) {
    const Summary summary = summarize(output);
    nlohmann::ordered_json entry;
    entry["name"] = output.name;
    entry["dtype"] = to_string(output.tensor.dtype);
    entry["shape"] = output.tensor.shape;
    entry["elements"] = summary.elements;
    entry["finite"] = summary.finite;
    // JSON has no infinities: without a finite element the three are null.
    entry["minimum"] = summary.minimum;
    entry["maximum"] = summary.maximum;
    entry["mean"] = summary.mean;
    if (!out.empty()) entry["path"] = (std::filesystem::path(out) / (output.name + ".npy")).string();
    json["outputs"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

/// The column at which the second one starts: two places after the longest name of the first.
int first_column(const Report& report) {
  std::size_t longest = std::string_view("backward").size();
  for (const OutputTensor& output : report.outputs) longest = std::max(longest, output.name.size());
  return static_cast<int>(longest) + 2;
}

void print_time(std::ostream& out, int column, const char* name, const std::vector<double>& seconds, double flops,
                bool exact) {
  if (seconds.empty()) return;
  const double time = median(seconds);
  out << std::left << std::setw(column) << name << std::fixed << std::setprecision(3) << time * 1e3 << " ms";
  if (seconds.size() > 1) {
    out << " (median of " << seconds.size() << ")";
  } else {
    out << " (first call)";
  }
  out << ", " << (exact ? "" : "at most ") << std::setprecision(2) << flops / time / 1e9 << " GFLOP/s\n"
      << std::defaultfloat << std::setprecision(6);
}

std::string as_text(const Report& report, const std::string& folder) {
  std::ostringstream out;
  const int column = first_column(report);
  out << std::left << std::setw(column) << "backend" << report.backend << "\n";
  print_time(out, column, "forward", report.forward_seconds, report.work.forward_flops, report.work.exact);
  print_time(out, column, "backward", report.backward_seconds, report.work.backward_flops, report.work.exact);
  for (const OutputTensor& output : report.outputs) {
    const Summary summary = summarize(output);
    out << std::left << std::setw(column) << output.name << to_string(output.tensor.dtype) << " [";
    for (std::size_t i = 0; i < output.tensor.shape.size(); ++i) out << (i > 0 ? ", " : "") << output.tensor.shape[i];
    out << "]";
    if (summary.finite > 0)
      out << " from " << summary.minimum << " to " << summary.maximum << ", mean " << summary.mean;
    if (summary.finite < summary.elements) out << ", " << summary.elements - summary.finite << " not finite";
    if (!folder.empty()) out << ", in " << (std::filesystem::path(folder) / (output.name + ".npy")).string();
    out << "\n";
  }
  return out.str();
}

int run(const Arguments& arguments) {
  ProblemSource source = read_problem(arguments.problem);
  AttentionProblem& problem = source.file.problem;
  problem.backward = problem.backward || arguments.backward;
  validate(problem);
  Report report;
  const Attention attention = Attention::compile(problem, arguments.compile);
  report.backend = attention.backend();
  report.work = estimate_work(problem);
  const ProblemInputs inputs = load_inputs(source, arguments.seed);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  if (!arguments.out.empty()) prepare_folder(arguments.out);
  {
    ProgressBar progress;
    Staging staging(attention);
    CallOptions call;
    call.dropout_seed = arguments.seed.value_or(source.file.seed);
    const ForwardArgs forward = staging.stage(buffers.forward(call));
    const Buffer workspace = staging.workspace(attention.forward_workspace_bytes());
    const auto run_forward = [&] {
      attention.forward(forward, workspace);
      staging.wait();
    };
    report.forward_seconds = time_calls(run_forward, arguments.repeat, "forward", progress);
    if (problem.backward) {
      const BackwardArgs backward = staging.stage(buffers.backward(call));
      const Buffer backward_workspace = staging.workspace(attention.backward_workspace_bytes());
      const auto run_backward = [&] {
        attention.backward(backward, backward_workspace);
        staging.wait();
      };
      report.backward_seconds = time_calls(run_backward, arguments.repeat, "backward", progress);
    }
    staging.fetch();
  }
  report.outputs = buffers.outputs();
  for (const OutputTensor& output : report.outputs) {
    if (arguments.out.empty()) break;
    input::write_npy(std::filesystem::path(arguments.out) / (output.name + ".npy"), output.tensor.dtype,
                     output.tensor.shape, gather(output.tensor, output.bytes));
  }
  write_output(arguments.json ? as_json(report, arguments.out) : as_text(report, arguments.out));
  return kFine;
}

}  // namespace

void add_run(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("run", "Run a problem and print the time that it takes");
  command->add_option("PROBLEM", arguments->problem, "JSON file, or - for the standard input")->required();
  input::add_selection(*command, arguments->compile, " to run on");
  input::add_threads(*command, arguments->compile.threads);
  command->add_flag("--backward", arguments->backward,
                    "Run the backward pass too, even if the file does not ask for it");
  command->add_option("--seed", arguments->seed, "Seed of the random inputs, instead of the file's")
      ->check(input::integer_range(0, std::numeric_limits<std::uint64_t>::max()));
  command->add_option("--repeat", arguments->repeat, "Calls whose median time is printed, after one that is not timed")
      ->check(input::integer_range(1, 1000000));
  input::add_out(*command, arguments->out, "folder",
                 "Folder to write the outputs to as .npy files; made if it is not there");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

}  // namespace scoremod::cli
