#include "runtime/empty_calls.hpp"

#include <limits>
#include <string>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "runtime/call_tensors.hpp"

namespace scoremod::runtime {
namespace {

using problem::StridedTensor;
using problem::TensorRole;

/// Writes outputs of one memory, of which only the host's has elements.
class Writer {
 public:
  explicit Writer(const backend::MemorySpace& memory) : memory_(memory.kind()) {}

  /// Null where the call does not want it.
  void fill(const StridedTensor& tensor, void* data, double number) const {
    fill_by(tensor, data, [number](std::int64_t) { return number; });
  }
  /// By the number of an element in dense order.
  template <class NumberAt>
  void fill_by(const StridedTensor& tensor, void* data, const NumberAt& number_at) const {
    if (data == nullptr || tensor.elements() == 0) return;
    if (memory_ != MemoryKind::kHost) {
      fail_unsupported("'", tensor.name, "': expected an output without elements, since no backend writes in ",
                       to_string(memory_), " memory where the problem has a size of 0; found ", tensor.elements(),
                       " elements; fill it without scoremod, or leave out such calls");
    }
    tensor.for_each_offset(
        [&](std::int64_t i, std::int64_t offset) { store_element(data, tensor.dtype, offset, number_at(i)); });
  }

 private:
  MemoryKind memory_;
};

/// The LSE of a row without a key: all that its sum has is the sink.
template <class Write>
void with_row_lse(const AttentionProblem& problem, const std::vector<const void*>& operands, const Write& write) {
  const auto none = [](std::int64_t) { return -std::numeric_limits<double>::infinity(); };
  if (problem.sink == Sink::kNone) return write(none);
  const auto sink = problem::sink_operand(problem);
  if (!sink) return write([](std::int64_t) { return 0.0; });
  const OperandSpec& spec = problem::spec_of(problem, *sink);
  const std::int64_t stride = problem::strides_of(spec)[0];
  write([&, stride](std::int64_t row) {
    const std::int64_t head = row / problem.seq_q % problem.heads_q;
    return load_element<double>(operands[*sink], spec.dtype, head * stride);
  });
}

/// With the o and LSE of more keys than the problem's, a sink's weight is not that of its own rows.
void refuse_given_deltas(const AttentionProblem& problem, const BackwardCall& call) {
  const auto sink = problem::sink_operand(problem);
  const bool has_rows = problem::lse_tensor(problem).elements() > 0;
  if (!problem.given_deltas || !has_rows || !sink || call.d_operands[*sink] == nullptr) return;
  fail_unsupported("the gradient of operand '", problem::kSinkOperand,
                   "': expected none in a call without keys of a problem with given_deltas, found one; leave it out");
}

}  // namespace

void run_empty(const AttentionProblem& problem, const ForwardArgs& args, Buffer workspace,
               const backend::MemorySpace& memory) {
  const ForwardCall call = check_call(problem, args, workspace, 0, memory);
  const Writer write(memory);
  const StridedTensor rows = problem::lse_tensor(problem);
  write.fill(problem::tensor_of("o", problem, TensorRole::kO), call.tensors.o, 0);
  with_row_lse(problem, call.operands, [&](const auto& lse_of) { write.fill_by(rows, call.tensors.lse, lse_of); });
  write.fill(rows, call.tensors.max_logit, -std::numeric_limits<double>::infinity());
  write.fill({"amax_o", DType::kF32, {}, {}}, call.tensors.amax_o, 0);
}

void run_empty(const AttentionProblem& problem, const BackwardArgs& args, Buffer workspace,
               const backend::MemorySpace& memory) {
  const BackwardCall call = check_call(problem, args, workspace, 0, memory);
  refuse_given_deltas(problem, call);
  const Writer write(memory);
  write.fill(problem::tensor_of("dq", problem, TensorRole::kDQ), call.tensors.dq, 0);
  write.fill(problem::tensor_of("dk", problem, TensorRole::kDK), call.tensors.dk, 0);
  write.fill(problem::tensor_of("dv", problem, TensorRole::kDV), call.tensors.dv, 0);
  for (float* amax : {call.tensors.amax_dq, call.tensors.amax_dk, call.tensors.amax_dv})
    write.fill({"the largest magnitude of a gradient", DType::kF32, {}, {}}, amax, 0);
  for (std::uint32_t i = 0; i < call.d_operands.size(); ++i) {
    const OperandSpec& spec = problem::spec_of(problem, i);
    write.fill(problem::tensor_of("d_" + spec.name, spec), call.d_operands[i], 0);
  }
}

}  // namespace scoremod::runtime
