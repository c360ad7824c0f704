#pragma once

#include <cstdint>

#include "scoremod/inputs.hpp"

#include "backend/backend.hpp"

namespace scoremod::verification {

/// The random inputs of a trial problem, as random_inputs() makes them. Block scales are powers of two, however.
ProblemInputs plain_inputs(const AttentionProblem& trial, std::uint64_t seed = 0);

/// These inputs with some rows changed into special cases of kernels and of float32, as far as the program lets inputs
/// make them:
///
/// - rows without a key and rows with a single key: an operand masks the rest, by its bools, its integers (lengths,
///   segment ids) or -inf;
/// - rows whose LSE is below -100, and above 100: by their scores, or else by an operand.
///
/// Most rows are unchanged. The effect of an operand is found by evaluating the program on sampled rows with values in
/// its place. A value that gives NaN anywhere, or numbers that float32 cannot hold exactly enough to be compared, is
/// not taken. d_o is made smaller in rows with far scores, as q is larger there: their gradients must not outweigh the
/// others.
ProblemInputs trial_inputs(const AttentionProblem& trial, const backend::CallParameters& parameters,
                           std::uint64_t seed = 0);

}  // namespace scoremod::verification
