#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "scoremod/error.hpp"

#include "commands.hpp"
#include "exit_code.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

constexpr const char* kFooter =
    "PROBLEM is a JSON file, described in docs/reference/problem.md (`python -m scoremod docs problem`), or - for the "
    "standard input.\n"
    "Exit codes: 0 fine, 1 check: an output is over its tolerance, cache verify: a file is damaged,\n"
    "2 a mistake in the command line or a file, 3 no backend supports the problem, 4 the machine (memory, files),\n"
    "5 a bug in scoremod.";

int complain(const std::string& message, int code) {
  if (!message.empty()) std::fprintf(stderr, "scoremod: %s\n", message.c_str());
  return code;
}

int run_action(const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    const bool is_mistake = error.code() == ErrorCode::kInvalidArgument;
    const std::string kind = is_mistake || *error.what() == '\0' ? "" : std::string(to_string(error.code())) + ": ";
    return complain(kind + error.what(), exit_code_of(error.code()));
  } catch (const std::bad_alloc&) {
    return complain("environment: the memory that the problem needs is not there; make the problem smaller",
                    kEnvironment);
  } catch (const std::system_error& error) {
    return complain(std::string("environment: the system refused a resource, such as one more thread: ") +
                        error.what() + "; raise its limit (ulimit -u, a container's limit of processes)",
                    kEnvironment);
  } catch (const std::exception& error) {
    return complain(std::string("bug: ") + error.what() + "; please report it", kBug);
  }
}

/// CLI11 says that a subcommand is missing where it does not know the one that it was given.
std::string words_of(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const auto known = command->get_subcommands([](const CLI::App*) { return true; });
  const std::vector<std::string> unknown = command->remaining();
  if (known.empty() || unknown.empty() || unknown.front().starts_with('-')) return error.what();
  std::string names;
  for (const CLI::App* each : known) names += (names.empty() ? "" : ", ") + each->get_name();
  return "expected one of " + names + "; found '" + unknown.front() + "'";
}

int main_of(int argc, char** argv) {
  prepare_standard_streams();
  CLI::App app("Fused attention with programmable scores.", "scoremod");
  app.set_version_flag("--version", "scoremod " SCOREMOD_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  Action action;
  add_explain(app, &action);
  add_run(app, &action);
  add_check(app, &action);
  add_bench(app, &action);
  add_zoo(app, &action);
  add_compile(app, &action);
  add_device(app, &action);
  add_cache(app, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    const bool version = request.get_name() == "CallForVersion";
    return run_action([&] {
      write_output(version ? "scoremod " SCOREMOD_VERSION "\n" : app.help());
      return kFine;
    });
  } catch (const CLI::ParseError& error) {
    return complain(words_of(error, app) + "; see scoremod --help", kMistake);
  }
  return run_action(action);
}

}  // namespace
}  // namespace scoremod::cli

int main(int argc, char** argv) { return scoremod::cli::main_of(argc, argv); }
