#pragma once

#include <filesystem>
#include <string>

#include "scoremod/problem_file.hpp"

namespace scoremod::cli {

/// A PROBLEM argument, read.
struct ProblemSource {
  ProblemFile file;
  std::filesystem::path folder;  ///< the folder that the file's paths are relative to
};

/// Reads a problem file, or the standard input for "-", whose paths are relative to the current folder.
/// Throws Error(kInvalidArgument) that begins with the file's name.
ProblemSource read_problem(const std::string& argument);

}  // namespace scoremod::cli
