#pragma once

#include <cstdint>
#include <optional>

#include "scoremod/inputs.hpp"

#include "problem_source.hpp"

namespace scoremod::cli {

/// Everything that the problem reads, as the file's "inputs" say; the rest is random. `seed` overrides the file's.
/// Throws Error(kInvalidArgument) for a .npy file that is missing, damaged or of another dtype or shape, and
/// Error(kEnvironment) when the tensors exceed the machine's memory.
ProblemInputs load_inputs(const ProblemSource& source, std::optional<std::uint64_t> seed);

}  // namespace scoremod::cli
