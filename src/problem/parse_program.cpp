#include "problem/parse_program.hpp"

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"
#include "base/nearest_name.hpp"

namespace scoremod::problem {
namespace {

/// Runs an action that may refuse the file's contents, and gives the refusal the field's path.
template <class Action>
auto located(const std::string& path, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    fail_argument(path, ": ", error.what());
  }
}

std::string text_of(const Json& value, const std::string& path) {
  if (value.is_string()) return as_string(value, path);
  std::string text;
  std::size_t number = 0;
  for (const Json& line : as_array(value, path, "the program's text, a list of its lines or an object")) {
    text += as_string(line, concat(path, "[", number++, "]")) + "\n";
  }
  return text;
}

zoo::Value parse_value(const Json& value, const std::string& path) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return as_integer(value, path);
  if (value.is_number()) return as_number(value, path);
  if (value.is_string()) return as_string(value, path);
  fail_argument(path, ": expected a number, a string, true or false, found ", describe(value));
}

const zoo::Entry& find_entry(const std::string& name, const std::string& path, zoo::Kind kind) {
  const zoo::Entry* entry = zoo::find(name);
  std::vector<std::string> known;
  for (const zoo::Entry& candidate : zoo::entries()) {
    if (candidate.kind == kind) known.push_back(candidate.name);
  }
  if (entry == nullptr) {
    fail_argument(path, ": expected a ready-made ", to_string(kind), " (", name_list(known), "), found ",
                  describe(Json(name)), suggestion(name, known));
  }
  if (entry->kind == kind) return *entry;
  fail_argument(path, ": expected a ", to_string(kind), ", found the ", to_string(entry->kind), " '", name,
                "'; move it to \"", to_string(entry->kind), "\"");
}

/// "causal", or {"name": "soft_cap", "cap": 50} with the entry's parameters beside its name.
zoo::Modifier parse_modifier(const Json& value, const std::string& path, zoo::Kind kind, const zoo::Sizes& sizes) {
  const bool bare = value.is_string();
  if (!bare && !(value.is_object() && value.contains("name"))) {
    fail_argument(path,
                  ": expected the name of a ready-made modifier, or an object with its name and parameters; found ",
                  describe(value));
  }
  const std::string name_path = bare ? path : path + ".name";
  const std::string& name = as_string(bare ? value : value["name"], name_path);
  const zoo::Entry& entry = find_entry(name, name_path, kind);
  zoo::Parameters parameters;
  if (!bare) {
    std::vector<std::string> known{"name"};
    for (const zoo::Parameter& parameter : entry.parameters) known.push_back(parameter.name);
    const Fields fields(value, path, known);
    for (const auto& [parameter, argument] : value.items()) {
      if (parameter != "name") parameters[parameter] = parse_value(argument, fields.path_of(parameter));
    }
  }
  return located(path, [&] { return zoo::make(name, parameters, sizes); });
}

ParsedProgram parse_modifiers(const Json& value, const std::string& path, const AttentionProblem& problem) {
  const Fields fields(value, path, {"score_mod", "mask_mod"});
  const zoo::Sizes sizes{problem.batch,
                         problem.heads_q,
                         problem.seq_q,
                         problem.seq_kv,
                         problem.lengths.q,
                         problem.lengths.kv,
                         problem.tokens_q.has_value(),
                         problem.tokens_kv.has_value()};
  std::vector<zoo::Modifier> modifiers;
  for (const zoo::Kind kind : {zoo::Kind::kScoreMod, zoo::Kind::kMaskMod}) {
    const std::string list_path = fields.path_of(to_string(kind));
    const Json* list = fields.find(to_string(kind));
    if (list == nullptr) continue;
    std::size_t number = 0;
    for (const Json& modifier : as_array(*list, list_path, "an array of ready-made modifiers")) {
      modifiers.push_back(parse_modifier(modifier, concat(list_path, "[", number++, "]"), kind, sizes));
    }
  }
  const zoo::Combination combination = located(path, [&] { return zoo::combine(modifiers); });
  ParsedProgram parsed{combination.program, {}};
  for (const zoo::OperandNeed& need : combination.operands) {
    parsed.operands.push_back({need.name, need.dtype, need.shape, {}});
  }
  return parsed;
}

}  // namespace

ParsedProgram parse_program(const Json& value, const std::string& path, const AttentionProblem& problem) {
  if (value.is_object()) return parse_modifiers(value, path, problem);
  const std::string text = text_of(value, path);
  return {located(path, [&] { return Program::parse(text); }), {}};
}

}  // namespace scoremod::problem
