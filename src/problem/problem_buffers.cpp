#include "scoremod/problem_buffers.hpp"

#include <utility>

namespace scoremod {
namespace {

ConstBuffer reads(const std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }
ConstBuffer reads(const Buffer& buffer) { return {buffer.data, buffer.bytes}; }

OutputTensor output(const std::string& name, const TensorInfo& tensor) {
  return {name, tensor, std::vector<std::byte>(tensor.bytes, std::byte{0xff})};
}

/// One number of f32.
OutputTensor number(const std::string& name) {
  return output(name, {name, DType::kF32, {}, {}, "", sizeof(float), false});
}

}  // namespace

InputBuffers buffers_of(const ProblemInputs& inputs) {
  return {reads(inputs.q), reads(inputs.k), reads(inputs.v), reads(inputs.d_o), inputs.operand_buffers()};
}

ForwardArgs forward_args(const InputBuffers& inputs, const OutputBuffers& outputs, const CallOptions& options) {
  return {inputs.q,    inputs.k, inputs.v,          inputs.operands, outputs.o,
          outputs.lse, options,  outputs.max_logit, outputs.amax_o};
}

BackwardArgs backward_args(const InputBuffers& inputs, const OutputBuffers& outputs, const CallOptions& options) {
  return {inputs.q,           inputs.k,        inputs.v,        reads(outputs.o), reads(outputs.lse),
          inputs.d_o,         inputs.operands, outputs.dq,      outputs.dk,       outputs.dv,
          outputs.d_operands, options,         outputs.amax_dq, outputs.amax_dk,  outputs.amax_dv};
}

ProblemBuffers::ProblemBuffers(const AttentionProblem& problem, InputBuffers inputs) : inputs_(std::move(inputs)) {
  constexpr std::size_t kV = 2, kO = 3, kLse = 4;
  const std::vector<TensorInfo> tensors = tensors_of(problem), gradients = gradients_of(problem);
  outputs_.push_back(output("o", tensors[kO]));
  if (problem.stats || problem.backward) outputs_.push_back(output("lse", tensors[kLse]));
  if (problem.max_logit) outputs_.push_back(output("max_logit", tensors[kLse]));
  if (problem.amax_o) outputs_.push_back(number("amax_o"));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].has_gradient) continue;
    // After d_o, in the same order.
    outputs_.push_back(i <= kV ? output(gradients[i + 1].name, gradients[i + 1])
                               : output("d_" + tensors[i].name, tensors[i]));
    if (i != kV || !problem.amax_gradients) continue;
    for (const char* name : {"amax_dq", "amax_dk", "amax_dv"}) outputs_.push_back(number(name));
  }
}

ForwardArgs ProblemBuffers::forward(const CallOptions& options) {
  return forward_args(inputs_, output_buffers(), options);
}

BackwardArgs ProblemBuffers::backward(const CallOptions& options) {
  return backward_args(inputs_, output_buffers(), options);
}

std::size_t ProblemBuffers::bytes() const {
  std::size_t bytes = inputs_.q.bytes + inputs_.k.bytes + inputs_.v.bytes + inputs_.d_o.bytes;
  for (const OperandBuffer& operand : inputs_.operands) bytes += operand.buffer.bytes;
  for (const OutputTensor& tensor : outputs_) bytes += tensor.bytes.size();
  return bytes;
}

OutputBuffers ProblemBuffers::output_buffers() {
  OutputBuffers buffers;
  for (OutputTensor& output : outputs_) {
    const Buffer buffer{output.bytes.data(), output.bytes.size()};
    if (output.name == "o") {
      buffers.o = buffer;
    } else if (output.name == "lse") {
      buffers.lse = buffer;
    } else if (output.name == "max_logit") {
      buffers.max_logit = buffer;
    } else if (output.name == "amax_o") {
      buffers.amax_o = buffer;
    } else if (output.name == "amax_dq") {
      buffers.amax_dq = buffer;
    } else if (output.name == "amax_dk") {
      buffers.amax_dk = buffer;
    } else if (output.name == "amax_dv") {
      buffers.amax_dv = buffer;
    } else if (output.name == "dq") {
      buffers.dq = buffer;
    } else if (output.name == "dk") {
      buffers.dk = buffer;
    } else if (output.name == "dv") {
      buffers.dv = buffer;
    } else {
      buffers.d_operands.push_back({output.tensor.name, buffer});
    }
  }
  return buffers;
}

}  // namespace scoremod
