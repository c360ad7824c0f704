#include "passes/normalize_mask.hpp"

namespace scoremod::passes {

Program normalize_mask(const Program& program) { return program; }

}  // namespace scoremod::passes
