#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "compiler/compiled_problem.hpp"

namespace scoremod::verification {

/// Whether two problems differ in sizes, shapes and the values of i32 constants alone: same nodes, i32 constants 0 and
/// 1 where the other's are and of the same sign elsewhere, masks of the same kind with bounds of the same sign.
bool same_structure(const compiler::CompiledProblem& x, const compiler::CompiledProblem& y);

/// The i32 constants of a user's program replaced; nothing where two would become one or one would change its sign, or
/// become 0 or 1.
std::optional<Program> with_constants(const Program& program,
                                      const std::function<std::int64_t(std::int64_t)>& replaced);

/// What the i32 constants of a program become so that all lie within three tiles of 128: magnitudes up to 128 stay, and
/// larger ones come closer together, in the same order, neighbours as they were. Magnitudes of 1024 and more are taken
/// for limits and sentinels beyond every length, and stay, as those do that `left_out` names.
std::function<std::int64_t(std::int64_t)> small_constants(const Program& program,
                                                          const std::function<bool(std::int64_t)>& left_out);

}  // namespace scoremod::verification
