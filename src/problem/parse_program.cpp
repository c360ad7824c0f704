#include "problem/parse_program.hpp"

#include "base/fail.hpp"

namespace scoremod::problem {
namespace {

std::string text_of(const Json& value, const std::string& path) {
  if (value.is_string()) return as_string(value, path);
  std::string text;
  std::size_t number = 0;
  for (const Json& line : as_array(value, path, "the program's text, a list of its lines or an object")) {
    text += as_string(line, concat(path, "[", number++, "]")) + "\n";
  }
  return text;
}

}  // namespace

Program parse_program(const Json& value, const std::string& path) {
  const std::string text = text_of(value, path);
  try {
    return Program::parse(text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    fail_argument(path, ": ", error.what());
  }
}

}  // namespace scoremod::problem
