#include "verification/moved_evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <future>

namespace scoremod::verification {
namespace {

namespace reference = backend::reference;

/// The error in float32 of a product, and of a function, which gives one of the two floats around its value.
constexpr double kProduct = 0x1p-24, kFunction = 2 * kProduct;
/// Below, a device may take a weight for 0.
constexpr double kSmallestNormal = 0x1p-126;

reference::Moves moves_of(const OperationErrors& errors, double side, double difference = 0) {
  const double product = std::max(kProduct, errors.product);
  return {side * product, side * std::max(kFunction, errors.function), side * std::max(product, difference),
          kSmallestNormal};
}

/// Keeps, for each element, the value that is farther from the truth. One that is not finite is skipped.
void take_farther(std::vector<float>& farthest, const std::vector<float>& other, const std::vector<double>& truth) {
  const auto distance = [&](float x, std::size_t i) { return std::abs(static_cast<double>(x) - truth[i]); };
  for (std::size_t i = 0; i < farthest.size(); ++i)
    if (std::isfinite(other[i]) && distance(other[i], i) > distance(farthest[i], i)) farthest[i] = other[i];
}

}  // namespace

reference::ForwardResult<float> farthest_forward(Trial& trial, const OperationErrors& errors) {
  const reference::ForwardResult<double>& truth = trial.forward_truth();
  reference::ForwardResult<float> farthest = trial.plain_forward();
  const auto moved = [&](double side) {
    reference::Moves moves = moves_of(errors, side);
    moves.score = side * std::max(std::abs(moves.score), errors.forward.scores);
    moves.forward = errors.forward;
    return trial.moved_forward(moves);
  };
  auto up = std::async(std::launch::async, [&] { return moved(1); });
  const auto down = moved(-1);
  for (const auto& other : {up.get(), down}) {
    take_farther(farthest.o, other.o, truth.o);
    take_farther(farthest.lse, other.lse, truth.lse);
    take_farther(farthest.max_logit, other.max_logit, truth.max_logit);
    take_farther(farthest.amax_o, other.amax_o, truth.amax_o);
  }
  return farthest;
}

reference::BackwardResult<float> farthest_backward(Trial& trial, const OperationErrors& errors, double difference) {
  const reference::BackwardResult<double>& truth = trial.backward_truth();
  reference::BackwardResult<float> farthest = trial.plain_backward();
  auto up = std::async(std::launch::async, [&] { return trial.moved_backward(moves_of(errors, 1, difference)); });
  auto down = std::async(std::launch::async, [&] { return trial.moved_backward(moves_of(errors, -1, difference)); });
  const auto as_given = trial.moved_backward({.smallest_weight = kSmallestNormal});
  for (const auto& other : {as_given, up.get(), down.get()}) {
    take_farther(farthest.dq, other.dq, truth.dq);
    take_farther(farthest.dk, other.dk, truth.dk);
    take_farther(farthest.dv, other.dv, truth.dv);
    take_farther(farthest.amax_dq, other.amax_dq, truth.amax_dq);
    take_farther(farthest.amax_dk, other.amax_dk, truth.amax_dk);
    take_farther(farthest.amax_dv, other.amax_dv, truth.amax_dv);
    for (std::size_t i = 0; i < farthest.d_operands.size(); ++i)
      take_farther(farthest.d_operands[i], other.d_operands[i], truth.d_operands[i]);
  }
  return farthest;
}

}  // namespace scoremod::verification
