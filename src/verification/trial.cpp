#include "verification/trial.hpp"

#include <algorithm>
#include <limits>

#include "scoremod/error.hpp"

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/fast_oracle.hpp"
#include "base/element.hpp"
#include "base/timeline.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::verification {
namespace {

namespace reference = backend::reference;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The inputs as the reference's functions take them.
class HostTensors {
 public:
  explicit HostTensors(const ProblemInputs& inputs) {
    for (const OwnedOperand& operand : inputs.operands) operands_.push_back(operand.bytes.data());
    tensors_ = {inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(), operands_};
  }
  const reference::InputTensors& tensors() const { return tensors_; }

  /// A result's o and LSE, as they are in memory; true where a backward takes them from there.
  bool give(const AttentionProblem& problem, const reference::ForwardResult<double>& result) {
    // FP8 outputs are read in units that a problem with given deltas does not have.
    if (problem::has_float8_keys(problem)) return false;
    o_.resize(problem::bytes_of(problem, problem::TensorRole::kO));
    lse_.resize(problem::lse_tensor(problem).bytes());
    reference::store_dense(problem, problem::TensorRole::kO, result.o, o_.data(), operands_);
    reference::store_dense(problem, problem::TensorRole::kLse, result.lse, lse_.data(), operands_);
    tensors_.o = o_.data();
    tensors_.lse = reinterpret_cast<const float*>(lse_.data());
    return true;
  }

 private:
  std::vector<std::byte> o_, lse_;
  std::vector<const void*> operands_;
  reference::InputTensors tensors_;
};

}  // namespace

void Trial::begin(backend::Direction direction) {
  const bool backward = direction == backend::Direction::kBackward;
  const std::scoped_lock lock(begun_mutex_);
  const auto start = [this](auto make) {
    // The future rethrows its exception when the result is asked for.
    begun_.push_back(std::async(std::launch::async, [make] { make(); }));
  };
  start([this] { (void)plain_forward(); });
  start([this] { (void)forward_truth(); });
  if (!backward) return;
  start([this] { (void)plain_backward(); });
  start([this] { (void)backward_truth(); });
}

const TrialCase& Trial::made() {
  return case_.get([&] {
    const TimedStep step("trial's host", "problem and inputs");
    return trial_case(subject_);
  });
}

bool Trial::keeps_keys() {
  return std::ranges::any_of(forward_truth().lse, [](double lse) { return lse > -kInfinity; });
}

const reference::ForwardResult<double>& Trial::forward_truth() {
  return forward_truth_.get([&] {
    const TimedStep step("trial's host", "oracle's forward");
    return reference::fast_forward(problem(), HostTensors(inputs()).tensors(), parameters());
  });
}

const reference::ForwardResult<float>& Trial::plain_forward() {
  return plain_forward_.get([&] {
    const TimedStep step("trial's host", "plain forward");
    return reference::forward<float>(problem(), HostTensors(inputs()).tensors(), parameters());
  });
}

const reference::BackwardResult<double>& Trial::backward_truth() {
  return backward_truth_.get([&] {
    const TimedStep step("trial's host", "oracle's backward");
    HostTensors tensors(inputs());
    // Then the rounding of the stored o is no error of the backward's; the vectorized oracle takes its own o.
    if (problem().problem.given_deltas && tensors.give(problem().problem, forward_truth()))
      return reference::backward<double>(problem(), tensors.tensors(), parameters());
    return reference::fast_backward(problem(), tensors.tensors(), parameters());
  });
}

const reference::BackwardResult<float>& Trial::plain_backward() {
  return plain_backward_.get([&] {
    const TimedStep step("trial's host", "plain backward");
    HostTensors tensors(inputs());
    if (problem().problem.given_deltas) tensors.give(problem().problem, forward_truth());
    return reference::backward<float>(problem(), tensors.tensors(), parameters());
  });
}

reference::ForwardResult<float> Trial::moved_forward(const reference::Moves& moves) {
  return reference::forward<float>(problem(), HostTensors(inputs()).tensors(), parameters(), {}, moves);
}

reference::BackwardResult<float> Trial::moved_backward(const reference::Moves& moves) {
  HostTensors tensors(inputs());
  compiler::CompiledProblem given = problem();
  given.problem.given_deltas = tensors.give(given.problem, forward_truth());
  return reference::backward<float>(given, tensors.tensors(), parameters(), {}, moves);
}

}  // namespace scoremod::verification
