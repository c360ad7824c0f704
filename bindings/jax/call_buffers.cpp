#include "call_buffers.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "scoremod/error.hpp"

namespace scoremod::jax {
namespace {

namespace ffi = xla::ffi;

/// The positions of tensors in tensors_of().
enum TensorNumber : std::size_t { kQ, kK, kV, kO, kLse, kFirstOperand };
/// The positions of gradients in gradients_of().
enum GradientNumber : std::size_t { kDO, kDQ, kDK, kDV };

constexpr std::size_t kWorkspaceAlignment = 64;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kBug, what + "; the Python package and libscoremod_jax.so may be of different versions");
}

ffi::DataType xla_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ffi::DataType::F32;
    case DType::kF16: return ffi::DataType::F16;
    case DType::kBF16: return ffi::DataType::BF16;
    case DType::kI32: return ffi::DataType::S32;
    case DType::kBool: return ffi::DataType::PRED;
    case DType::kE4M3: return ffi::DataType::F8E4M3FN;
    case DType::kE5M2: return ffi::DataType::F8E5M2;
  }
  return ffi::DataType::INVALID;
}

template <class Dimensions>
std::string text_of(ffi::DataType dtype, const Dimensions& dimensions) {
  std::ostringstream text;
  text << dtype << "[";
  const char* separator = "";
  for (const std::int64_t size : dimensions) {
    text << separator << size;
    separator = ",";
  }
  text << "]";
  return text.str();
}

void check(const TensorInfo& tensor, const ffi::AnyBuffer& buffer) {
  const ffi::DataType dtype = xla_dtype(tensor.dtype);
  const ffi::AnyBuffer::Dimensions found = buffer.dimensions();
  const bool same_shape = std::equal(found.begin(), found.end(), tensor.shape.begin(), tensor.shape.end());
  if (same_shape && buffer.element_type() == dtype) return;
  fail("'" + tensor.name + "': expected " + text_of(dtype, tensor.shape) + ", found " +
       text_of(buffer.element_type(), found));
}

/// Takes the buffers of a call one after the other, and checks each against the problem.
class BufferReader {
 public:
  BufferReader(const std::vector<TensorInfo>& tensors, const ffi::RemainingArgs& arguments,
               const ffi::RemainingRets& results)
      : tensors_(tensors), arguments_(arguments), results_(results) {}

  void expect(std::size_t argument_count, std::size_t result_count) const {
    if (arguments_.size() == argument_count && results_.size() == result_count) return;
    fail("expected " + std::to_string(argument_count) + " arguments and " + std::to_string(result_count) +
         " results, found " + std::to_string(arguments_.size()) + " and " + std::to_string(results_.size()));
  }

  ConstBuffer argument(std::size_t tensor) { return argument(tensors_[tensor]); }
  ConstBuffer argument(const TensorInfo& tensor) {
    const auto buffer = arguments_.get<ffi::AnyBuffer>(next_argument_++);
    if (!buffer) fail(buffer.error().message());
    check(tensor, *buffer);
    return {buffer->untyped_data(), buffer->size_bytes()};
  }

  Buffer result(std::size_t tensor) { return result(tensors_[tensor]); }
  Buffer result(const TensorInfo& tensor) {
    auto buffer = results_.get<ffi::AnyBuffer>(next_result_++);
    if (!buffer) fail(buffer.error().message());
    check(tensor, **buffer);
    return {(*buffer)->untyped_data(), (*buffer)->size_bytes()};
  }

  /// The aligned part of the last result. Too small is as good as none: a program that was compiled where fewer bytes
  /// were needed, say with fewer CPU threads, still runs.
  Buffer workspace(std::size_t needed) {
    auto buffer = results_.get<ffi::AnyBuffer>(next_result_++);
    if (!buffer) fail(buffer.error().message());
    void* data = (*buffer)->untyped_data();
    std::size_t bytes = (*buffer)->size_bytes();
    return std::align(kWorkspaceAlignment, needed, data, bytes) == nullptr ? Buffer{} : Buffer{data, bytes};
  }

  std::vector<OperandBuffer> operands() {
    std::vector<OperandBuffer> operands;
    for (std::size_t i = kFirstOperand; i < tensors_.size(); ++i) {
      operands.push_back({tensors_[i].name, argument(i)});
    }
    return operands;
  }

 private:
  const std::vector<TensorInfo>& tensors_;
  const ffi::RemainingArgs& arguments_;
  const ffi::RemainingRets& results_;
  std::size_t next_argument_ = 0;
  std::size_t next_result_ = 0;
};

std::size_t operand_count(const std::vector<TensorInfo>& tensors) { return tensors.size() - kFirstOperand; }

}  // namespace

ForwardCall forward_call(const Prepared& prepared, const std::vector<TensorInfo>& tensors,
                         const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  const AttentionProblem& problem = prepared.attention->problem();
  BufferReader reader(tensors, arguments, results);
  const std::size_t rows = (problem.stats ? 1 : 0) + (problem.max_logit ? 1 : 0);
  reader.expect(3 + operand_count(tensors), 2 + rows + (problem.amax_o ? 1 : 0));
  ForwardArgs args;
  args.q = reader.argument(kQ);
  args.k = reader.argument(kK);
  args.v = reader.argument(kV);
  args.operands = reader.operands();
  args.o = reader.result(kO);
  if (problem.stats) args.lse = reader.result(kLse);
  if (problem.max_logit) args.max_logit = reader.result(kLse);
  if (problem.amax_o) args.amax_o = reader.result({"amax_o", DType::kF32, {}, {}, "", sizeof(float), false});
  return {std::move(args), reader.workspace(prepared.forward_workspace)};
}

BackwardCall backward_call(const Prepared& prepared, const std::vector<TensorInfo>& tensors,
                           const std::vector<TensorInfo>& gradients, const ffi::RemainingArgs& arguments,
                           const ffi::RemainingRets& results, ffi::Span<const std::int64_t> wanted) {
  BufferReader reader(tensors, arguments, results);
  reader.expect(6 + operand_count(tensors), 4 + wanted.size());
  BackwardArgs args;
  args.q = reader.argument(kQ);
  args.k = reader.argument(kK);
  args.v = reader.argument(kV);
  args.o = reader.argument(kO);
  args.lse = reader.argument(kLse);
  args.d_o = reader.argument(gradients[kDO]);
  args.operands = reader.operands();
  args.dq = reader.result(gradients[kDQ]);
  args.dk = reader.result(gradients[kDK]);
  args.dv = reader.result(gradients[kDV]);
  for (const std::int64_t number : wanted) {
    if (number < 0 || static_cast<std::size_t>(number) >= operand_count(tensors)) fail("no such operand gradient");
    const std::size_t tensor = kFirstOperand + static_cast<std::size_t>(number);
    args.d_operands.push_back({tensors[tensor].name, reader.result(tensor)});
  }
  return {std::move(args), reader.workspace(prepared.backward_workspace)};
}

std::size_t workspace_bytes(const ffi::RemainingRets& results) {
  if (results.size() == 0) fail("expected results, found none");
  auto buffer = results.get<ffi::AnyBuffer>(results.size() - 1);
  if (!buffer) fail(buffer.error().message());
  const std::size_t bytes = (*buffer)->size_bytes();
  return bytes < kWorkspaceAlignment ? 0 : bytes - (kWorkspaceAlignment - 1);
}

}  // namespace scoremod::jax
