// Compares plans that `scoremod compile` built elsewhere with ones built here, on a machine with a device. Runs both on
// equal inputs, and reports whether the outputs agree bit by bit and how the times compare. See
// docs/reference/plans.md.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem_file.hpp"

#include "backend/cuda/device/own_stream.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/plan_key.hpp"
#include "backend/cudnn/lowerings.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "plans/plan_store.hpp"
#include "problem/tensor_view.hpp"
#include "tools/cudnn/commands.hpp"
#include "tools/cudnn/device_call.hpp"

namespace {

using namespace scoremod;
using backend::Direction;
using problem::TensorRole;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
namespace cudnn = backend::cudnn;
namespace cuda = backend::cuda;

constexpr int kLoads = 5;
constexpr int kRounds = 25;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

const char* name_of(Direction direction) { return direction == Direction::kForward ? "forward" : "backward"; }

/// The fastest pattern, as `scoremod compile` takes it.
explorer::PreparedCall prepare(const compiler::CompiledProblem& problem, Direction direction,
                               const backend::DeviceProperties& device) {
  const auto table = cudnn::shipped_pattern_table(
      device.architecture(), cudnn::version_text(cudnn::library().cudnn_version), cudnn::row_class(problem.problem));
  auto lowerings = cudnn::lowerings(problem, direction, cudnn::right_patterns(table, direction));
  if (lowerings.found.empty()) fail_unsupported("no pattern for this problem");
  return {problem, std::move(lowerings.found.front().modifier), direction, {}, false};
}

Bytes stored_bytes(plans::PlanStore& store, const cudnn::AttentionGraph& graph,
                   const backend::DeviceProperties& device) {
  cudnn::PlanKey key;
  key.graph = graph;
  key.device = cudnn::plan_device(device);
  key.cudnn_version = cudnn::library().cudnn_version;
  const auto bytes = store.load(plans::RecordKind::kPlan, cudnn::canonical_bytes(key));
  if (!bytes) {
    fail_argument("the store has no plan for ", cudnn::plan_label(graph), " on ", cudnn::architecture_text(key.device),
                  ": make it with scoremod compile");
  }
  return *bytes;
}

double milliseconds(explorer::DeviceCall& call, const cudnn::EnginePlan& plan) {
  cuda::DeviceTimer timer(cuda::own_stream());
  timer.start();
  call.execute(plan);
  return timer.stop();
}

std::vector<cudnn::Uid> outputs_of(Direction direction) {
  if (direction == Direction::kForward) return {cudnn::kUidO, cudnn::kUidStats};
  return {cudnn::kUidDQ, cudnn::kUidDK, cudnn::kUidDV};
}

/// The outputs of a plan, each filled with NaN before.
std::vector<std::vector<std::byte>> outputs(explorer::DeviceCall& call, const AttentionProblem& problem,
                                            Direction direction, const cudnn::EnginePlan& plan) {
  const auto rows = static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q);
  if (direction == Direction::kForward) {
    call.output(cudnn::kUidO, problem::bytes_of(problem, TensorRole::kO));
    call.output(cudnn::kUidStats, rows * sizeof(float));
  } else {
    call.output(cudnn::kUidDQ, problem::bytes_of(problem, TensorRole::kQ));
    call.output(cudnn::kUidDK, problem::bytes_of(problem, TensorRole::kK));
    call.output(cudnn::kUidDV, problem::bytes_of(problem, TensorRole::kV));
  }
  call.execute(plan);
  cuda::wait_for_own_stream();
  std::vector<std::vector<std::byte>> found;
  for (const cudnn::Uid uid : outputs_of(direction)) found.push_back(call.download(uid));
  return found;
}

/// How far two bf16 or f32 tensors are apart, relative to the size of the first (Euclidean norm).
double difference(const std::vector<std::byte>& x, const std::vector<std::byte>& y, DType dtype) {
  double sum = 0, size = 0;
  const auto count = static_cast<std::int64_t>(x.size() / size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const double a = load_element<double>(x.data(), dtype, i), b = load_element<double>(y.data(), dtype, i);
    sum += (a - b) * (a - b);
    size += a * a;
  }
  return std::sqrt(sum / size);
}

/// Forward's results, which backward reads; from the plan that was built here.
struct ForwardResults {
  std::vector<std::byte> o, stats;
};

