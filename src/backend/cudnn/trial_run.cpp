#include "backend/cudnn/trial_run.hpp"

#include <future>
#include <map>
#include <optional>
#include <utility>

#include "scoremod/inputs.hpp"

#include "backend/cuda/device.hpp"
#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::backend::cudnn {
namespace {

using problem::TensorRole;

/// The plain evaluation and the oracle are most of a trial's time: one is made beside the other.
template <class Make>
auto beside(Make make) {
  return std::async(std::launch::async, std::move(make));
}

/// A problem's inputs on the host and on the device, and room for what a direction writes.
class Trial {
 public:
  explicit Trial(const compiler::CompiledProblem& compiled)
      : compiled_(compiled), problem_(compiled.problem), inputs_(random_inputs(problem_)) {
    upload(kUidQ, inputs_.q);
    upload(kUidK, inputs_.k);
    upload(kUidV, inputs_.v);
    for (const OwnedOperand& operand : inputs_.operands) {
      host_operands_.push_back(operand.bytes.data());
      operand_memory_.emplace_back(operand.bytes.size());
      operand_memory_.back().upload(operand.bytes.data(), operand.bytes.size());
      operands_.push_back(operand_memory_.back().data());
    }
    call_.operands = operands_;
  }

  std::vector<OutputError> forward(const DirectionPlan& plan) {
    auto plain_made = beside([this] { return reference::forward<float>(compiled_, host_tensors(), parameters()); });
    truth_ = reference::forward<double>(compiled_, host_tensors(), parameters());
    output(kUidO, problem::bytes_of(problem_, TensorRole::kO));
    output(kUidStats, truth_.lse.size() * sizeof(float));
    run(plan);
    const auto plain = plain_made.get();
    return {judge("o", kUidO, TensorRole::kO, truth_.o, plain.o),
            lse_error(lse_found(), truth_.lse, plain.lse, problem_.dtype)};
  }

  std::vector<OutputError> backward(const DirectionPlan& plan, std::optional<std::uint32_t> operand) {
    auto plain_made = beside([this] { return reference::backward<float>(compiled_, host_tensors(), parameters()); });
    truth_ = reference::forward<double>(compiled_, host_tensors(), parameters());
    // The forward's true results: an error of the forward must not show here.
    std::vector<std::byte> o(problem::bytes_of(problem_, TensorRole::kO));
    reference::store_dense(problem_, TensorRole::kO, truth_.o, o.data());
    std::vector<std::byte> lse(truth_.lse.size() * sizeof(float));
    for (std::size_t i = 0; i < truth_.lse.size(); ++i) {
      store_element(lse.data(), DType::kF32, static_cast<std::int64_t>(i), truth_.lse[i]);
    }
    upload(kUidO, o);
    upload(kUidStats, lse);
    upload(kUidDO, inputs_.d_o);
    output(kUidDQ, problem::bytes_of(problem_, TensorRole::kQ));
    output(kUidDK, problem::bytes_of(problem_, TensorRole::kK));
    output(kUidDV, problem::bytes_of(problem_, TensorRole::kV));
    if (operand) output(kUidDBias, problem::bytes_of(problem::spec_of(problem_, *operand)));
    run(plan);
    const auto truth = reference::backward<double>(compiled_, host_tensors(), parameters());
    const auto plain = plain_made.get();
    std::vector<OutputError> errors{judge("dq", kUidDQ, TensorRole::kQ, truth.dq, plain.dq),
                                    judge("dk", kUidDK, TensorRole::kK, truth.dk, plain.dk),
                                    judge("dv", kUidDV, TensorRole::kV, truth.dv, plain.dv)};
    if (operand) errors.push_back(judge_gradient(*operand, truth.d_operands[*operand], plain.d_operands[*operand]));
    return errors;
  }

 private:
  CallParameters parameters() const {
    // Different along every axis, and small enough that masks still keep something.
    const IndexOffsets offsets = problem_.index_offsets ? IndexOffsets{1, 2, 5, 3} : IndexOffsets{};
    return {problem_.effective_scale(), offsets, nullptr};
  }

  reference::InputTensors host_tensors() const {
    return {inputs_.q.data(), inputs_.k.data(), inputs_.v.data(), inputs_.d_o.data(), host_operands_};
  }

  void upload(Uid uid, const std::vector<std::byte>& bytes) {
    cuda::DeviceMemory memory(bytes.size());
    memory.upload(bytes.data(), bytes.size());
    call_.attention[uid] = memory.data();
    memory_[uid] = std::move(memory);
  }

  /// All bits set is NaN in every float dtype: what is never written shows.
  void output(Uid uid, std::size_t bytes) { upload(uid, std::vector<std::byte>(bytes, std::byte{0xff})); }

  void run(const DirectionPlan& plan) {
    const cuda::DeviceMemory workspace(plan.workspace_bytes());
    plan.execute(call_, parameters(), {static_cast<std::byte*>(workspace.data()), workspace.bytes()});
    cuda::synchronize();
  }

  std::vector<std::byte> download(Uid uid) const {
    const cuda::DeviceMemory& memory = memory_.at(uid);
    std::vector<std::byte> bytes(memory.bytes());
    memory.download(bytes.data(), bytes.size());
    return bytes;
  }

  std::vector<double> lse_found() const {
    const std::vector<std::byte> bytes = download(kUidStats);
    std::vector<double> values(truth_.lse.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = load_element<double>(bytes.data(), DType::kF32, static_cast<std::int64_t>(i));
    }
    return values;
  }

  OutputError judge(const char* name, Uid uid, TensorRole role, const std::vector<double>& truth,
                    const std::vector<float>& plain) const {
    const std::vector<std::byte> bytes = download(uid);
    return output_error(name, reference::load_dense<double>(problem_, role, bytes.data()), truth, plain,
                        problem_.dtype);
  }

  OutputError judge_gradient(std::uint32_t operand, const std::vector<double>& truth,
                             const std::vector<float>& plain) const {
    const OperandSpec& spec = problem::spec_of(problem_, operand);
    const std::vector<std::byte> bytes = download(kUidDBias);
    const auto found = reference::load_dense<double>(problem::tensor_of(spec.name, spec), bytes.data());
    return output_error(concat("gradient of '", spec.name, "'"), found, truth, plain, spec.dtype);
  }

  const compiler::CompiledProblem& compiled_;
  const AttentionProblem& problem_;
  const ProblemInputs inputs_;
  std::vector<const void*> host_operands_;
  std::vector<cuda::DeviceMemory> operand_memory_;
  std::vector<const void*> operands_;
  std::map<Uid, cuda::DeviceMemory> memory_;
  CallPointers call_;
  reference::ForwardResult<double> truth_;
};

}  // namespace

std::vector<OutputError> trial_run(const compiler::CompiledProblem& problem, const PlanTask& task,
                                   const DirectionPlan& plan) {
  Trial trial(problem);
  return task.direction == Direction::kForward ? trial.forward(plan) : trial.backward(plan, task.operand_gradient);
}

}  // namespace scoremod::backend::cudnn
