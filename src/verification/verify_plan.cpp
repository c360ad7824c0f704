#include "verification/verify_plan.hpp"

#include <future>
#include <utility>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/fast_oracle.hpp"
#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/strided_tensor.hpp"
#include "verification/trial_inputs.hpp"

namespace scoremod::verification {
namespace {

using backend::OwnedMemory;
using problem::TensorRole;
namespace reference = backend::reference;

/// The plain evaluation and the oracle are most of a trial's time: one is made beside the other.
template <class Make>
auto beside(Make make) {
  return std::async(std::launch::async, std::move(make));
}

/// The inputs of a trial problem on the host and in a memory space.
class Trial {
 public:
  Trial(const compiler::CompiledProblem& compiled, const backend::MemorySpace& memory)
      : compiled_(compiled),
        problem_(compiled.problem),
        memory_(memory),
        inputs_(trial_inputs(problem_, parameters())),
        q_(copied(inputs_.q)),
        k_(copied(inputs_.k)),
        v_(copied(inputs_.v)) {
    for (const OwnedOperand& operand : inputs_.operands) {
      host_operands_.push_back(operand.bytes.data());
      operand_memory_.push_back(copied(operand.bytes));
      operands_.push_back(operand_memory_.back().data());
    }
  }

  std::vector<OutputError> forward(const backend::ForwardPlan& plan) const {
    auto plain_made = beside([this] { return reference::forward<float>(compiled_, host_tensors(), parameters()); });
    const auto truth = reference::fast_forward(compiled_, host_tensors(), parameters());
    const OwnedMemory o = unwritten(problem::bytes_of(problem_, TensorRole::kO));
    const OwnedMemory lse = unwritten(truth.lse.size() * sizeof(float));
    const OwnedMemory workspace(memory_, plan.workspace_bytes());
    plan.execute({q_.data(), k_.data(), v_.data(), operands_, o.data(), reinterpret_cast<float*>(lse.data())},
                 parameters(), {workspace.data(), workspace.bytes()});
    memory_.wait(nullptr);
    const auto plain = plain_made.get();
    const std::vector<RowClass> classes = row_classes(truth.lse, plain.lse, problem_.dtype);
    return {judge("o", o, TensorRole::kO, truth.o, plain.o, classes),
            lse_error(lse_in(lse, truth.lse.size()), truth.lse, plain.lse, problem_.dtype, classes)};
  }

  std::vector<OutputError> backward(const backend::BackwardPlan& plan, std::span<const std::uint32_t> gradients) const {
    auto plain_made = beside([this] { return reference::backward<float>(compiled_, host_tensors(), parameters()); });
    auto plain_lse = beside([this] { return reference::forward<float>(compiled_, host_tensors(), parameters()).lse; });
    const auto forward_truth = reference::fast_forward(compiled_, host_tensors(), parameters());
    const OwnedMemory dq = unwritten(problem::bytes_of(problem_, TensorRole::kQ));
    const OwnedMemory dk = unwritten(problem::bytes_of(problem_, TensorRole::kK));
    const OwnedMemory dv = unwritten(problem::bytes_of(problem_, TensorRole::kV));
    std::vector<OwnedMemory> d_operands;
    std::vector<void*> wanted(problem_.program.operands().size());
    for (const std::uint32_t operand : gradients) {
      d_operands.push_back(unwritten(problem::bytes_of(problem::spec_of(problem_, operand))));
      wanted.at(operand) = d_operands.back().data();
    }
    run(plan, forward_truth, dq, dk, dv, wanted);
    const auto truth = reference::fast_backward(compiled_, host_tensors(), parameters());
    const auto plain = plain_made.get();
    const std::vector<RowClass> classes = row_classes(forward_truth.lse, plain_lse.get(), problem_.dtype);
    const std::span<const RowClass> all = std::span(classes).first(1);
    std::vector<OutputError> errors{judge("dq", dq, TensorRole::kQ, truth.dq, plain.dq, classes),
                                    judge("dk", dk, TensorRole::kK, truth.dk, plain.dk, all),
                                    judge("dv", dv, TensorRole::kV, truth.dv, plain.dv, all)};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::uint32_t operand = gradients[i];
      errors.push_back(
          judge_gradient(operand, d_operands[i], truth.d_operands[operand], plain.d_operands[operand], all));
    }
    return errors;
  }

