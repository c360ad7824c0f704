// Predicted times of the GPU benchmark's cases beside an H200's measured ones.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scoremod/problem_file.hpp"

#include "backend/cuda/operand_gradients/operand_gradients_time.hpp"
#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/patterns/attention_time.hpp"
#include "compiler/pipeline.hpp"
#include "golden/cudnn_lowering.hpp"
#include "problem/tensor_view.hpp"
#include "support/committed_file.hpp"

namespace scoremod {
namespace {

using backend::Direction;
using Json = nlohmann::ordered_json;
namespace cudnn = backend::cudnn;

/// The benchmark ran each case for so long that an H200's clock fell. The median of its cases takes this much longer
/// than in turns with others, as predictions are.
constexpr double kSteadyLoad = 1.1;

const std::filesystem::path kRoot = std::filesystem::path(SCOREMOD_TEST_SOURCE_DIR).parent_path();

Json read(const char* path) { return Json::parse(std::ifstream(kRoot / path)); }

AttentionProblem problem_of(const Json& entry, Direction direction) {
  AttentionProblem problem = parse_problem_file(entry.at("problem").dump()).problem;
  problem.stats = true;
  problem.backward = direction == Direction::kBackward;
  for (OperandSpec& operand : problem.operands) operand.gradient = entry.value("operand_gradients", true);
  return problem;
}

/// The planner's combination for a call: attention with the gradients that it can write itself, and a pass for the
/// other operands.
Json predicted(const AttentionProblem& problem, Direction direction, const backend::DeviceRates& rates) {
  const compiler::CompiledProblem compiled = compiler::compile(problem, {});
  const auto lowered = test::lowered_for_hopper(compiled, direction);
  EXPECT_TRUE(lowered.has_value());
  if (!lowered) return nullptr;
  cudnn::PlanTask task = direction;
  std::vector<std::uint32_t> operands;
  if (direction == Direction::kBackward) operands = problem::operands_with_gradient(problem);
  if (!operands.empty()) task.operand_gradient = cudnn::fused_gradient_operand(compiled);
  const auto time = cudnn::attention_time(problem, task, *lowered, rates, true);
  const bool pass = !operands.empty() && !task.operand_gradient;
  const double pass_ms = pass ? backend::cuda::operand_gradients_time(compiled, operands, rates) : 0;
  return {{"predicted_ms", kSteadyLoad * time.milliseconds + pass_ms},
          {"source", time.source + (pass ? ", and a pass for operands' gradients" : "")}};
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

TEST(Prediction, OfTheBenchmarksCasesIsAsCommitted) {
  const Json bench = read("bench/results/h200.json"), cases = read("bench/gpu_cases.json");
  std::stringstream device;
  device << std::ifstream(kRoot / "src/backend/cudnn/devices/h200.json").rdbuf();
  const backend::DeviceRates rates = backend::device_rates(device.str());
  Json rows = Json::array();
  std::vector<double> errors;
  for (const Json& result : bench.at("results")) {
    const auto entry = std::ranges::find_if(cases, [&](const Json& c) { return c.at("name") == result.at("case"); });
    ASSERT_NE(entry, cases.end()) << result.at("case");
    const Direction direction = result.at("direction") == "forward" ? Direction::kForward : Direction::kBackward;
    const Json prediction = predicted(problem_of(*entry, direction), direction, rates);
    const double ms = prediction.at("predicted_ms").get<double>(), measured = result.at("ms").get<double>();
    rows.push_back({{"case", result.at("case")},
                    {"direction", result.at("direction")},
                    {"predicted_ms", rounded(ms)},
                    {"measured_ms", rounded(measured)},
                    {"ratio", rounded(ms / measured)},
                    {"source", prediction.at("source")}});
    errors.push_back(std::max(ms / measured, measured / ms) - 1);
  }
  std::ranges::sort(errors);
  std::string text = "{\"measured\": \"bench/results/h200.json\", \"commit\": " + bench.at("commit").dump() +
                     ", \"median_error\": " + Json(rounded(errors[errors.size() / 2])).dump() +
                     ", \"worst_error\": " + Json(rounded(errors.back())).dump() + ",\n\"results\": [";
  for (const Json& row : rows) text += (&row == &rows.front() ? "\n" : ",\n") + row.dump();
  test::expect_committed(kRoot / "bench/results/prediction.json", text + "\n]}\n");
}

}  // namespace
}  // namespace scoremod
