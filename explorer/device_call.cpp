#include "explorer/device_call.hpp"

#include "backend/cudnn/handle.hpp"
#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"

namespace scoremod::explorer {
namespace {

namespace cudnn = backend::cudnn;
namespace reference = backend::reference;
using Binding = cudnn::TensorBinding;

std::int32_t* offset_of(IndexOffsets& offsets, Axis axis) {
  switch (axis) {
    case Axis::kBatch: return &offsets.batch;
    case Axis::kHead: return &offsets.head;
    case Axis::kQuery: return &offsets.query;
    case Axis::kKey: return &offsets.key;
  }
  fail_bug("no such axis");
}

double number_of(const ir::Scalar<float>& value, Type type) {
  switch (type) {
    case Type::kF32: return static_cast<double>(value.f);
    case Type::kI32: return value.i;
    case Type::kBool: return value.b ? 1 : 0;
  }
  fail_bug("no such type");
}

}  // namespace

DeviceCall::DeviceCall(const PreparedCall& prepared, const ProblemInputs& inputs)
    : scale_(prepared.compiled.problem.effective_scale()), offsets_(prepared.offsets) {
  upload(cudnn::kUidQ, inputs.q);
  upload(cudnn::kUidK, inputs.k);
  upload(cudnn::kUidV, inputs.v);
  for (std::size_t i = 0; i < prepared.modifier.bindings.size(); ++i) bind_modifier_tensor(prepared, inputs, i);
  pointers_[cudnn::kUidScale] = &scale_;
}

void DeviceCall::bind_modifier_tensor(const PreparedCall& prepared, const ProblemInputs& inputs, std::size_t number) {
  const Binding& binding = prepared.modifier.bindings[number];
  const auto uid = static_cast<cudnn::Uid>(cudnn::kUidModifierTensor + static_cast<std::int64_t>(number));
  switch (binding.kind) {
    case Binding::Kind::kOperand: upload(uid, inputs.operands[binding.operand].bytes); return;
    case Binding::Kind::kComputed:
      upload(uid, compute_operand(prepared, inputs, prepared.modifier.computed[binding.operand]));
      return;
    case Binding::Kind::kOffset: pointers_[uid] = offset_of(offsets_, binding.axis); return;
  }
}

void DeviceCall::upload(cudnn::Uid uid, const std::vector<std::byte>& bytes) {
  backend::cuda::DeviceMemory memory(bytes.size());
  memory.upload(bytes.data(), bytes.size());
  pointers_[uid] = memory.data();
  memories_.insert_or_assign(uid, std::move(memory));
}

void DeviceCall::output(cudnn::Uid uid, std::size_t bytes) { upload(uid, std::vector(bytes, std::byte{0xff})); }

void DeviceCall::execute(const cudnn::EnginePlan& plan) {
  if (!workspace_ || workspace_->bytes() < plan.workspace_bytes()) workspace_.emplace(plan.workspace_bytes());
  plan.execute(cudnn::thread_handle(), pointers_, workspace_->data());
}

std::vector<std::byte> DeviceCall::download(cudnn::Uid uid) const {
  const backend::cuda::DeviceMemory& memory = memories_.at(uid);
  std::vector<std::byte> bytes(memory.bytes());
  memory.download(bytes.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> compute_operand(const PreparedCall& prepared, const ProblemInputs& inputs,
                                       const cudnn::ComputedOperand& operand) {
  const AttentionProblem& problem = prepared.compiled.problem;
  const bool backward = prepared.direction == backend::Direction::kBackward;
  const Program& program = backward ? *prepared.compiled.derivative : prepared.compiled.program;
  std::vector<const void*> data;
  for (const OwnedOperand& owned : inputs.operands) data.push_back(owned.bytes.data());
  const std::vector<reference::OperandView> views = reference::view_operands(problem, data);
  reference::Interpreter<float> interpreter(program, views, prepared.offsets);
  const auto size_along = [&](Axis axis, std::int64_t size) {
    return operand.axes[static_cast<std::size_t>(axis)] ? size : 1;
  };
  const std::int64_t batches = size_along(Axis::kBatch, problem.batch),
                     heads = size_along(Axis::kHead, problem.heads_q),
                     queries = size_along(Axis::kQuery, problem.seq_q), keys = size_along(Axis::kKey, problem.seq_kv);
  const DType dtype = operand.type == Type::kF32 ? DType::kF32 : DType::kI32;
  std::vector<std::byte> bytes(static_cast<std::size_t>(batches * heads * queries * keys) * sizeof(float));
  if (prepared.zero_computed) return bytes;
  std::int64_t entry = 0;
  for (std::int64_t b = 0; b < batches; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t q = 0; q < queries; ++q)
        for (std::int64_t k = 0; k < keys; ++k, ++entry) {
          interpreter.evaluate({b, h, q, k}, 0);
          store_element(bytes.data(), dtype, entry, number_of(interpreter.scalar(operand.node), operand.type));
        }
  return bytes;
}

}  // namespace scoremod::explorer
