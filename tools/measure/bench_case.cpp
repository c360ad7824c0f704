#include "bench_case.hpp"

#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"
#include "scoremod/work.hpp"

#include "text_file.hpp"

namespace scoremod::measure {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

Json read_json(const std::string& path) {
  // The depth limit of a problem within an entry of the list. A deeper one would overflow the stack when it is printed
  // or freed.
  constexpr int kMaxDepth = 34;
  const std::string text = input::read_text(path, "a list of cases or a problem file");
  const auto limit_depth = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxDepth) {
      fail(path + ": expected JSON nested at most " + std::to_string(kMaxDepth) + " deep, found more");
    }
    return true;
  };
  try {
    return Json::parse(text, limit_depth);
  } catch (const Json::exception& error) {
    const std::string what = error.what();  // begins with the exception's name in brackets
    fail(path + ": expected JSON: " + what.substr(what.find(']') + 2));
  }
}

/// A part of a case as text for a message: a problem may be long.
std::string shortened(const Json& json) {
  constexpr std::size_t kLongest = 120;
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

void check_fields(const Json& entry, const std::string& where) {
  static const std::set<std::string> known{"name",         "problem",     "operand_gradients",
                                           "forward_only", "same_inputs", "reference"};
  if (!entry.is_object() || !entry.contains("name") || !entry.contains("problem")) {
    fail(where + ": expected an object with \"name\" and \"problem\", found " + shortened(entry));
  }
  for (const auto& [key, value] : entry.items()) {
    if (!known.contains(key)) {
      fail(where + "." + key +
           ": this field has no meaning; expected name, problem, operand_gradients, forward_only, same_inputs or "
           "reference");
    }
  }
  if (!entry["name"].is_string()) fail(where + ".name: expected a string, found " + shortened(entry["name"]));
  for (const char* const field : {"operand_gradients", "forward_only"}) {
    if (entry.contains(field) && !entry[field].is_boolean())
      fail(where + "." + field + ": expected true or false, found " + shortened(entry[field]));
  }
}

/// The operand of the problem that a field names.
const OperandSpec& operand(const AttentionProblem& problem, const std::string& name, const std::string& where) {
  for (const OperandSpec& spec : problem.operands) {
    if (spec.name == name) return spec;
  }
  fail(where + ": expected an operand of the problem, found '" + name + "'");
}

std::map<std::string, std::string> read_same_inputs(const Json& entry, const AttentionProblem& problem,
                                                    const std::string& where) {
  std::map<std::string, std::string> same;
  if (!entry.contains("same_inputs")) return same;
  const Json& json = entry["same_inputs"];
  if (!json.is_object()) fail(where + ": expected {operand: operand}, found " + shortened(json));
  for (const auto& [name, other] : json.items()) {
    if (!other.is_string()) fail(where + "." + name + ": expected an operand's name, found " + shortened(other));
    const OperandSpec& to = operand(problem, name, where);
    const OperandSpec& from = operand(problem, other.get<std::string>(), where);
    if (to.dtype != from.dtype || to.shape != from.shape || to.strides != from.strides) {
      fail(where + "." + name + ": expected an operand of the same dtype, shape and strides, found '" + from.name +
           "'");
    }
    same[name] = from.name;
  }
  return same;
}

BenchCase forward_case(const Json& entry, const std::string& where, const std::filesystem::path& folder) {
  check_fields(entry, where);
  BenchCase bench_case;
  bench_case.name = entry["name"].get<std::string>();
  bench_case.operand_gradients = entry.value("operand_gradients", true);
  if (entry.contains("reference")) bench_case.reference = entry["reference"].dump();
  ProblemFile file;
  try {
    file = parse_problem_file(entry["problem"].dump());
  } catch (const Error& error) {
    fail(where + ".problem: " + error.what());
  }
  bench_case.problem = std::move(file.problem);
  for (OperandSpec& operand : bench_case.problem.operands) {
    operand.gradient = operand.gradient && bench_case.operand_gradients;
  }
  bench_case.problem.stats = true;
  bench_case.problem.backward = false;
  bench_case.inputs = std::move(file.inputs);
  bench_case.folder = folder;
  bench_case.same_inputs = read_same_inputs(entry, bench_case.problem, where + ".same_inputs");
  bench_case.seed = file.seed;
  return bench_case;
}

void add(const Json& entry, const std::string& where, const std::filesystem::path& folder, bool with_backward,
         std::vector<BenchCase>& cases) {
  BenchCase bench_case = forward_case(entry, where, folder);
  cases.push_back(bench_case);
  if (!with_backward || entry.value("forward_only", false)) return;
  bench_case.direction = Direction::kBackward;
  bench_case.problem.backward = true;
  try {
    validate(bench_case.problem);
  } catch (const Error& error) {
    fail(where + ": it cannot be run backward: " + error.what());
  }
  cases.push_back(std::move(bench_case));
}

}  // namespace

const char* to_string(Direction direction) { return direction == Direction::kForward ? "forward" : "backward"; }

std::vector<BenchCase> load_cases(const std::string& path, bool with_backward) {
  const Json json = read_json(path);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::vector<BenchCase> cases;
  if (json.is_object()) {
    add({{"name", std::filesystem::path(path).stem().string()}, {"problem", json}}, path, folder, with_backward, cases);
    return cases;
  }
  if (!json.is_array()) fail(path + ": expected a list of cases or a problem file, found " + shortened(json));
  std::set<std::string> names;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string where = path + "[" + std::to_string(i) + "]";
    add(json[i], where, folder, with_backward, cases);
    if (!names.insert(cases.back().name).second) {
      fail(where + ".name: two cases are called '" + cases.back().name + "'; expected a name of its own for each");
    }
  }
  return cases;
}

double product_flops(const BenchCase& bench_case) {
  const WorkEstimate work = estimate_work(bench_case.problem);
  return bench_case.direction == Direction::kForward ? work.forward_flops : work.backward_flops;
}

}  // namespace scoremod::measure
