#include <iomanip>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scoremod/compile_ahead.hpp"

#include "commands.hpp"
#include "device_file.hpp"
#include "exit_code.hpp"
#include "problem_source.hpp"
#include "selection_options.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string device;
  std::vector<std::string> problems;
  std::string directory;
  CompileOptions options;
  bool json = false;
};

Json to_json(const std::string& problem, const AheadResult& result) {
  return {{"problem", problem},
          {"direction", result.direction},
          {"backend", result.backend},
          {"trial", result.trial},
          {"stored", result.stored},
          {"label", result.label},
          {"plan_bytes", result.plan_bytes},
          {"workspace_bytes", result.workspace_bytes},
          {"build_ms", result.milliseconds},
          {"reasons", result.reasons},
          {"notes", result.notes}};
}

std::string to_text(const std::string& problem, const AheadResult& result) {
  std::ostringstream out;
  out << problem << ": " << result.direction << (result.trial ? ", trial: " : ": ");
  if (result.stored) {
    out << result.plan_bytes << " bytes in " << std::fixed << std::setprecision(0) << result.milliseconds
        << " ms, workspace " << result.workspace_bytes << " bytes\n";
  } else {
    out << "no plan\n";
  }
  for (const std::string& reason : result.reasons)
    out << "  " << (result.stored ? "passed over: " : "") << reason << "\n";
  for (const std::string& note : result.notes) out << "  " << note << "\n";
  return out.str();
}

int run(const Arguments& arguments) {
  const std::string device = read_device(arguments.device);
  Json rows = Json::array();
  bool all_stored = true;
  for (const std::string& name : arguments.problems) {
    for (const AheadResult& result :
         compile_ahead(read_problem(name).file.problem, device, arguments.directory, arguments.options)) {
      all_stored = all_stored && result.stored;
      if (arguments.json) {
        rows.push_back(to_json(name, result));
      } else {
        write_output(to_text(name, result));
      }
    }
  }
  if (arguments.json) write_output(rows.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return all_stored ? kFine : kUnsupported;
}

}  // namespace

void add_compile(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("compile", "Build plans ahead of time for a device, on any machine, into a plan store");
  command->add_option("PROBLEM", arguments->problems, "JSON files, or - for the standard input")->required();
  command->add_option("--device", arguments->device, "File that `scoremod device` wrote on a machine with the device")
      ->required();
  command->add_option("-o,--output", arguments->directory, "Folder of the plan store, as SCOREMOD_CACHE_DIR names it")
      ->required();
  input::add_selection(*command, arguments->options, " to build for");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

void add_device(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand("device", "Print the current CUDA device's properties, for compile --device");
  command->callback([=] {
    *action = [] {
      write_output(device_properties() + "\n");
      return int{kFine};
    };
  });
}

}  // namespace scoremod::cli
