#pragma once

#include <string>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// The text form of a program (see parse.hpp); parse(print(p)) == p. Values used more than once, and expressions that
/// would nest too deep, get a 'let'.
std::string print(const Program& program);

/// A constant as the text form writes it.
std::string print_constant(const Node& node);

}  // namespace scoremod::ir
