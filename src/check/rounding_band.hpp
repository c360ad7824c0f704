#pragma once

#include <vector>

#include "backend/forward_rounding.hpp"
#include "backend/reference/naive_attention.hpp"

namespace scoremod::checking {

/// How far rounding alone may move each element of each output, to first order. Dense, as the reference's results are.
///
/// u = 2^-24 is the unit roundoff of float32. w is that of the dtype in question; weights and gradients of scores are
/// bf16 if q, k and v are FP8. e is the running error of a node of a program (running_error.hpp). u (S) stands for the
/// roundings of a float32 sum: u times the root of the sum of t^2 + p^2 over its terms t and partial sums p. See
/// Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 3.3 and 4.2. A row's quantities move
/// by
///
/// - score s: sigma = u |scale| sum_d |q_d k_d|
/// - value v(s): delta = e(v) + max |v(s +- sigma) - v(s)| + 2 u |v|, the last for the exponential's argument. If the
///   value is taken from the row's maximum, |v - LSE| replaces |v|
/// - weight P: P (delta + 4 u + w) each; and together P times the row's epsilon, the root of the sum of (P delta)^2
/// - below float32's normal numbers, as in rows whose sink outweighs all keys: 2^-125 more, times the root of the
///   number of scores, because such moves have one sign
/// - LSE: epsilon + 4 u (1 + |LSE|), which the weights of the backward share. If they come from the row's maximum
///   instead, |LSE| counts up to kMaxReadLse only. With a sink alone it is 4 u (1 + |sink|): some backends have it in
///   units of log 2 on the way
/// - approximate functions with an error of f: it has the same sign for similar arguments. So epsilon has the sum of P
///   times their part of e(v), not the root of squares. The LSE has f (1 + max(1, LSE - the row's largest value)) for
///   its own exponentials and logarithm
/// - the largest value: the furthest that a key's delta takes it, and 4 u (1 + |it|) as the LSE
/// - o: the weights' moves times |V|; u (o); epsilon |o|; w |o| for its store; for FP8, all that times 'scale_o'. Its
///   largest magnitude: the largest of these moves, without the store
/// - dP: u (dP). D: the weights' moves times |dP|; epsilon |D|; w |dO_d o_d| for each stored o_d, and |dO_d| u (o_d);
///   u (D)
/// - g = P (dP - D): for the key alone, P times the root of ((delta + 4 u) (dP - D))^2 plus dP's move squared. For the
///   row as a whole, P times D's move, and |g| times the LSE's
/// - d_score(s, g), and an operand's adjoint in the same way: e(d_score) + |d_score(s, move of g)| + max |d_score(s +-
///   sigma, g) - d_score(s, g)| + 2 u |d_score|, and for the score w |d_score|. e is taken at g + its moves: an adjoint
///   is linear in g, but its roundings do not vanish where g does
/// - dq, dk, dv, an operand's gradient: their terms' moves; u (their sum); w times themselves for the store
///
/// A backend whose forward rounds more coarsely (ForwardRounding) has another sigma, and other weights' moves in o
/// alone: at least the lost part of the row's largest weight. What smaller weights add to o may be lost as a whole.
///
/// A float32 sum moves without bound if its terms' magnitudes add up to more than float32 holds. Whether it overflows
/// on the way depends on the order.
///
/// Moves of independent terms add in quadrature. A row's D and LSE are the same for all of its keys. Their moves in an
/// element of a gradient are summed over the row's keys with signs, and then added in quadrature. (An operand that is
/// added to whole rows has a gradient of 0; rounding leaves -D's move.)
///
/// Discontinuities in the score (a floor, a comparison, a mask) show as a large difference over +- sigma. So an element
/// that rounding may put on either side widens the band of its own outputs only. An element whose move is not finite is
/// too ill-conditioned to be compared.
struct RoundingBand {
  backend::reference::ForwardResult<double> forward;
  backend::reference::BackwardResult<double> backward;  ///< empty when the problem has none
};

/// The properties of the checked backend that the band depends on.
struct ErrorSources {
  double function_error = 0;              ///< as Backend::function_error()
  bool backward_reads_lse = true;         ///< as Backend::backward_reads_lse()
  backend::ForwardRounding forward = {};  ///< as Backend::forward_rounding()
};

RoundingBand rounding_band(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& inputs,
                           const backend::CallParameters& parameters, const ErrorSources& sources = {},
                           const backend::reference::Progress& progress = {});

}  // namespace scoremod::checking
