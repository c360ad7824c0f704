#pragma once

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// Checks every invariant of a program: argument order and types, operand numbers, the roots' order and types,
/// kUpstream only in derivatives. Throws Error(kBug), because the builder refuses the caller's mistakes before.
void verify(const Program& program);

/// True when the program has adjoint roots.
bool is_derivative(const Program& program);

}  // namespace scoremod::ir
