#include "problem_source.hpp"

#include <cstdio>

#include "fail.hpp"
#include "text_file.hpp"

namespace scoremod::cli {
ProblemSource read_problem(const std::string& argument) {
  const bool standard_input = argument == "-";
  const std::string name = standard_input ? "standard input" : argument;
  const std::string text = standard_input ? input::read_text(stdin, name)
                                          : input::read_text(argument, "a problem file, or - for the standard input");
  ProblemSource source;
  if (!standard_input) source.folder = std::filesystem::path(argument).parent_path();
  try {
    source.file = parse_problem_file(text);
  } catch (const Error& error) {
    input::fail(error.code(), name, ": ", error.what());
  }
  return source;
}

}  // namespace scoremod::cli
