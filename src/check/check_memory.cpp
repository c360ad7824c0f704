#include "check/check_memory.hpp"

#include <cmath>
#include <random>

#include "backend/reference/dense_tensor.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::checking {
namespace {

using problem::TensorRole;

GuardedBuffer buffer_for(const StridedTensor& tensor, std::uint64_t seed, const backend::MemorySpace& space) {
  const std::size_t least = std::max(size_of(tensor.dtype), space.alignment());
  return GuardedBuffer(tensor, space, seed % 2 == 0 ? 0 : least);
}

ConstBuffer in(const GuardedBuffer& buffer) { return {buffer.address(), buffer.bytes()}; }
Buffer out(GuardedBuffer& buffer) { return {buffer.address(), buffer.bytes()}; }

const OwnedOperand& find_input(const ProblemInputs& inputs, const std::string& name) {
  for (const OwnedOperand& operand : inputs.operands) {
    if (operand.name == name) return operand;
  }
  fail_argument("expected an input for operand '", name, "', found none");
}

}  // namespace

CheckMemory::CheckMemory(const AttentionProblem& given, const ProblemInputs& inputs, std::uint64_t seed,
                         const backend::MemorySpace& space)
    : CheckMemory(Completed{problem::with_implied_operands(given)}, inputs, seed, space) {}

CheckMemory::CheckMemory(const Completed& completed, const ProblemInputs& inputs, std::uint64_t seed,
                         const backend::MemorySpace& space)
    : q(buffer_for(tensor_of("q", completed.problem, TensorRole::kQ), seed, space)),
      k(buffer_for(tensor_of("k", completed.problem, TensorRole::kK), seed, space)),
      v(buffer_for(tensor_of("v", completed.problem, TensorRole::kV), seed, space)),
      d_o(buffer_for(tensor_of("d_o", completed.problem, TensorRole::kDO), seed, space)),
      o(buffer_for(tensor_of("o", completed.problem, TensorRole::kO), seed, space)),
      lse(buffer_for(lse_tensor(completed.problem), seed, space)),
      dq(buffer_for(tensor_of("dq", completed.problem, TensorRole::kDQ), seed, space)),
      dk(buffer_for(tensor_of("dk", completed.problem, TensorRole::kDK), seed, space)),
      dv(buffer_for(tensor_of("dv", completed.problem, TensorRole::kDV), seed, space)),
      with_gradient(problem::operands_with_gradient(completed.problem)) {
  if (completed.problem.max_logit) {
    StridedTensor tensor = lse_tensor(completed.problem);
    tensor.name = "max_logit";
    max_logit.emplace(buffer_for(tensor, seed, space));
  }
  const auto number = [&](const char* name) {
    return buffer_for(StridedTensor{name, DType::kF32, {}, {}}, seed, space);
  };
  if (completed.problem.amax_o) amax_o.emplace(number("amax_o"));
  for (const char* name : {"amax_dq", "amax_dk", "amax_dv"})
    if (completed.problem.amax_gradients) amax_gradients.push_back(number(name));
  q.hold(inputs.q);
  k.hold(inputs.k);
  v.hold(inputs.v);
  d_o.hold(inputs.d_o);
  for (std::uint32_t i = 0; i < completed.problem.program.operands().size(); ++i) {
    const OperandSpec& spec = problem::spec_of(completed.problem, i);
    operands.push_back(buffer_for(tensor_of(spec.name, spec), seed, space));
    operands.back().hold(find_input(inputs, spec.name).bytes);
    d_operands.push_back(buffer_for(tensor_of("d_" + spec.name, spec), seed, space));
  }
}

void CheckMemory::give_deltas(const AttentionProblem& completed, std::uint64_t seed,
                              const backend::MemorySpace& space) {
  namespace reference = backend::reference;
  const reference::InputTensors tensors = reference_inputs();
  std::vector<double> values = reference::load_dense<double>(completed, TensorRole::kO, o.data(), tensors.operands);
  const auto upstream = reference::load_dense<double>(completed, TensorRole::kDO, tensors.d_o, tensors.operands);
  std::mt19937_64 random(seed);
  const auto dim = static_cast<std::size_t>(completed.dim_v);
  for (std::size_t row = 0; row < values.size(); row += dim) {
    const double part = std::ldexp(static_cast<double>(random() >> 11), -52) - 1;
    double squares = 0;
    for (std::size_t d = 0; d < dim; ++d) squares += upstream[row + d] * upstream[row + d];
    if (!(squares > 0) || !std::isfinite(squares)) continue;
    for (std::size_t d = 0; d < dim; ++d) values[row + d] += part * upstream[row + d] / std::sqrt(squares);
  }
  const double scale = problem::StoredUnit(completed, TensorRole::kO).scale(tensors.operands);
  for (double& value : values) value *= scale;
  given_o.emplace(buffer_for(o.tensor(), seed, space));
  reference::store_dense(completed, TensorRole::kO, values, given_o->data(), tensors.operands);
  given_o->hold_as_is();
}

ForwardArgs CheckMemory::forward_args(const CallOptions& options) {
  return scoremod::forward_args(inputs(), outputs(), options);
}

BackwardArgs CheckMemory::backward_args(const CallOptions& options) {
  return scoremod::backward_args(inputs(), outputs(), options);
}

backend::reference::InputTensors CheckMemory::reference_inputs() {
  operand_data_.clear();
  for (const GuardedBuffer& operand : operands) operand_data_.push_back(operand.data());
  backend::reference::InputTensors tensors{q.data(), k.data(), v.data(), d_o.data(), operand_data_};
  if (given_o) {
    tensors.o = given_o->data();
    tensors.lse = reinterpret_cast<const float*>(lse.data());
  }
  return tensors;
}

std::vector<GuardedBuffer*> CheckMemory::all() {
  std::vector<GuardedBuffer*> list{&q, &k, &v, &d_o, &o, &lse, &dq, &dk, &dv};
  if (max_logit) list.push_back(&*max_logit);
  if (given_o) list.push_back(&*given_o);
  if (amax_o) list.push_back(&*amax_o);
  for (auto* group : {&amax_gradients, &operands, &d_operands}) {
    for (GuardedBuffer& buffer : *group) list.push_back(&buffer);
  }
  return list;
}

void CheckMemory::send() {
  for (GuardedBuffer* buffer : all()) buffer->send();
}

void CheckMemory::fetch() {
  for (GuardedBuffer* buffer : all()) buffer->fetch();
}

InputBuffers CheckMemory::inputs() const {
  InputBuffers buffers{in(q), in(k), in(v), in(d_o), {}};
  for (const GuardedBuffer& operand : operands) buffers.operands.push_back({operand.tensor().name, in(operand)});
  return buffers;
}

OutputBuffers CheckMemory::outputs() {
  OutputBuffers buffers{out(given_o ? *given_o : o), out(lse), out(dq), out(dk), out(dv), {}};
  if (max_logit) buffers.max_logit = out(*max_logit);
  if (amax_o) buffers.amax_o = out(*amax_o);
  if (!amax_gradients.empty()) {
    buffers.amax_dq = out(amax_gradients[0]);
    buffers.amax_dk = out(amax_gradients[1]);
    buffers.amax_dv = out(amax_gradients[2]);
  }
  for (const std::uint32_t i : with_gradient) {
    buffers.d_operands.push_back({operands[i].tensor().name, out(d_operands[i])});
  }
  return buffers;
}

}  // namespace scoremod::checking
