#include <algorithm>
#include <iomanip>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scoremod/zoo.hpp"

#include "commands.hpp"
#include "exit_code.hpp"
#include "fail.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string name;
  std::vector<std::string> parameters;  ///< "NAME=VALUE"
  bool json = false;
};

/// The sizes for which a program is shown; only few modifiers depend on them.
constexpr zoo::Sizes kSizes{2, 8, 128, 128};

std::string text_of(const zoo::Value& value) {
  std::ostringstream out;
  std::visit([&](const auto& held) { out << std::boolalpha << held; }, value);
  return out.str();
}

Json json_of(const zoo::Value& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

/// A value for a parameter that has no default, so that its program can be shown.
zoo::Value example_of(const zoo::Parameter& parameter) {
  if (parameter.default_value) return *parameter.default_value;
  if (parameter.type == zoo::ParameterType::kFloat) return 30.0;
  if (parameter.type == zoo::ParameterType::kBool) return false;
  return std::int64_t{4};
}

/// An argument's value: a JSON number or truth value where it is one, otherwise a string.
zoo::Value parse_value(const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  return text;
}

const zoo::Entry& find_entry(const std::string& name) {
  // The library's message names an unknown name's fault, and a close one.
  if (zoo::find(name) == nullptr) zoo::make(name, {}, kSizes);
  return *zoo::find(name);
}

zoo::Parameters parse_parameters(const zoo::Entry& entry, const std::vector<std::string>& arguments) {
  zoo::Parameters parameters;
  for (const zoo::Parameter& parameter : entry.parameters) parameters[parameter.name] = example_of(parameter);
  for (const std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0) {
      input::fail(ErrorCode::kInvalidArgument, "expected a parameter as NAME=VALUE, found '", argument, "'");
    }
    // An unknown name is refused by the entry itself, which knows its parameters.
    parameters[argument.substr(0, equals)] = parse_value(argument.substr(equals + 1));
  }
  return parameters;
}

Json entry_json(const zoo::Entry& entry) {
  Json json{{"name", entry.name}, {"kind", to_string(entry.kind)}, {"summary", entry.summary}};
  json["parameters"] = Json::array();
  for (const zoo::Parameter& parameter : entry.parameters) {
    json["parameters"].push_back(
        {{"name", parameter.name},
         {"type", to_string(parameter.type)},
         {"default", parameter.default_value ? json_of(*parameter.default_value) : Json(nullptr)},
         {"meaning", parameter.meaning}});
  }
  json["operands"] = Json::array();
  for (const zoo::OperandRule& operand : entry.operands) {
    json["operands"].push_back({{"parameter", operand.parameter},
                                {"type", to_string(operand.type)},
                                {"shape", operand.shape},
                                {"meaning", operand.meaning}});
  }
  return json;
}

std::string list_text() {
  std::ostringstream out;
  for (const zoo::Kind kind : {zoo::Kind::kScoreMod, zoo::Kind::kMaskMod}) {
    out << to_string(kind) << "\n";
    for (const zoo::Entry& entry : zoo::entries()) {
      if (entry.kind == kind) out << "    " << std::left << std::setw(24) << entry.name << entry.summary << "\n";
    }
  }
  return out.str();
}

std::string list_json() {
  Json json = Json::array();
  for (const zoo::Entry& entry : zoo::entries()) json.push_back(entry_json(entry));
  return json.dump(2) + "\n";
}

/// An entry with its program for some parameters.
struct Shown {
  const zoo::Entry& entry;
  zoo::Parameters parameters;
  std::string program;
};

Shown show(const Arguments& arguments) {
  const zoo::Entry& entry = find_entry(arguments.name);
  const zoo::Parameters parameters = parse_parameters(entry, arguments.parameters);
  const std::vector<zoo::Modifier> modifiers{zoo::make(entry.name, parameters, kSizes)};
  return {entry, parameters, zoo::combine(modifiers).program.to_string()};
}

std::string entry_text(const Shown& shown) {
  std::ostringstream out;
  out << shown.entry.name << " (" << to_string(shown.entry.kind) << "): " << shown.entry.summary << "\n";
  if (!shown.entry.parameters.empty()) out << "parameters\n";
  for (const zoo::Parameter& parameter : shown.entry.parameters) {
    out << "    " << std::left << std::setw(16) << parameter.name << std::setw(7) << to_string(parameter.type)
        << (parameter.default_value ? "default " + text_of(*parameter.default_value) : "required") << "; "
        << parameter.meaning << "\n";
  }
  if (!shown.entry.operands.empty()) out << "operands\n";
  for (const zoo::OperandRule& operand : shown.entry.operands) {
    out << "    " << std::left << std::setw(16) << operand.parameter << std::setw(7) << to_string(operand.type)
        << operand.shape << "; " << operand.meaning << "\n";
  }
  std::string values;
  for (const auto& [name, value] : shown.parameters)
    values += (values.empty() ? "" : ", ") + name + " = " + text_of(value);
  out << "program" << (values.empty() ? "" : " for " + values) << "\n";
  std::istringstream lines(shown.program);
  for (std::string line; std::getline(lines, line);) out << "    " << line << "\n";
  return out.str();
}

std::string shown_json(const Shown& shown) {
  Json json = entry_json(shown.entry);
  json["shown_parameters"] = Json::object();
  for (const auto& [name, value] : shown.parameters) json["shown_parameters"][name] = json_of(value);
  json["program"] = shown.program;
  return json.dump(2) + "\n";
}

int run(const Arguments& arguments) {
  if (arguments.name.empty()) {
    write_output(arguments.json ? list_json() : list_text());
    return kFine;
  }
  const Shown shown = show(arguments);
  write_output(arguments.json ? shown_json(shown) : entry_text(shown));
  return kFine;
}

}  // namespace

void add_zoo(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("zoo", "List the ready-made modifiers, or show one with its program");
  command->add_option("NAME", arguments->name, "Modifier to show");
  command->add_option("PARAMETER=VALUE", arguments->parameters, "Parameters for which its program is shown");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

}  // namespace scoremod::cli
