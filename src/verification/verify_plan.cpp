#include "verification/verify_plan.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/call_memory.hpp"
#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::verification {
namespace {

using backend::OwnedMemory;
using problem::TensorRole;
namespace reference = backend::reference;

/// As of rows in output_error.cpp: of fewer the plain evaluation's error may be small by chance.
constexpr std::size_t kMinNumbers = 16;

/// A trial's calls of one direction in a memory space, and the judgement of their outputs.
class TrialRun {
 public:
  TrialRun(Trial& trial, backend::Direction direction, const backend::MemorySpace& memory,
           const OperationErrors& operations)
      : trial_(trial),
        operations_(operations),
        problem_(trial.problem().problem),
        memory_(memory),
        call_(problem_, direction, memory, trial.inputs(), backend::OutputFill::kNan) {
    for (const OwnedOperand& operand : trial.inputs().operands) host_operands_.push_back(operand.bytes.data());
  }

  std::vector<OutputError> forward(const backend::ForwardPlan& plan) const {
    const OwnedMemory workspace(memory_, plan.workspace_bytes());
    plan.execute(call_.forward(), parameters(), {workspace.data(), workspace.bytes()});
    memory_.wait(memory_.own_stream());
    std::vector<OutputError> errors = judge_forward(trial_.plain_forward());
    if (may_be_right(errors)) replace_wrong(errors, judge_forward(farthest_forward(trial_, operations_)));
    return errors;
  }

  std::vector<OutputError> backward(const backend::BackwardPlan& plan, std::span<const std::uint32_t> gradients,
                                    bool attention) {
    run(plan, gradients);
    std::vector<OutputError> errors = judge_backward(trial_.plain_backward(), gradients, attention);
    if (!may_be_right(errors)) return errors;
    replace_wrong(errors, judge_backward(farthest_backward(trial_, operations_), gradients, attention));
    // A backend that adds up terms in the dtype of its MMA leaves so much of terms that cancel.
    if (!std::ranges::any_of(errors, may_cancel)) return errors;
    const double rounded = unit_roundoff(problem::product_dtype(problem_));
    const auto second = judge_backward(farthest_backward(trial_, operations_, rounded), gradients, attention);
    for (std::size_t i = 0; i < errors.size(); ++i)
      if (may_cancel(errors[i])) errors[i] = second[i];
    return errors;
  }

 private:
  /// Whether a larger tolerance may accept wrong outputs. It never accepts an output that was not written.
  static bool may_be_right(const std::vector<OutputError>& errors) {
    return !std::ranges::all_of(errors, &OutputError::right) &&
           std::ranges::none_of(errors, [](const OutputError& error) { return std::isnan(error.error); });
  }

  static bool may_cancel(const OutputError& error) { return !error.right() && error.cancels; }

  /// The second judgement replaces the outputs that were wrong.
  static void replace_wrong(std::vector<OutputError>& errors, const std::vector<OutputError>& second) {
    for (std::size_t i = 0; i < errors.size(); ++i)
      if (!errors[i].right()) errors[i] = second[i];
  }

  /// The classes of rows depend on the problem, not on the values that they are compared with.
  std::vector<RowClass> classes() const {
    return row_classes(trial_.forward_truth().lse, trial_.plain_forward().lse, problem::product_dtype(problem_));
  }

  std::vector<OutputError> judge_forward(const reference::ForwardResult<float>& plain) const {
    const auto& truth = trial_.forward_truth();
    const DType dtype = problem::product_dtype(problem_);
    const std::vector<RowClass> classes = this->classes();
    std::vector<OutputError> errors{judge("o", call_.o, TensorRole::kO, truth.o, plain.o, classes),
                                    lse_error(lse_in(call_.lse, truth.lse), truth.lse, plain.lse, dtype, classes)};
    if (problem_.amax_o) errors.push_back(judge_amax("amax_o", call_.amax_o, truth.amax_o, plain.amax_o, classes));
    if (!problem_.max_logit) return errors;
    errors.push_back(
        lse_error(lse_in(call_.max_logit, truth.max_logit), truth.max_logit, plain.max_logit, dtype, classes));
    errors.back().name = "max_logit";
    return errors;
  }

  std::vector<OutputError> judge_backward(const reference::BackwardResult<float>& plain,
                                          std::span<const std::uint32_t> gradients, bool attention) const {
    const auto& truth = trial_.backward_truth();
    const std::vector<RowClass> classes = this->classes();
    const std::span<const RowClass> all = std::span(classes).first(1);
    std::vector<OutputError> errors;
    if (attention) {
      errors = {judge("dq", call_.dq, TensorRole::kDQ, truth.dq, plain.dq, classes),
                judge("dk", call_.dk, TensorRole::kDK, truth.dk, plain.dk, all),
                judge("dv", call_.dv, TensorRole::kDV, truth.dv, plain.dv, all)};
    }
    if (attention && problem_.amax_gradients) {
      errors.push_back(judge_amax("amax_dq", call_.amax_dq, truth.amax_dq, plain.amax_dq, all));
      errors.push_back(judge_amax("amax_dk", call_.amax_dk, truth.amax_dk, plain.amax_dk, all));
      errors.push_back(judge_amax("amax_dv", call_.amax_dv, truth.amax_dv, plain.amax_dv, all));
    }
    for (const std::uint32_t operand : gradients) {
      errors.push_back(judge_gradient(operand, call_.d_operands[operand], truth.d_operands[operand],
                                      plain.d_operands[operand], all));
    }
    return errors;
  }