 private:
  backend::CallParameters parameters() const {
    // Different along every axis, and small enough that masks still keep something.
    const IndexOffsets offsets = problem_.index_offsets ? IndexOffsets{1, 2, 5, 3} : IndexOffsets{};
    return {problem_.effective_scale(), offsets, nullptr};
  }

  reference::InputTensors host_tensors() const {
    return {inputs_.q.data(), inputs_.k.data(), inputs_.v.data(), inputs_.d_o.data(), host_operands_};
  }

  /// From the oracle's o and lse: an error of the forward must not show here.
  void run(const backend::BackwardPlan& plan, const reference::ForwardResult<double>& truth, const OwnedMemory& dq,
           const OwnedMemory& dk, const OwnedMemory& dv, std::span<void* const> d_operands) const {
    std::vector<std::byte> o(problem::bytes_of(problem_, TensorRole::kO));
    reference::store_dense(problem_, TensorRole::kO, truth.o, o.data());
    std::vector<std::byte> lse(truth.lse.size() * sizeof(float));
    for (std::size_t i = 0; i < truth.lse.size(); ++i) {
      store_element(lse.data(), DType::kF32, static_cast<std::int64_t>(i), truth.lse[i]);
    }
    const OwnedMemory o_there = copied(o), lse_there = copied(lse), d_o_there = copied(inputs_.d_o);
    const OwnedMemory workspace(memory_, plan.workspace_bytes());
    plan.execute({q_.data(), k_.data(), v_.data(), o_there.data(), reinterpret_cast<const float*>(lse_there.data()),
                  d_o_there.data(), operands_, dq.data(), dk.data(), dv.data(), d_operands},
                 parameters(), {workspace.data(), workspace.bytes()});
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

  std::vector<double> lse_in(const OwnedMemory& memory, std::size_t rows) const {
    const std::vector<std::byte> bytes = fetched(memory);
    std::vector<double> values(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      values[i] = load_element<double>(bytes.data(), DType::kF32, static_cast<std::int64_t>(i));
    }
    return values;
  }

  OutputError judge(const char* name, const OwnedMemory& memory, TensorRole role, const std::vector<double>& truth,
                    const std::vector<float>& plain, std::span<const RowClass> classes) const {
    const problem::StridedTensor tensor = problem::tensor_of(name, problem_, role);
    return output_error(tensor, reference::load_dense<double>(tensor, fetched(memory).data()), truth, plain, classes);
  }

  OutputError judge_gradient(std::uint32_t operand, const OwnedMemory& memory, const std::vector<double>& truth,
                             const std::vector<float>& plain, std::span<const RowClass> classes) const {
    const OperandSpec& spec = problem::spec_of(problem_, operand);
    const problem::StridedTensor tensor = problem::tensor_of(concat("gradient of '", spec.name, "'"), spec);
    return output_error(tensor, reference::load_dense<double>(tensor, fetched(memory).data()), truth, plain, classes);
  }

  const compiler::CompiledProblem& compiled_;
  const AttentionProblem& problem_;
  const backend::MemorySpace& memory_;
  const ProblemInputs inputs_;
  const OwnedMemory q_, k_, v_;
  std::vector<const void*> host_operands_;
  std::vector<OwnedMemory> operand_memory_;
  std::vector<const void*> operands_;
};

}  // namespace

std::vector<OutputError> verify_forward(const compiler::CompiledProblem& trial, const backend::ForwardPlan& plan,
                                        const backend::MemorySpace& memory) {
  return Trial(trial, memory).forward(plan);
}

std::vector<OutputError> verify_backward(const compiler::CompiledProblem& trial, const backend::BackwardPlan& plan,
                                         const backend::MemorySpace& memory,
                                         std::span<const std::uint32_t> operand_gradients) {
  if (!trial.backward) fail_bug("a backward is verified on a problem without a derivative");
  return Trial(trial, memory).backward(plan, operand_gradients);
}

}  // namespace scoremod::verification
