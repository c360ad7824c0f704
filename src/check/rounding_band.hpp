#pragma once

#include <vector>

#include "backend/reference/naive_attention.hpp"

namespace scoremod::checking {

/// How far rounding alone may move each element of each output, to first order. Dense, as the reference's results are.
///
/// With u = 2^-24 the unit roundoff of float32, w that of the problem's dtype, and a = 4 u for the float32 arithmetic
/// of a term (its exponential, its products and its share of the sums around it), a row's quantities move by
///
/// - score s: sigma = u |scale| sum_d |q_d k_d|
/// - value v(s): delta = max |v(s +- sigma) - v(s)| + a |v|
/// - weight P: P (delta + a + w) each, and together P times the row's delta, the root of the sum of (P delta)^2
/// - o: the weights' moves times |V|; w |o| for its store
/// - dP - D: a |dP|, u for each product, and the moves of o times |dO|
/// - d_score(s, g): |d_score(s, move of g)| + max |d_score(s +- sigma, g) - d_score(s, g)| + (a + w) |d_score|
/// - dq, dk, dv: their terms' moves; w times themselves for the store
///
/// and an operand's gradient as d_score does. Moves of independent terms add in quadrature. What is discontinuous in
/// the score (a floor, a comparison, a mask) shows as a large difference over +- sigma, so that an element which
/// rounding may put on either side widens the band of what it enters, and of nothing else. An element whose move is not
/// finite is too ill-conditioned to be compared.
struct RoundingBand {
  backend::reference::ForwardResult<double> forward;
  backend::reference::BackwardResult<double> backward;  ///< empty when the problem has none
};

RoundingBand rounding_band(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& inputs,
                           const backend::CallParameters& parameters,
                           const backend::reference::Progress& progress = {});

/// Half the distance from 1 to the next number of a float dtype: 2^-24, 2^-11 or 2^-8.
double unit_roundoff(DType dtype);

}  // namespace scoremod::checking
