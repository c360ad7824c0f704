#pragma once

#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"

#include "support/dense_attention.hpp"

namespace scoremod::test {

/// With both directions; sizes that are all different, and dense in the order that the dense formula has.
AttentionProblem formula_problem();

/// The dense formula's results for these inputs.
DenseResult formula_result(const AttentionProblem& problem, const ProblemInputs& inputs, const DenseModifier& modifier);

/// Holds f32 outputs to the formula's: within the one rounding of their store, and float64's own in another order.
void expect_formula(const ProblemBuffers& found, const DenseResult& expected);

}  // namespace scoremod::test
