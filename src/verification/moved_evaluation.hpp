#pragma once

#include "backend/reference/naive_attention.hpp"
#include "verification/trial.hpp"

namespace scoremod::verification {

/// By how much a plan's operations may miss float32's own rounding: as its backend's function_error() and
/// product_error().
struct OperationErrors {
  double function = 0;
  double product = 0;
};

/// How far a plain evaluation may be from the oracle where all scores, and all that functions give, are off by as much
/// as they may be, to one side or the other: of each element the farthest of the plain evaluation, of one moved up and
/// of one moved down. By the dtype's own rounding that is a little more than the plain evaluation's. By float32's it is
/// what a plan's own functions and products cost; and where a program is not continuous (a floor, an i32() of an f32, a
/// comparison of scores), what it jumps by, of the elements that rounding may put on either side of a jump. A weight
/// below float32's normal numbers is 0 in these, as GPUs' exponentials give it.
backend::reference::ForwardResult<float> farthest_forward(Trial& trial, const OperationErrors& errors);
/// The same of a backward from the oracle's o and LSE. The gradients of weights and the deltas that they are less are
/// off by a product's error, away from each other, or by `difference` where that is more.
backend::reference::BackwardResult<float> farthest_backward(Trial& trial, const OperationErrors& errors,
                                                            double difference = 0);

}  // namespace scoremod::verification
