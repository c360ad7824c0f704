#pragma once

#include "scoremod/program.hpp"

namespace scoremod::passes {

bool has_surrogates(const Program& program);

/// The program with each surrogate(x, y) replaced by x, once derivatives are made.
Program drop_surrogates(const Program& program);

}  // namespace scoremod::passes
