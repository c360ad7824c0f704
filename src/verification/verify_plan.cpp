#include "verification/verify_plan.hpp"

#include <utility>

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

/// A trial's inputs in a memory space, and one run of a plan there.
class TrialRun {
 public:
  TrialRun(Trial& trial, const backend::MemorySpace& memory)
      : trial_(trial),
        problem_(trial.problem().problem),
        memory_(memory),
        q_(copied(trial.inputs().q)),
        k_(copied(trial.inputs().k)),
        v_(copied(trial.inputs().v)) {
    for (const OwnedOperand& operand : trial.inputs().operands) {
      operand_memory_.push_back(copied(operand.bytes));
      operands_.push_back(operand_memory_.back().data());
      host_operands_.push_back(operand.bytes.data());
    }
  }

  std::vector<OutputError> forward(const backend::ForwardPlan& plan) const {
    const std::size_t row_bytes = problem::lse_tensor(problem_).bytes();
    const OwnedMemory o = unwritten(problem::bytes_of(problem_, TensorRole::kO));
    const OwnedMemory lse = unwritten(row_bytes);
    const OwnedMemory max_logit = problem_.max_logit ? unwritten(row_bytes) : OwnedMemory();
    const OwnedMemory workspace(memory_, plan.workspace_bytes());
    plan.execute({q_.data(), k_.data(), v_.data(), operands_, o.data(), reinterpret_cast<float*>(lse.data()),
                  reinterpret_cast<float*>(max_logit.data())},
                 trial_.parameters(), {workspace.data(), workspace.bytes()});
    memory_.wait(nullptr);
    const auto& truth = trial_.forward_truth();
    const auto& plain = trial_.plain_forward();
    const std::vector<RowClass> classes = row_classes(truth.lse, plain.lse, problem_.dtype);
    std::vector<OutputError> errors{judge("o", o, TensorRole::kO, truth.o, plain.o, classes),
                                    lse_error(lse_in(lse, truth.lse), truth.lse, plain.lse, problem_.dtype, classes)};
    if (!problem_.max_logit) return errors;
    errors.push_back(
        lse_error(lse_in(max_logit, truth.max_logit), truth.max_logit, plain.max_logit, problem_.dtype, classes));
    errors.back().name = "max_logit";
    return errors;
  }

  std::vector<OutputError> backward(const backend::BackwardPlan& plan, std::span<const std::uint32_t> gradients,
                                    bool attention) const {
    const OwnedMemory dq = unwritten(problem::bytes_of(problem_, TensorRole::kDQ));
    const OwnedMemory dk = unwritten(problem::bytes_of(problem_, TensorRole::kDK));
    const OwnedMemory dv = unwritten(problem::bytes_of(problem_, TensorRole::kDV));
    std::vector<OwnedMemory> d_operands;
    std::vector<void*> wanted(problem_.program.operands().size());
    for (const std::uint32_t operand : gradients) {
      d_operands.push_back(unwritten(problem::bytes_of(problem::spec_of(problem_, operand))));
      wanted.at(operand) = d_operands.back().data();
    }
    run(plan, dq, dk, dv, wanted);
    const auto& truth = trial_.backward_truth();
    const auto& plain = trial_.plain_backward();
    const std::vector<RowClass> classes =
        row_classes(trial_.forward_truth().lse, trial_.plain_forward().lse, problem_.dtype);
    const std::span<const RowClass> all = std::span(classes).first(1);
    std::vector<OutputError> errors;
    if (attention) {
      errors = {judge("dq", dq, TensorRole::kDQ, truth.dq, plain.dq, classes),
                judge("dk", dk, TensorRole::kDK, truth.dk, plain.dk, all),
                judge("dv", dv, TensorRole::kDV, truth.dv, plain.dv, all)};
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::uint32_t operand = gradients[i];
      errors.push_back(
          judge_gradient(operand, d_operands[i], truth.d_operands[operand], plain.d_operands[operand], all));
    }
    return errors;
  }

 private:
  /// From the oracle's o and lse: an error of the forward must not show here.
  void run(const backend::BackwardPlan& plan, const OwnedMemory& dq, const OwnedMemory& dk, const OwnedMemory& dv,
           std::span<void* const> d_operands) const {
    const reference::ForwardResult<double>& truth = trial_.forward_truth();
    std::vector<std::byte> o(problem::bytes_of(problem_, TensorRole::kO));
    reference::store_dense(problem_, TensorRole::kO, truth.o, o.data(), host_operands_);
    std::vector<std::byte> lse(problem::lse_tensor(problem_).bytes());
    reference::store_dense(problem_, TensorRole::kLse, truth.lse, lse.data(), host_operands_);
    const OwnedMemory o_there = copied(o), lse_there = copied(lse), d_o_there = copied(trial_.inputs().d_o);
    const OwnedMemory workspace(memory_, plan.workspace_bytes());
    plan.execute({q_.data(), k_.data(), v_.data(), o_there.data(), reinterpret_cast<const float*>(lse_there.data()),
                  d_o_there.data(), operands_, dq.data(), dk.data(), dv.data(), d_operands},
                 trial_.parameters(), {workspace.data(), workspace.bytes()});
    memory_.wait(nullptr);
  }

  OwnedMemory copied(const std::vector<std::byte>& bytes) const {
    OwnedMemory memory(memory_, bytes.size());
    memory_.copy_in(memory.data(), bytes.data(), bytes.size());
    return memory;
  }

  /// All bits set is NaN in every float dtype: what is never written shows.
  OwnedMemory unwritten(std::size_t bytes) const { return copied(std::vector<std::byte>(bytes, std::byte{0xff})); }

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

  OutputError judge_gradient(std::uint32_t operand, const OwnedMemory& memory, const std::vector<double>& truth,
                             const std::vector<float>& plain, std::span<const RowClass> classes) const {
    const OperandSpec& spec = problem::spec_of(problem_, operand);
    const problem::StridedTensor tensor = problem::tensor_of(concat("gradient of '", spec.name, "'"), spec);
    return output_error(tensor, reference::load_dense<double>(tensor, fetched(memory).data()), truth, plain, classes);
  }

  Trial& trial_;
  const AttentionProblem& problem_;
  const backend::MemorySpace& memory_;
  const OwnedMemory q_, k_, v_;
  std::vector<OwnedMemory> operand_memory_;
  std::vector<const void*> operands_;       ///< there
  std::vector<const void*> host_operands_;  ///< where rows lie is read here
};

}  // namespace

std::vector<OutputError> verify_forward(Trial& trial, const backend::ForwardPlan& plan,
                                        const backend::MemorySpace& memory) {
  return TrialRun(trial, memory).forward(plan);
}

std::vector<OutputError> verify_backward(Trial& trial, const backend::BackwardPlan& plan,
                                         const backend::MemorySpace& memory,
                                         std::span<const std::uint32_t> operand_gradients, bool attention) {
  if (!trial.problem().backward) fail_bug("a backward is verified on a problem without a derivative");
  return TrialRun(trial, memory).backward(plan, operand_gradients, attention);
}

}  // namespace scoremod::verification
