#include <memory>
#include <string>

#include "scoremod/explain.hpp"

#include "commands.hpp"
#include "device_file.hpp"
#include "exit_code.hpp"
#include "integer_range.hpp"
#include "problem_source.hpp"
#include "selection_options.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

struct Arguments {
  std::string problem;
  ExplainOptions options;
  std::string device;
  bool json = false;
};

int run(const Arguments& arguments) {
  ExplainOptions options = arguments.options;
  if (!arguments.device.empty()) options.device_properties = read_device(arguments.device);
  const Explanation explanation = explain(read_problem(arguments.problem).file.problem, options);
  write_output(arguments.json ? to_json(explanation) : to_text(explanation));
  return kFine;
}

}  // namespace

void add_explain(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("explain", "Say what scoremod makes of a problem, and why, without running it");
  CompileOptions& compile = arguments->options.compile;
  command->add_option("PROBLEM", arguments->problem, "JSON file, or - for the standard input")->required();
  input::add_selection(*command, compile, " to choose");
  command->add_option(
      "--device", arguments->device,
      "Explain the candidates for the device of this file, which `scoremod device` wrote; the current one if "
      "left out");
  input::add_threads(*command, compile.threads);
  command->add_option("--disable", compile.disabled_passes, "Compiler step to leave out; may be repeated");
  command->add_flag("--steps", arguments->options.step_programs, "Show the program after each compiler step");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

}  // namespace scoremod::cli
