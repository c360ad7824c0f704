#pragma once

#include <string>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// The text form of a program (see parse.hpp); parse(print(p)) == p. Values used more than once, and expressions that
/// would nest too deep, get a 'let'.
std::string print(const Program& program);

/// The text of each node within print(program): its expression, or its name if it has a 'let'.
std::vector<std::string> print_nodes(const Program& program);

/// A constant as the text form writes it.
std::string print_constant(const Node& node);

}  // namespace scoremod::ir