  /// From the oracle's o and lse: an error of the forward must not show here.
  void run(const backend::BackwardPlan& plan, std::span<const std::uint32_t> gradients) {
    const reference::ForwardResult<double>& truth = trial_.forward_truth();
    fill(call_.o, TensorRole::kO, truth.o);
    fill(call_.lse, TensorRole::kLse, truth.lse);
    const OwnedMemory workspace(memory_, plan.workspace_bytes());
    plan.execute(call_.backward(gradients), parameters(), {workspace.data(), workspace.bytes()});
    memory_.wait(memory_.own_stream());
  }

  backend::CallParameters parameters() const {
    backend::CallParameters parameters = trial_.parameters();
    parameters.stream = memory_.own_stream();
    return parameters;
  }

  void fill(OwnedMemory& memory, TensorRole role, const std::vector<double>& values) const {
    std::vector<std::byte> bytes(memory.bytes());
    reference::store_dense(problem_, role, values, bytes.data(), host_operands_);
    memory_.copy_in(memory.data(), bytes.data(), bytes.size());
  }

  std::vector<std::byte> fetched(const OwnedMemory& memory) const {
    std::vector<std::byte> bytes(memory.bytes());
    memory_.copy_out(bytes.data(), memory.data(), memory.bytes());
    return bytes;
  }

  /// Rows that are not in memory are as the truth has them.
  std::vector<double> lse_in(const OwnedMemory& memory, std::vector<double> truth) const {
    const std::vector<std::byte> bytes = fetched(memory);
    problem::placed_tensor(problem_, TensorRole::kLse, host_operands_)
        .for_each_offset([&](std::int64_t number, std::int64_t offset) {
          truth[static_cast<std::size_t>(number)] = load_element<double>(bytes.data(), DType::kF32, offset);
        });
    return truth;
  }

  OutputError judge(const char* name, const OwnedMemory& memory, TensorRole role, const std::vector<double>& truth,
                    const std::vector<float>& plain, std::span<const RowClass> classes) const {
    problem::StridedTensor tensor = problem::placed_tensor(problem_, role, host_operands_);
    tensor.name = name;
    return output_error(tensor, reference::load_dense<double>(tensor, fetched(memory).data()), truth, plain, classes);
  }

  /// Judges a single element: weights are rounded as MMA takes them, and a single number is too small a sample of that.
  OutputError judge_amax(const char* name, const OwnedMemory& memory, const std::vector<double>& truth,
                         const std::vector<float>& plain, std::span<const RowClass> classes) const {
    const problem::StridedTensor tensor{name, problem::product_dtype(problem_), {1}, {1}};
    const auto found = load_element<double>(fetched(memory).data(), DType::kF32, 0);
    return output_error(tensor, {found}, truth, plain, classes.first(1));
  }

  OutputError judge_gradient(std::uint32_t operand, const OwnedMemory& memory, const std::vector<double>& truth,
                             const std::vector<float>& plain, std::span<const RowClass> classes) const {
    const OperandSpec& spec = problem::spec_of(problem_, operand);
    problem::StridedTensor tensor = problem::tensor_of(concat("gradient of '", spec.name, "'"), spec);
    const std::vector<double> found = reference::load_dense<double>(tensor, fetched(memory).data());
    // Few numbers are too small a sample of the rounding of the weights that they are sums of, as for amax_o.
    const DType of_terms = problem::product_dtype(problem_);
    if (truth.size() < kMinNumbers && unit_roundoff(of_terms) > unit_roundoff(tensor.dtype)) tensor.dtype = of_terms;
    return output_error(tensor, found, truth, plain, classes);
  }

  Trial& trial_;
  const OperationErrors operations_;  ///< of the plan
  const AttentionProblem& problem_;
  const backend::MemorySpace& memory_;
  backend::CallMemory call_;
  std::vector<const void*> host_operands_;  ///< where rows lie is read here
};

}  // namespace

std::vector<OutputError> verify_forward(Trial& trial, const backend::ForwardPlan& plan,
                                        const backend::MemorySpace& memory, const OperationErrors& errors) {
  return TrialRun(trial, backend::Direction::kForward, memory, errors).forward(plan);
}

std::vector<OutputError> verify_backward(Trial& trial, const backend::BackwardPlan& plan,
                                         const backend::MemorySpace& memory,
                                         std::span<const std::uint32_t> operand_gradients, bool attention,
                                         const OperationErrors& errors) {
  if (!trial.problem().backward) fail_bug("a backward is verified on a problem without a derivative");
  return TrialRun(trial, backend::Direction::kBackward, memory, errors).backward(plan, operand_gradients, attention);
}

}  // namespace scoremod::verification
