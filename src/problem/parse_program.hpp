#pragma once

#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "problem/json_reader.hpp"

namespace scoremod::problem {

/// A program, and the operands whose shapes are known with it.
struct ParsedProgram {
  Program program;
  std::vector<OperandSpec> operands;
};

/// Reads a file's "program": text, a list of its lines, or {"score_mod": [...], "mask_mod": [...]} of ready-made
/// modifiers (scoremod/zoo.hpp) for the sizes of `problem`, which are valid.
ParsedProgram parse_program(const Json& value, const std::string& path, const AttentionProblem& problem);

}  // namespace scoremod::problem
