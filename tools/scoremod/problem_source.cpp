#include "problem_source.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "fail.hpp"

namespace scoremod::cli {
namespace {

/// Larger than any problem that the library reads, so that an endless file ends.
constexpr std::size_t kMaxBytes = std::size_t{33} << 20;

std::string read_all(std::FILE* file, const std::string& name) {
  std::string text;
  char buffer[65536];
  while (text.size() < kMaxBytes) {
    const std::size_t count = std::fread(buffer, 1, sizeof(buffer), file);
    text.append(buffer, count);
    if (count < sizeof(buffer)) break;
  }
  if (std::ferror(file)) fail(ErrorCode::kInvalidArgument, name, ": cannot be read: ", std::strerror(errno));
  return text;
}

std::string read_file(const std::string& name) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name.c_str(), "rb"), std::fclose);
  if (file == nullptr) {
    fail(ErrorCode::kInvalidArgument, name, ": expected a problem file: ", std::strerror(errno),
         "; give the path of a .json file, or - for the standard input");
  }
  return read_all(file.get(), name);
}

}  // namespace

ProblemSource read_problem(const std::string& argument) {
  const bool standard_input = argument == "-";
  const std::string name = standard_input ? "standard input" : argument;
  const std::string text = standard_input ? read_all(stdin, name) : read_file(argument);
  ProblemSource source;
  if (!standard_input) source.folder = std::filesystem::path(argument).parent_path();
  try {
    source.file = parse_problem_file(text);
  } catch (const Error& error) {
    fail(error.code(), name, ": ", error.what());
  }
  return source;
}

}  // namespace scoremod::cli
