#include "tools/cudnn/cell.hpp"

#include <array>
#include <map>

#include "scoremod/zoo.hpp"

#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/refusal.hpp"
#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/lowerings.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::acceptance {
namespace {

using backend::Direction;
namespace cudnn = backend::cudnn;

/// For parameters without a default.
zoo::Parameters parameters_of(const std::string& modifier) {
  using Int = std::int64_t;
  static const std::map<std::string, zoo::Parameters> kParameters{
      {"soft_cap", {{"cap", 50.0}}},
      {"relative_table", {{"max_distance", Int{128}}}},
      {"sliding_window", {{"window", Int{128}}}},
      {"causal_sliding_window", {{"window", Int{128}}}},
      {"prefix_lm", {{"prefix", Int{100}}}},
      {"dilated_window", {{"window", Int{32}}, {"dilation", Int{4}}}},
      {"neighborhood_2d", {{"width", Int{32}}, {"radius_x", Int{3}}, {"radius_y", Int{3}}}},
      {"global_window", {{"global_tokens", Int{16}}, {"window", Int{128}}}},
  };
  const auto found = kParameters.find(modifier);
  return found == kParameters.end() ? zoo::Parameters{} : found->second;
}

void add(std::string& reasons, const std::string& reason) {
  if (reasons.find(reason) == std::string::npos) reasons += concat(reasons.empty() ? "" : "; ", reason);
}

}  // namespace

const std::vector<std::string>& devices() {
  static const std::vector<std::string> kDevices{"a100", "l40s", "h200", "b200", "rtx5090"};
  return kDevices;
}

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const zoo::Entry& entry : zoo::entries()) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      for (const std::string& device : devices()) all.push_back({entry.name, direction, device});
    }
  }
  for (const std::string& device : devices()) all.push_back({"full_bias", Direction::kBackward, device, true});
  for (const char* modifier : {"causal", "soft_cap"}) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      for (const std::string& device : devices()) all.push_back({modifier, direction, device, false, 192, 128});
    }
  }
  return all;
}

std::string modifier_text(const Cell& cell) {
  if (cell.dim_qk == 128 && cell.dim_v == 128) return cell.modifier;
  return concat(cell.modifier, ", head dims ", cell.dim_qk, " and ", cell.dim_v);
}

std::string direction_text(const Cell& cell) {
  if (cell.operand_gradient) return "backward and operand gradient";
  return cell.direction == Direction::kForward ? "forward" : "backward";
}

AttentionProblem problem_of(const Cell& cell) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 512;
  problem.dim_qk = cell.dim_qk;
  problem.dim_v = cell.dim_v;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  const zoo::Sizes sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  const zoo::Combination made = zoo::combine(std::array{zoo::make(cell.modifier, parameters_of(cell.modifier), sizes)});
  problem.program = made.program;
  for (const zoo::OperandNeed& need : made.operands) {
    problem.operands.push_back({need.name, cell.operand_gradient ? problem.dtype : need.dtype, need.shape, {}});
  }
  return problem;
}

CellResult build_cell(const Cell& cell, const std::string& device_json, const std::string& patterns_version) {
  const auto device = backend::DeviceProperties::parse(device_json);
  const auto problem = compiler::compile(problem_of(cell), {});
  const auto table =
      cudnn::shipped_pattern_table(device.architecture(), patterns_version, cudnn::row_class(problem.problem));
  cudnn::PlanTask task = cell.direction;
  if (cell.operand_gradient) task.operand_gradient = cudnn::fused_gradient_operand(problem).value();
  const auto lowerings = cudnn::lowerings(problem, task, cudnn::right_patterns(table, cell.direction));
  CellResult result{"not_lowered", "", 0};
  for (const UnsupportedReason& objection :
       cudnn::problem_objections(problem.problem, cell.direction, device.compute_capability))
    add(result.reason, objection.text);
  if (!result.reason.empty()) return result;
  for (const cudnn::Lowering& lowering : lowerings.found) {
    const cudnn::BuildOutcome built = cudnn::build_plan(lowering.graph, device);
    if (built.status == cudnn::BuildStatus::kBuilt) return {"built", result.reason, built.plan->workspace_bytes()};
    result.verdict = built.status == cudnn::BuildStatus::kRefused ? "refused" : "failed";
    add(result.reason, cudnn::short_refusal(built.text));
  }
  for (const std::string& reason : lowerings.reasons) {
    if (lowerings.found.empty()) add(result.reason, reason);
  }
  return result;
}

}  // namespace scoremod::acceptance
