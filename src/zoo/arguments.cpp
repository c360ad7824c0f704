#include "zoo/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/fail.hpp"
#include "ir/lexer.hpp"
#include "ir/op_table.hpp"

namespace scoremod::zoo {
namespace {

std::string describe(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "the bool true" : "the bool false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return concat("the int ", *integer);
  if (const auto* number = std::get_if<double>(&value)) return concat("the float ", *number);
  return concat("the string '", std::get<std::string>(value), "'");
}

bool fits(ParameterType type, const Value& value) {
  switch (type) {
    case ParameterType::kInt: return std::holds_alternative<std::int64_t>(value);
    case ParameterType::kFloat:
      return std::holds_alternative<double>(value) || std::holds_alternative<std::int64_t>(value);
    case ParameterType::kBool: return std::holds_alternative<bool>(value);
    case ParameterType::kName:
    case ParameterType::kAxes: return std::holds_alternative<std::string>(value);
  }
  return false;
}

std::string names_of(const Entry& entry) {
  std::string names;
  for (const Parameter& parameter : entry.parameters) names += concat(names.empty() ? "" : ", ", parameter.name);
  return names.empty() ? "none" : names;
}

void check(const Entry& entry, const Parameter& parameter, const Value& value) {
  if (!fits(parameter.type, value)) {
    fail_argument(entry.name, ": parameter '", parameter.name, "' must be of type ", to_string(parameter.type),
                  ", found ", describe(value));
  }
  const auto* text = std::get_if<std::string>(&value);
  if (parameter.type == ParameterType::kName && (!ir::is_identifier(*text) || ir::is_reserved(*text))) {
    fail_argument(entry.name, ": parameter '", parameter.name,
                  "' must be an operand's name (letters, digits and '_', no ",
                  "digit first, no word of the program language), found '", *text, "'");
  }
}

const Parameter* find_parameter(const Entry& entry, std::string_view name) {
  for (const Parameter& parameter : entry.parameters) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

}  // namespace

Arguments::Arguments(const Entry& entry, const Parameters& parameters) : entry_(entry.name) {
  for (const auto& [name, value] : parameters) {
    const Parameter* parameter = find_parameter(entry, name);
    if (parameter == nullptr) {
      fail_argument(entry.name, ": there is no parameter '", name, "'; there are: ", names_of(entry));
    }
    check(entry, *parameter, value);
    values_.emplace(name, value);
  }
  for (const Parameter& parameter : entry.parameters) {
    if (values_.contains(parameter.name)) continue;
    if (!parameter.default_value) {
      fail_argument(entry.name, ": parameter '", parameter.name, "' is missing: ", parameter.meaning);
    }
    values_.emplace(parameter.name, *parameter.default_value);
  }
}

const Value& Arguments::value(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) fail_bug("zoo entry '", entry_, "' declares no parameter '", name, "'");
  return found->second;
}

int Arguments::integer(std::string_view name) const {
  const std::int64_t found = std::get<std::int64_t>(value(name));
  if (!std::in_range<int>(found)) {
    fail_argument(entry_, ": parameter '", name, "' must be within int32, found ", found);
  }
  return static_cast<int>(found);
}

float Arguments::number(std::string_view name) const {
  const Value& found = value(name);
  const auto* integer = std::get_if<std::int64_t>(&found);
  const double number = integer != nullptr ? static_cast<double>(*integer) : std::get<double>(found);
  if (!(std::abs(number) <= std::numeric_limits<float>::max())) {
    fail_argument(entry_, ": parameter '", name, "' must be finite and within float32, found ", number);
  }
  return static_cast<float>(number);
}

bool Arguments::flag(std::string_view name) const { return std::get<bool>(value(name)); }

const std::string& Arguments::text(std::string_view name) const { return std::get<std::string>(value(name)); }

std::vector<Axis> Arguments::axes(std::string_view name) const {
  constexpr std::string_view kSeparators = ", \t";
  const std::string_view all = text(name);
  std::vector<Axis> axes;
  for (std::size_t at = all.find_first_not_of(kSeparators); at != std::string_view::npos;) {
    const std::size_t end = std::min(all.find_first_of(kSeparators, at), all.size());
    const std::string_view word = all.substr(at, end - at);
    const auto axis = ir::find_axis(word);
    if (!axis || (!axes.empty() && *axis <= axes.back())) {
      fail_argument(entry_, ": parameter '", name,
                    "' must list axes among b, h, q_idx, kv_idx in that order, each at most ", "once, found '", all,
                    "'");
    }
    axes.push_back(*axis);
    at = all.find_first_not_of(kSeparators, end);
  }
  return axes;
}

}  // namespace scoremod::zoo
