#pragma once

#include "scoremod/program.hpp"

#include "problem/json_reader.hpp"

namespace scoremod::problem {

/// Reads a file's "program": text, a list of lines, or {"score_mod": [...], "mask_mod": [...]} of ready-made modifiers.
Program parse_program(const Json& value, const std::string& path);

}  // namespace scoremod::problem
