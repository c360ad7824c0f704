// The part of ProgramLowering that gives cuDNN tensors: operands of the program, and nodes that are computed
// beforehand.

#include <algorithm>
#include <utility>

#include "backend/cudnn/lowering/lower_program.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {

Value ProgramLowering::operand(std::uint32_t number) {
  const OperandDecl& decl = program_.operands()[number];
  const OperandSpec& spec = problem::spec_of(problem_.problem, number);
  OperandTensor tensor{decl.axes, {}, spec.dtype};
  const auto strides = problem::strides_of(spec);
  std::size_t next = 0;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if (decl.axes[i]) tensor.strides[i] = strides[next++];
  }
  if (const auto value = bind(tensor, {TensorBinding::Kind::kOperand, number, Axis::kBatch}, decl.type)) return *value;
  throw NoPattern{concat("operand '", decl.name, "' of type ", to_string(spec.dtype),
                         ": no way to pass it to cuDNN is known to be right on this architecture and cuDNN version")};
}

/// The first allowed pattern of a tensor.
std::optional<Value> ProgramLowering::bind(const OperandTensor& tensor, const TensorBinding& binding, Type type) {
  for (const OperandPattern& pattern : operand_patterns(tensor, sizes_, options_.backward)) {
    const bool is_row = is_row_vector(pattern.tensor);
    const bool lifts = is_row && row_vectors_ == RowVectors::kLifted;
    if (!is_allowed(tensor, pattern) || (is_row && row_vectors_ == RowVectors::kNone)) continue;
    if (lifts && !writer_.allowed(row_vector_pattern(lifted_ + 1))) continue;
    writer_.use(pattern.name);
    const Value value = writer_.tensor(pattern.tensor, binding, type);
    if (!lifts) return value;
    ++lifted_;
    return writer_.lift(value);
  }
  return std::nullopt;
}

/// With one query row and grouped heads, cuDNN 9.19 reads a tensor along heads but not keys wrongly as soon as there is
/// another operand.
bool ProgramLowering::is_allowed(const OperandTensor& tensor, const OperandPattern& pattern) const {
  const auto varies = [&](Axis axis) { return tensor.axes[static_cast<std::size_t>(axis)]; };
  const bool of_heads = problem_.problem.seq_q == 1 && varies(Axis::kHead) && !varies(Axis::kKey);
  return writer_.allowed(pattern.name) && (!of_heads || writer_.allowed("operand.of_heads.beside_another"));
}

/// Dense along the node's axes; where that has no pattern, along the smallest set of axes around them that has one.
Value ProgramLowering::bind_computed(NodeId id) {
  const Type type = program_.nodes()[id].type;
  const DType dtype = type == Type::kF32 ? DType::kF32 : DType::kI32;
  std::vector<std::pair<double, OperandTensor>> shapes;
  constexpr unsigned kSubsets = 1u << kAxisCount;
  for (unsigned added = 0; added < kSubsets; ++added) {
    std::array<bool, kAxisCount> axes = dependence_[id].axes;
    bool is_new = true;
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      const bool adds = (added >> i) & 1u;
      is_new = is_new && !(adds && axes[i]);
      axes[i] = axes[i] || adds;
    }
    if (is_new) shapes.emplace_back(usual_elements(axes, sizes_), dense_operand(axes, sizes_, dtype));
  }
  std::ranges::stable_sort(shapes, {}, [](const auto& shape) { return shape.first; });
  const auto number = static_cast<std::uint32_t>(out_.computed.size());
  for (const auto& [elements, tensor] : shapes) {
    const auto value = bind(tensor, {TensorBinding::Kind::kComputed, number, Axis::kBatch}, type);
    if (!value) continue;
    out_.computed.push_back({id, tensor.axes, type});
    return *value;
  }
  throw NoPattern{concat("a tensor of type ", to_string(dtype),
                         " computed beforehand: no shape is known to be right on this architecture and cuDNN version")};
}
}  // namespace scoremod::backend::cudnn
