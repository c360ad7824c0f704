#pragma once

#include "scoremod/program.hpp"

namespace scoremod::autodiff {

/// Derives the backward program of a user's program (roots value and, perhaps, keep) by reverse accumulation.
///
/// The result has these roots:
/// - value, keep: as in the program, node for node, so that a backend evaluates forward and backward together
/// - d_score: d loss / d score, given kUpstream = d loss / d value; the constant 0 if the value does not depend on it
/// - accumulate: one for each read of an f32 operand on which the value depends smoothly, in ascending order of
///   operands. It is the read's contribution to d loss / d operand (for a table, at the read's indices). Equal reads
///   are one node, hence one root. An operand without a root has gradient zero
///
/// The adjoints hold for elements that are kept. For the others (keep false, or value -inf) they may be anything, NaN
/// included, and the caller takes zero in their place.
///
/// Everything is plain arithmetic on forward values (1 - t * t for tanh). At points without a derivative the result is
/// jax.grad's: relu'(0) = 0, abs'(0) = 0, half to each argument where min or max ties. The derivative of floor, ceil,
/// round, sign, comparisons and casts from i32 or bool is zero. See rules.cpp for each op.
///
/// `select` routes its adjoint: the branch that is not chosen gets exactly zero, even if its derivative is infinite or
/// NaN there. So select(score > 0.0, log(score), 0.0) has derivative 0 at 0 (where jax.grad gives NaN).
///
/// Throws Error(kInvalidArgument) when the program is a derivative itself, or when the result has too many nodes.
Program differentiate(const Program& program);

}  // namespace scoremod::autodiff
