#include "bench_case.hpp"

#include <fstream>

#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"
#include "scoremod/problem_file.hpp"

namespace scoremod::bench {
namespace {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::kEnvironment, "the list of cases, " + path + ", cannot be read");
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument, path + " is not JSON: " + error.what());
  }
}

}  // namespace

const char* to_string(Direction direction) { return direction == Direction::kForward ? "forward" : "backward"; }

std::vector<BenchCase> load_cases(const std::string& path, bool with_backward) {
  std::vector<BenchCase> cases;
  for (const nlohmann::json& entry : read_json(path)) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("problem")) {
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": expected objects with \"name\" and \"problem\", found " + entry.dump());
    }
    BenchCase bench_case;
    bench_case.name = entry["name"].get<std::string>();
    bench_case.problem = parse_problem_file(entry["problem"].dump()).problem;
    bench_case.problem.stats = true;
    cases.push_back(bench_case);
    if (!with_backward) continue;
    bench_case.direction = Direction::kBackward;
    bench_case.problem.backward = true;
    cases.push_back(bench_case);
  }
  return cases;
}

double product_flops(const BenchCase& bench_case) {
  const AttentionProblem& p = bench_case.problem;
  const double scores = static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q * p.seq_kv);
  const auto qk = static_cast<double>(p.dim_qk), v = static_cast<double>(p.dim_v);
  return 2 * scores * (bench_case.direction == Direction::kForward ? qk + v : 3 * qk + 2 * v);
}

}  // namespace scoremod::bench
