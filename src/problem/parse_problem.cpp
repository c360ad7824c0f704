#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "scoremod/problem_file.hpp"

#include "base/fail.hpp"
#include "problem/json_reader.hpp"
#include "problem/nearest_name.hpp"
#include "problem/parse_inputs.hpp"
#include "problem/parse_program.hpp"
#include "problem/tensor_view.hpp"
#include "problem/validate_sizes.hpp"

namespace scoremod {
namespace problem {
namespace {

const std::array<std::string, 5> kDTypes{"f32", "f16", "bf16", "i32", "bool"};
constexpr std::size_t kFloats = 3;  ///< of these, at the front

/// One of `known`, which are names of dtypes.
DType parse_dtype_field(const Json& value, const std::string& path, std::span<const std::string> known) {
  const std::string& name = as_string(value, path);
  if (std::ranges::find(known, name) != known.end()) return *parse_dtype(name);
  fail_argument(path, ": expected one of ", name_list(known), ", found ", describe(value), suggestion(name, known));
}

Layout parse_layout_field(const Json& value, const std::string& path) {
  const std::string& name = as_string(value, path);
  const auto layout = parse_layout(name);
  if (layout) return *layout;
  const std::array<std::string, 3> known{"BSHD", "SBHD", "BHSD"};
  fail_argument(path, ": expected one of ", name_list(known), ", found ", describe(value), suggestion(name, known));
}

Strides parse_strides(const Json& value, const std::string& path) {
  const Fields fields(value, path, {"batch", "head", "sequence", "dim"});
  const auto stride = [&](const char* name) {
    return as_integer(fields.require(name, "a stride in elements"), fields.path_of(name));
  };
  return {stride("batch"), stride("head"), stride("sequence"), stride("dim")};
}

TensorLayout parse_tensor_layout(const Json* value, const std::string& path, Layout fallback) {
  TensorLayout layout{fallback, std::nullopt};
  if (value == nullptr) return layout;
  if (value->is_string()) {
    layout.layout = parse_layout_field(*value, path);
    return layout;
  }
  const Fields fields(*value, path, {"layout", "strides"});
  if (const Json* name = fields.find("layout")) layout.layout = parse_layout_field(*name, fields.path_of("layout"));
  if (const Json* strides = fields.find("strides")) layout.strides = parse_strides(*strides, fields.path_of("strides"));
  return layout;
}

void parse_sizes(const Fields& file, AttentionProblem* problem) {
  const auto required = [&](const char* name) { return as_integer(file.require(name, "a size"), name); };
  const auto optional = [&](const char* name, std::int64_t fallback) {
    const Json* value = file.find(name);
    return value == nullptr ? fallback : as_integer(*value, name);
  };
  problem->batch = required("batch");
  problem->heads_q = required("heads_q");
  problem->heads_kv = optional("heads_kv", problem->heads_q);
  problem->seq_q = required("seq_q");
  problem->seq_kv = optional("seq_kv", problem->seq_q);
  problem->dim_qk = required("dim_qk");
  problem->dim_v = optional("dim_v", problem->dim_qk);
}

void parse_layouts(const Fields& file, AttentionProblem* problem) {
  Layout layout = Layout::kBSHD;
  if (const Json* value = file.find("layout")) layout = parse_layout_field(*value, "layout");
  problem->q = parse_tensor_layout(file.find("q"), "q", layout);
  problem->k = parse_tensor_layout(file.find("k"), "k", layout);
  problem->v = parse_tensor_layout(file.find("v"), "v", layout);
  problem->o = parse_tensor_layout(file.find("o"), "o", layout);
}

/// What is known of the program's operands before the file's list of operands is read.
std::vector<OperandSpec> default_specs(const AttentionProblem& problem, const std::vector<OperandSpec>& known) {
  std::vector<OperandSpec> specs;
  for (const OperandDecl& decl : problem.program.operands()) {
    const auto found = std::ranges::find(known, decl.name, &OperandSpec::name);
    specs.push_back(found == known.end() ? default_spec(problem, decl) : *found);
  }
  return specs;
}

OperandSpec parse_operand(const Json& value, const std::string& path, const std::vector<OperandSpec>& defaults) {
  const Fields fields(value, path, {"name", "dtype", "shape", "strides", "gradient"});
  OperandSpec spec;
  spec.name = as_string(fields.require("name", "the operand's name in the program"), fields.path_of("name"));
  const auto found = std::ranges::find(defaults, spec.name, &OperandSpec::name);
  if (found != defaults.end()) spec = *found;
  if (const Json* dtype = fields.find("dtype"))
    spec.dtype = parse_dtype_field(*dtype, fields.path_of("dtype"), kDTypes);
  if (const Json* shape = fields.find("shape")) spec.shape = as_integers(*shape, fields.path_of("shape"));
  if (const Json* strides = fields.find("strides")) spec.strides = as_integers(*strides, fields.path_of("strides"));
  if (const Json* gradient = fields.find("gradient")) spec.gradient = as_bool(*gradient, fields.path_of("gradient"));
  return spec;
}

/// The operands of the file, then those of the program that it leaves out because nothing about them is left to say.
std::vector<OperandSpec> parse_operands(const Json* value, const AttentionProblem& problem,
                                        const std::vector<OperandSpec>& known) {
  const std::vector<OperandSpec> defaults = default_specs(problem, known);
  std::vector<OperandSpec> specs;
  if (value != nullptr) {
    for (const Json& entry : as_array(*value, "operands", "an array of operands")) {
      specs.push_back(parse_operand(entry, concat("operands[", specs.size(), "]"), defaults));
    }
  }
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    if (std::ranges::find(specs, defaults[i].name, &OperandSpec::name) != specs.end()) continue;
    const OperandDecl& decl = problem.program.operands()[i];
    if (decl.is_table() && defaults[i].shape.empty()) {
      fail_argument("operands: expected the shape of table '", decl.name,
                    "', which only the file can say; add {\"name\": \"", decl.name, "\", \"shape\": [...]} with ",
                    decl.table_rank, " sizes");
    }
    specs.push_back(defaults[i]);
  }
  return specs;
}

bool parse_flag(const Fields& file, const char* name) {
  const Json* value = file.find(name);
  return value != nullptr && as_bool(*value, name);
}

AttentionProblem parse_fields(const Fields& file) {
  AttentionProblem problem;
  parse_sizes(file, &problem);
  validate_sizes(problem);
  if (const Json* dtype = file.find("dtype"))
    problem.dtype = parse_dtype_field(*dtype, "dtype", std::span(kDTypes).first(kFloats));
  parse_layouts(file, &problem);
  if (const Json* scale = file.find("scale")) problem.scale = as_float(*scale, "scale");
  ParsedProgram parsed;
  if (const Json* program = file.find("program")) parsed = parse_program(*program, "program", problem);
  problem.program = parsed.program;
  problem.operands = parse_operands(file.find("operands"), problem, parsed.operands);
  problem.backward = parse_flag(file, "backward");
  problem.stats = parse_flag(file, "stats");
  problem.index_offsets = parse_flag(file, "index_offsets");
  problem.deterministic = parse_flag(file, "deterministic");
  return problem;
}

const std::vector<std::string>& file_fields() {
  static const std::vector<std::string> kFields{"$schema",
                                                "description",
                                                "batch",
                                                "heads_q",
                                                "heads_kv",
                                                "seq_q",
                                                "seq_kv",
                                                "dim_qk",
                                                "dim_v",
                                                "dtype",
                                                "layout",
                                                "q",
                                                "k",
                                                "v",
                                                "o",
                                                "scale",
                                                "program",
                                                "operands",
                                                "backward",
                                                "stats",
                                                "index_offsets",
                                                "deterministic",
                                                "inputs",
                                                "seed"};
  return kFields;
}

/// What a file may say for its readers alone.
void parse_remarks(const Fields& file) {
  if (const Json* schema = file.find("$schema")) as_string(*schema, "$schema");
  if (const Json* description = file.find("description")) as_string(*description, "description");
}

std::uint64_t parse_seed(const Json& value) {
  const std::int64_t seed = as_integer(value, "seed");
  if (seed < 0) fail_argument("seed: expected an integer of at least 0, found ", seed);
  return static_cast<std::uint64_t>(seed);
}

}  // namespace
}  // namespace problem

ProblemFile parse_problem_file(std::string_view json) {
  const problem::Json root = problem::read_json(json);
  const problem::Fields file(root, "", problem::file_fields());
  problem::parse_remarks(file);
  ProblemFile parsed;
  parsed.problem = problem::parse_fields(file);
  const problem::Json* inputs = file.find("inputs");
  if (const problem::Json* seed = file.find("seed")) parsed.seed = problem::parse_seed(*seed);
  validate(parsed.problem);
  if (inputs != nullptr) parsed.inputs = problem::parse_inputs(*inputs, parsed.problem);
  return parsed;
}

AttentionProblem parse_problem(std::string_view json) { return parse_problem_file(json).problem; }

}  // namespace scoremod
