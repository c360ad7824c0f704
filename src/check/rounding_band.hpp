#pragma once

#include <vector>

#include "backend/reference/naive_attention.hpp"

namespace scoremod::checking {

/// How far rounding alone may move each element of each output, to first order. Dense, as the reference's results are.
///
/// With u = 2^-24 the unit roundoff of float32, w that of the dtype that it is said of (weights and
/// gradients of scores: bf16, where q, k and v are of eight bits), e the running error of a node of a
/// program (running_error.hpp), and u (S) short for the roundings of a sum in float32, the root of the sum over its
/// terms t and partial sums p of u^2 (t^2 + p^2) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition,
/// sections 3.3 and 4.2), a row's quantities move by
///
/// - score s: sigma = u |scale| sum_d |q_d k_d|
/// - value v(s): delta = e(v) + max |v(s +- sigma) - v(s)| + 2 u |v|, the last for the exponential's argument; |v -
/// LSE|
///   in place of |v| where that is taken from the row's maximum
/// - weight P: P (delta + 4 u + w) each; and together P times the row's epsilon, the root of the sum of (P delta)^2
///   - below float32's normal numbers, which rows come to whose sink outweighs all keys, 2^-125 more,
///   times the root of the number of scores, because such moves have one sign
/// - LSE: epsilon + 4 u (1 + |LSE|), which the weights of the backward share; where they come from the row's maximum
///   instead, |LSE| counts up to kMaxReadLse only
/// - where functions are approximations by f: what they miss has the same sign for like arguments, so epsilon has the
///   sum of P times the part of e(v) that they make, not the root of squares; and the LSE has f (1 + max(1, LSE - the
///   row's largest value)) for its own exponentials and logarithm
/// - the largest value: the furthest that a key's delta takes it, and 4 u (1 + |it|) as the LSE
/// - o: the weights' moves times |V|; u (o); epsilon |o|; w |o| for its store; of eight bits, all that times
///   'scale_o'. Its largest magnitude: the largest of these moves, without the store
/// - dP: u (dP). D: the weights' moves times |dP|; epsilon |D|; w |dO_d o_d| for each stored o_d, and |dO_d| u (o_d);
///   u (D)
/// - g = P (dP - D): for the key alone, P times the root of ((delta + 4 u) (dP - D))^2 plus dP's move squared; for the
///   row as a whole, P times D's move, and |g| times the LSE's
/// - d_score(s, g), and an operand's adjoint in the same way: e(d_score) + |d_score(s, move of g)|
///   + max |d_score(s +- sigma, g) - d_score(s, g)| + 2 u |d_score|, and for the score w |d_score|. e is that at
///   g + its moves: an adjoint is linear in g, and its roundings do not vanish where g does
/// - dq, dk, dv, an operand's gradient: their terms' moves; u (their sum); w times themselves for the store
///
/// A float32 sum whose terms' magnitudes add up to more than float32 holds moves without bound: whether it overflows
/// on the way depends on the order.
///
/// Moves of independent terms add in quadrature. A row's D and LSE are the same for all of its keys: what they move in
/// an element of a gradient is summed over the row's keys with its sign, and then added in quadrature. (An operand that
/// is added to whole rows has a gradient of 0, of which rounding leaves -D's move.)
///
/// What is discontinuous in the score (a floor, a comparison, a mask) shows as a large difference over +- sigma, so
/// that an element which rounding may put on either side widens the band of what it enters, and of nothing else. An
/// element whose move is not finite is too ill-conditioned to be compared.
struct RoundingBand {
  backend::reference::ForwardResult<double> forward;
  backend::reference::BackwardResult<double> backward;  ///< empty when the problem has none
};

/// What the band depends on in the backend that is held to it.
struct ErrorSources {
  double function_error = 0;       ///< as Backend::function_error()
  bool backward_reads_lse = true;  ///< as Backend::backward_reads_lse()
};

RoundingBand rounding_band(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& inputs,
                           const backend::CallParameters& parameters, const ErrorSources& sources = {},
                           const backend::reference::Progress& progress = {});

}  // namespace scoremod::checking
