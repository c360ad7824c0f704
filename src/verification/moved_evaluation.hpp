#pragma once

#include "backend/reference/naive_attention.hpp"
#include "verification/trial.hpp"

namespace scoremod::verification {

/// By how much a plan's operations may miss float32's own rounding: as its backend's function_error(),
/// product_error() and forward_rounding().
struct OperationErrors {
  double function = 0;
  double product = 0;
  backend::ForwardRounding forward = {};
};

/// The farthest that a plain evaluation may be from the oracle if scores and function results have their largest error,
/// of either sign. For each element it is the farthest of the plain evaluation, one moved up and one moved down. With
/// the dtype's own rounding this is slightly more than the plain evaluation's error. With float32's it is the cost of a
/// plan's own functions and products. A discontinuous program (a floor, an i32() of an f32, a comparison of scores)
/// adds the jumps of elements that rounding may put on either side. A weight below float32's normal numbers is 0 in
/// these, as GPUs' exponentials give it.
backend::reference::ForwardResult<float> farthest_forward(Trial& trial, const OperationErrors& errors);
/// The farthest backward, from the oracle's o and LSE. Gradients of weights and their rows' deltas are off by a
/// product's error, away from each other, or by `difference` if that is more.
backend::reference::BackwardResult<float> farthest_backward(Trial& trial, const OperationErrors& errors,
                                                            double difference = 0);

}  // namespace scoremod::verification
