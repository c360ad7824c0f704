// The engine that predicted times choose for the cases of the record beside other libraries, and what that choice costs
// by the record's own times of both engines.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "backend/cudnn/patterns/attention_time.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "golden/cudnn_lowering.hpp"
#include "support/committed_file.hpp"

namespace scoremod {
namespace {

using backend::Direction;
using Json = nlohmann::ordered_json;
namespace cudnn = backend::cudnn;

const std::filesystem::path kRoot = std::filesystem::path(SCOREMOD_TEST_SOURCE_DIR).parent_path();

/// An H100 with HBM3: an H200's multiprocessors and clock, and another memory.
backend::Target record_target() {
  std::stringstream text;
  text << std::ifstream(kRoot / "src/backend/cudnn/devices/h200.json").rdbuf();
  Json json = Json::parse(text.str());
  json["deviceName"] = "NVIDIA H100 80GB HBM3";
  json["memClockRateKHz"] = 2619000;
  json["memoryBusWidth"] = 5120;
  json["l2CacheSize"] = 50 << 20;
  return {backend::DeviceProperties::parse(json.dump()), 0, 0, false};
}

/// The program of a case's modifier; empty for those that read tensors, whose contents decide their times.
std::string program_of(const Json& shape) {
  const std::string causal = "\nkeep = kv_idx <= q_idx", capped = "value = tanh(score / 50.0) * 50.0";
  const std::string window = concat(causal, " & q_idx - kv_idx < ", shape.value("window", 0));
  const std::map<std::string, std::string> programs{{"full", "value = score"},
                                                    {"causal", "value = score" + causal},
                                                    {"window_512", "value = score" + window},
                                                    {"soft_cap", capped},
                                                    {"soft_cap_causal", capped + causal}};
  std::string name = shape.at("modifier").get<std::string>();
  if (const std::size_t end = name.find("_deterministic"); end != std::string::npos) name.resize(end);
  const auto found = programs.find(name);
  return found == programs.end() ? "" : found->second;
}

AttentionProblem problem_of(const Json& shape, const std::string& program, Direction direction) {
  AttentionProblem problem;
  const auto size = [&](const char* name) { return shape.at(name).get<std::int64_t>(); };
  problem.batch = size("batch");
  problem.heads_q = size("heads");
  problem.heads_kv = size("kv_heads");
  problem.seq_q = size("queries");
  problem.seq_kv = size("keys");
  problem.dim_qk = size("dim");
  problem.dim_v = size("dim_v");
  problem.dtype = shape.at("dtype") == "float16" ? DType::kF16 : DType::kBF16;
  problem.stats = true;
  problem.backward = direction == Direction::kBackward;
  problem.deterministic = shape.at("modifier").get<std::string>().ends_with("_deterministic");
  problem.program = Program::parse(program);
  return problem;
}

double predicted_of_cudnn(const compiler::CompiledProblem& compiled, Direction direction,
                          const backend::DeviceRates& rates) {
  const auto lowered = test::lowered_for_hopper(compiled, direction);
  if (!lowered) return std::numeric_limits<double>::infinity();
  return cudnn::attention_time(compiled.problem, {direction}, *lowered, rates, true).milliseconds;
}

double predicted_of_kernels(const compiler::CompiledProblem& compiled, Direction direction,
                            const backend::Target& target) {
  std::vector<UnsupportedReason> reasons;
  double least = std::numeric_limits<double>::infinity();
  for (const backend::Candidate& candidate :
       backend::kernels_backend().candidates(compiled, {direction, true, {}}, target, reasons))
    least = std::min(least, candidate.predicted.milliseconds);
  return least;
}

double rounded(double value) { return std::round(value * 1e3) / 1e3; }

TEST(Regret, OfThePeersRecordsCasesIsAsCommitted) {
  const Json record = Json::parse(std::ifstream(kRoot / "bench/results/peers.json"));
  std::map<std::pair<std::string, std::string>, std::map<std::string, double>> times;
  for (const Json& row : record.at("results"))
    if (row.contains("ms")) times[{row.at("case"), row.at("direction")}][row.at("implementation")] = row.at("ms");
  const backend::Target target = record_target();
  std::vector<std::pair<double, Json>> rows;
  for (const auto& [key, measured] : times) {
    const auto& [name, way] = key;
    const Json& shape = record.at("cases").at(name);
    const std::string program = program_of(shape);
    if (program.empty() || !measured.contains("scoremod_cudnn") || !measured.contains("scoremod_kernels")) continue;
    const Direction direction = way == "forward" ? Direction::kForward : Direction::kBackward;
    const compiler::CompiledProblem compiled = compiler::compile(problem_of(shape, program, direction), {});
    const double by_cudnn = predicted_of_cudnn(compiled, direction, target.device.rates),
                 by_kernels = predicted_of_kernels(compiled, direction, target);
    const double cudnn_ms = measured.at("scoremod_cudnn"), kernels_ms = measured.at("scoremod_kernels");
    const bool takes_kernels = by_kernels <= by_cudnn;
    const double regret = (takes_kernels ? kernels_ms : cudnn_ms) / std::min(cudnn_ms, kernels_ms);
    rows.emplace_back(regret, Json{{"case", name},
                                   {"direction", way},
                                   {"chosen", takes_kernels ? "kernels" : "cudnn"},
                                   {"regret", rounded(regret)},
                                   {"cudnn", {rounded(by_cudnn), rounded(cudnn_ms)}},
                                   {"kernels", {rounded(by_kernels), rounded(kernels_ms)}}});
  }
  ASSERT_GT(rows.size(), 40U);
  std::ranges::stable_sort(rows, std::greater{}, &std::pair<double, Json>::first);
  const auto above = std::ranges::count_if(rows, [](const auto& row) { return row.first > 1.03; });
  std::string text = "{\"measured\": \"bench/results/peers.json\", \"commit\": " + record.at("commit").dump() +
                     ", \"rows\": " + Json(rows.size()).dump() + ", \"above_1.03\": " + Json(above).dump() +
                     ",\n\"milliseconds\": \"predicted, measured\", \"results\": [";
  for (const auto& row : rows) text += (&row == &rows.front() ? "\n" : ",\n") + row.second.dump();
  test::expect_committed(kRoot / "bench/results/regret.json", text + "\n]}\n");
}

}  // namespace
}  // namespace scoremod
