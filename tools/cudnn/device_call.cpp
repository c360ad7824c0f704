#include "tools/cudnn/device_call.hpp"

#include <algorithm>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"

namespace scoremod::explorer {
namespace {

namespace cudnn = backend::cudnn;
namespace reference = backend::reference;
using Binding = cudnn::TensorBinding;

constexpr std::size_t kPointerAlignment = 256;

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

/// The indices at which each entry of a computed operand is evaluated.
std::vector<reference::Element> elements_of(const AttentionProblem& problem, const cudnn::ComputedOperand& operand,
                                            bool diagonal) {
  const auto size_along = [&](Axis axis, std::int64_t size) {
    return operand.axes[static_cast<std::size_t>(axis)] ? size : 1;
  };
  std::vector<reference::Element> rows_and_keys;
  if (diagonal) {
    for (std::int64_t d = 1 - problem.seq_q; d < problem.seq_kv; ++d) {
      rows_and_keys.push_back({0, 0, std::max<std::int64_t>(-d, 0), std::max<std::int64_t>(d, 0)});
    }
  } else {
    for (std::int64_t q = 0; q < size_along(Axis::kQuery, problem.seq_q); ++q)
      for (std::int64_t k = 0; k < size_along(Axis::kKey, problem.seq_kv); ++k) rows_and_keys.push_back({0, 0, q, k});
  }
  std::vector<reference::Element> elements;
  for (std::int64_t b = 0; b < size_along(Axis::kBatch, problem.batch); ++b)
    for (std::int64_t h = 0; h < size_along(Axis::kHead, problem.heads_q); ++h)
      for (const reference::Element& at : rows_and_keys) elements.push_back({b, h, at.query, at.key});
  return elements;
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
    case Binding::Kind::kComputed: {
      const auto& computed = prepared.modifier.computed[binding.operand];
      const bool diagonal = prepared.modifier.graph.tensors[number].strides[2] < 0;
      std::vector<std::byte> bytes = compute_operand(prepared, inputs, computed, diagonal);
      if (!diagonal) return upload(uid, bytes);
      // The pointer is that of the first row's first key, which is the last of the negative differences. cuDNN takes
      // pointers for aligned to 16 bytes.
      const auto before = static_cast<std::size_t>(prepared.compiled.problem.seq_q - 1) * sizeof(float);
      const std::size_t padding = (kPointerAlignment - before % kPointerAlignment) % kPointerAlignment;
      bytes.insert(bytes.begin(), padding, std::byte{0});
      upload(uid, bytes);
      pointers_[uid] = static_cast<std::byte*>(pointers_[uid]) + padding + before;
      return;
    }
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
  plan.execute(cudnn::thread_handle(backend::cuda::own_stream()), pointers_, workspace_->data());
}

std::vector<std::byte> DeviceCall::download(cudnn::Uid uid) const {
  const backend::cuda::DeviceMemory& memory = memories_.at(uid);
  std::vector<std::byte> bytes(memory.bytes());
  memory.download(bytes.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> compute_operand(const PreparedCall& prepared, const ProblemInputs& inputs,
                                       const cudnn::ComputedOperand& operand, bool diagonal) {
  const AttentionProblem& problem = prepared.compiled.problem;
  const bool backward = prepared.direction == backend::Direction::kBackward;
  const Program& program = backward ? prepared.compiled.backward->program : prepared.compiled.forward.program;
  std::vector<const void*> data;
  for (const OwnedOperand& owned : inputs.operands) data.push_back(owned.bytes.data());
  const std::vector<reference::OperandView> views = reference::view_operands(problem, data);
  reference::Interpreter<float> interpreter(program, views, prepared.offsets);
  const std::vector<reference::Element> elements = elements_of(problem, operand, diagonal);
  const DType dtype = operand.type == Type::kF32 ? DType::kF32 : DType::kI32;
  std::vector<std::byte> bytes(elements.size() * sizeof(float));
  if (prepared.zero_computed) return bytes;
  for (std::size_t entry = 0; entry < elements.size(); ++entry) {
    interpreter.evaluate(elements[entry], 0);
    store_element(bytes.data(), dtype, static_cast<std::int64_t>(entry),
                  number_of(interpreter.scalar(operand.node), operand.type));
  }
  return bytes;
}

}  // namespace scoremod::explorer
