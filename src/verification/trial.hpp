#pragma once

#include <future>
#include <mutex>
#include <optional>
#include <vector>

#include "scoremod/inputs.hpp"

#include "backend/plan.hpp"
#include "backend/reference/naive_attention.hpp"
#include "compiler/compiled_problem.hpp"
#include "verification/trial_case.hpp"

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

/// The small problem that stands for another's plans, its inputs, and the results of the oracle and a plain evaluation.
/// It is all that a trial needs of the host, made once for both directions and every backend. Nothing is made before it
/// is asked for; any thread may ask. If making a part throws, the next who asks makes it anew.
class Trial {
 public:
  /// A trial for plans of this problem, which must outlive it.
  explicit Trial(const compiler::CompiledProblem& subject) : subject_(subject) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// Starts a direction's part of the comparison in threads of its own, which the destructor waits for. A build takes
  /// as long and runs meanwhile.
  void begin(backend::Direction direction);

  const compiler::CompiledProblem& problem() { return made().problem; }
  /// The parameters of a call of a plan of problem().
  backend::CallParameters parameters() { return made().parameters(); }
  const ProblemInputs& inputs() { return made().inputs; }
  /// Whether any row keeps a key. If none does, all outputs are known without computing a score, and a plan that writes
  /// them has shown nothing.
  bool keeps_keys();
  const backend::reference::ForwardResult<double>& forward_truth();
  const backend::reference::ForwardResult<float>& plain_forward();
  const backend::reference::BackwardResult<double>& backward_truth();
  const backend::reference::BackwardResult<float>& plain_backward();
  /// The plain forward and backward, moved. The backward takes the oracle's o and LSE, as plans do. If a program is not
  /// continuous these may differ from its own, and the weights then differ from plain_backward()'s. Made anew at each
  /// call: few trials need them.
  backend::reference::ForwardResult<float> moved_forward(const backend::reference::Moves& moves);
  backend::reference::BackwardResult<float> moved_backward(const backend::reference::Moves& moves);

 private:
  const TrialCase& made();

  const compiler::CompiledProblem& subject_;
  MadeOnce<TrialCase> case_;
  MadeOnce<backend::reference::ForwardResult<double>> forward_truth_;
  MadeOnce<backend::reference::ForwardResult<float>> plain_forward_;
  MadeOnce<backend::reference::BackwardResult<double>> backward_truth_;
  MadeOnce<backend::reference::BackwardResult<float>> plain_backward_;
  std::mutex begun_mutex_;
  std::vector<std::future<void>> begun_;  // destroyed first, and so waited for
};

}  // namespace scoremod::verification
