#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "compiler/compiled_problem.hpp"

namespace scoremod::verification {

/// Whether two problems differ in sizes, shapes and the values of i32 constants alone. They have the same nodes; i32
/// constants 0 and 1 are equal and others have equal signs. Masks are of one kind with bounds of equal signs.
bool same_structure(const compiler::CompiledProblem& x, const compiler::CompiledProblem& y);

/// The i32 constants of a user's program replaced; nothing where two would become one or one would change its sign, or
/// become 0 or 1.
std::optional<Program> with_constants(const Program& program,
                                      const std::function<std::int64_t(std::int64_t)>& replaced);

/// Replaces the i32 constants of a program so that all lie within three tiles of 128. Magnitudes up to 128 stay; larger
/// ones come closer together, in their order, and neighbours stay neighbours. Magnitudes of 1024 and more are taken for
/// limits and sentinels beyond every length, and stay, as do those in `left_out`.
std::function<std::int64_t(std::int64_t)> small_constants(const Program& program,
                                                          const std::function<bool(std::int64_t)>& left_out);

}  // namespace scoremod::verification