Json compare(const std::string& name, const explorer::PreparedCall& prepared, const ProblemInputs& inputs,
             plans::PlanStore& store, const backend::DeviceProperties& device, ForwardResults& forward) {
  const AttentionProblem& problem = prepared.compiled.problem;
  const Direction direction = prepared.direction;
  const auto graph = cudnn::attention_graph(problem, direction, prepared.modifier.graph);
  const Bytes bytes = stored_bytes(store, graph, device);
  std::vector<double> loads;
  std::shared_ptr<cudnn::EnginePlan> loaded;
  for (int i = 0; i < kLoads; ++i) {
    const auto start = Clock::now();
    loaded = cudnn::load_plan(bytes, cudnn::thread_handle());
    loads.push_back(since(start));
  }
  const auto start = Clock::now();
  const auto built = cudnn::build_plan(graph, cudnn::thread_handle());
  const double build_ms = since(start);
  if (!built.plan) fail_environment("the plan was not built here: ", built.text);
  explorer::DeviceCall call(prepared, inputs);
  if (direction == Direction::kBackward) {
    call.upload(cudnn::kUidO, forward.o);
    call.upload(cudnn::kUidStats, forward.stats);
    call.upload(cudnn::kUidDO, inputs.d_o);
  }
  const auto here = outputs(call, problem, direction, *built.plan);
  const auto there = outputs(call, problem, direction, *loaded);
  if (direction == Direction::kForward) forward = {here[0], here[1]};
  double worst = 0;
  for (std::size_t i = 0; i < here.size(); ++i) {
    const bool stats = outputs_of(direction)[i] == cudnn::kUidStats;
    worst = std::max(worst, difference(here[i], there[i], stats ? DType::kF32 : problem.dtype));
  }
  std::vector<double> times_here, times_there;
  for (int i = 0; i < kRounds; ++i) {
    times_here.push_back(milliseconds(call, *built.plan));
    times_there.push_back(milliseconds(call, *loaded));
  }
  const double ms_here = median(times_here), ms_there = median(times_there);
  return {{"problem", name},
          {"direction", name_of(direction)},
          {"plan", cudnn::plan_label(graph)},
          {"plan_bytes", bytes.size()},
          {"same_bytes_as_built_here", built.plan->serialize() == bytes},
          {"outputs_equal", here == there},
          {"outputs_relative_difference", worst},
          {"first_load_ms", loads.front()},
          {"load_ms", median(loads)},
          {"build_ms", build_ms},
          {"stored_ms", ms_there},
          {"built_here_ms", ms_here},
          {"ratio", ms_there / ms_here},
          {"workspace_bytes", loaded->workspace_bytes()}};
}

int run(const std::string& directory, const std::vector<std::string>& files, const std::string& machine,
        const std::string& commit) {
  plans::PlanStore store(directory);
  const backend::DeviceProperties device = cudnn::device_properties(cudnn::thread_handle());
  Json rows = Json::array();
  bool right = true;
  for (const std::string& file : files) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    const compiler::CompiledProblem problem = compiler::compile(parse_problem_file(text.str()).problem, {});
    const ProblemInputs inputs = random_inputs(problem.problem);
    ForwardResults forward;
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      rows.push_back(compare(file.substr(file.rfind('/') + 1), prepare(problem, direction, device), inputs, store,
                             device, forward));
      const double difference_allowed = direction == Direction::kForward ? 0 : 1e-2;
      right = right && rows.back()["outputs_relative_difference"].get<double>() <= difference_allowed;
      std::cerr << rows.back().dump() << "\n";
    }
  }
  const Json report{{"machine", machine},
                    {"device", Json::parse(device.json)},
                    {"cudnn", cudnn::version_text(cudnn::library().cudnn_version)},
                    {"commit", commit},
                    {"results", rows}};
  std::cout << report.dump(1) << "\n";
  return right ? 0 : 1;
}

}  // namespace

int scoremod::cudnn_program::compare_plans(int argc, char** argv) {
  std::string directory, machine, commit;
  std::vector<std::string> files;
  CLI::App app("Compare plans of a store with plans that are built here, on this machine's device.",
               "scoremod_cudnn compare");
  app.add_option("STORE", directory, "folder that scoremod compile wrote")->required();
  app.add_option("PROBLEM", files, "problem files that it was given")->required();
  app.add_option("--machine", machine, "what the report says of the machine");
  app.add_option("--commit", commit, "what the report says of the sources");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(directory, files, machine, commit);
  } catch (const Error& failure) {
    std::cerr << "scoremod_cudnn compare: " << to_string(failure.code()) << ": " << failure.what() << "\n";
    return 4;
  }
}
