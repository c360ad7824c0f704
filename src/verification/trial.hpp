#pragma once

#include <future>
#include <mutex>
#include <optional>
#include <vector>

#include "scoremod/inputs.hpp"

#include "backend/plan.hpp"
#include "backend/reference/naive_attention.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::verification {

/// Made once, by the first thread that asks, for all that ask.
template <class Value>
class MadeOnce {
 public:
  template <class Make>
  const Value& get(const Make& make) {
    std::call_once(once_, [&] { value_.emplace(make()); });
    return *value_;
  }

 private:
  std::once_flag once_;
  std::optional<Value> value_;
};

/// The small problem that speaks for another's plans, its inputs, and what the oracle and a plain evaluation make of
/// them: all that a trial needs of the host, made once for the plans of both directions and of every engine. Nothing is
/// made before it is asked for; any thread may ask. A part that throws is made anew for the next who asks.
class Trial {
 public:
  /// Of this problem's plans, which must outlive the trial.
  explicit Trial(const compiler::CompiledProblem& subject) : subject_(subject) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// Starts what a direction's comparison needs in threads of its own, which the destructor waits for: an engine's
  /// builds, which take as long, run meanwhile.
  void begin(backend::Direction direction);

  const compiler::CompiledProblem& problem();
  /// What a call of a plan of problem() is given.
  backend::CallParameters parameters();
  const ProblemInputs& inputs();
  const backend::reference::ForwardResult<double>& forward_truth();
  const backend::reference::ForwardResult<float>& plain_forward();
  const backend::reference::BackwardResult<double>& backward_truth();
  const backend::reference::BackwardResult<float>& plain_backward();
  /// The plain forward and backward, moved; the backward from the oracle's o and LSE, as plans are given them: where
  /// these and its own differ, as they do where a program is not continuous, it has other weights than
  /// plain_backward(). Made anew at each call: few trials need them.
  backend::reference::ForwardResult<float> moved_forward(const backend::reference::Moves& moves);
  backend::reference::BackwardResult<float> moved_backward(const backend::reference::Moves& moves);

 private:
  const compiler::CompiledProblem& subject_;
  MadeOnce<compiler::CompiledProblem> problem_;
  MadeOnce<ProblemInputs> inputs_;
  MadeOnce<backend::reference::ForwardResult<double>> forward_truth_;
  MadeOnce<backend::reference::ForwardResult<float>> plain_forward_;
  MadeOnce<backend::reference::BackwardResult<double>> backward_truth_;
  MadeOnce<backend::reference::BackwardResult<float>> plain_backward_;
  std::mutex begun_mutex_;
  std::vector<std::future<void>> begun_;  // destroyed first, and so waited for
};

}  // namespace scoremod::verification
