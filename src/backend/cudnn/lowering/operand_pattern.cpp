#include "backend/cudnn/lowering/operand_pattern.hpp"

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

using Sizes = std::array<std::int64_t, kAxisCount>;

ModifierTensor tensor_of(const OperandTensor& operand, const Sizes& sizes, bool with_rows) {
  ModifierTensor tensor;
  tensor.dtype = operand.dtype;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    const bool row_of_stride_0 = with_rows && i == static_cast<std::size_t>(Axis::kQuery);
    tensor.dims[i] = operand.axes[i] || row_of_stride_0 ? sizes[i] : 1;
    tensor.strides[i] = operand.axes[i] ? operand.strides[i] : row_of_stride_0 ? 0 : 1;
  }
  return tensor;
}

bool is_dense(const OperandTensor& operand, const Sizes& sizes) {
  const OperandTensor dense = dense_operand(operand.axes, sizes, operand.dtype);
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if (operand.axes[i] && sizes[i] > 1 && operand.strides[i] != dense.strides[i]) return false;
  }
  return true;
}

}  // namespace

double usual_elements(const std::array<bool, kAxisCount>& axes, const Sizes& sizes) {
  constexpr std::array<double, kAxisCount> kUsual{4, 16, 4096, 4096};
  double elements = 1;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if (axes[i] && sizes[i] != 1) elements *= kUsual[i];
  }
  return elements;
}

OperandTensor dense_operand(const std::array<bool, kAxisCount>& axes, const Sizes& sizes, DType dtype) {
  OperandTensor operand{axes, {}, dtype};
  std::int64_t stride = 1;
  for (std::size_t i = kAxisCount; i-- > 0;) {
    if (!axes[i]) continue;
    operand.strides[i] = stride;
    stride *= sizes[i];
  }
  return operand;
}

bool is_row_vector(const ModifierTensor& tensor) {
  return tensor.dims[static_cast<std::size_t>(Axis::kQuery)] > 1 &&
         tensor.dims[static_cast<std::size_t>(Axis::kKey)] == 1;
}

/// With size 1 along the axes that it does not vary along, or with rows of stride 0. cuDNN 9.19 reads B,1,1,1 and
/// B,H,1,1 wrongly (from the second row on). In backward it also reads tensors that vary along kv but not along q
/// wrongly. Rows of stride 0 cure both. If the plain way is right it is the faster one.
///
/// An axis of size 1 counts as one that the operand does not vary along: the shapes are then the same. (A single query
/// row has a table of its own, in which the query axis keeps its name.)
std::vector<OperandPattern> operand_patterns(const OperandTensor& declared, const Sizes& sizes, bool backward) {
  OperandTensor operand = declared;
  for (const Axis axis : {Axis::kBatch, Axis::kHead, Axis::kKey}) {
    const auto i = static_cast<std::size_t>(axis);
    operand.axes[i] = operand.axes[i] && sizes[i] > 1;
  }
  const auto [batch, head, query, key] = operand.axes;
  const bool scalar = !batch && !head && !query && !key;
  const std::string name = concat("operand.", batch ? 'b' : '1', head ? 'h' : '1', query ? 'q' : '1', key ? 'k' : '1',
                                  ".", to_string(operand.dtype), is_dense(operand, sizes) ? "" : ".strided");
  const bool needs_rows = !query && (batch || scalar || (key && backward));
  if (!needs_rows) return {{name, tensor_of(operand, sizes, false)}};
  const OperandPattern with_rows{name, tensor_of(operand, sizes, true)};
  return {{name + ".as_declared", tensor_of(operand, sizes, false)}, with_rows};
}

}  // namespace scoremod::backend::cudnn
