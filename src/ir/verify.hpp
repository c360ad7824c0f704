#pragma once

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// Checks every invariant of a program: argument order and types, operand numbers, the roots' order and types,
/// kUpstream only in derivatives. Throws Error(kInvalidArgument) for the choices of finish()'s caller: the roots, and
/// the reads of kUpstream. The builder refuses all other mistakes before, so those throw Error(kBug).
void verify(const Program& program);

/// True when the program has adjoint roots.
bool is_derivative(const Program& program);

}  // namespace scoremod::ir
