#include "scoremod/tensors.hpp"

#include "base/fail.hpp"
#include "ir/op_table.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod {
namespace problem {
namespace {

TensorInfo role_info(const AttentionProblem& problem, TensorRole role) {
  const TensorShape shape = memory_shape_of(problem, role);
  const Strides strides = strides_of(problem, role);
  TensorInfo info{to_string(role),
                  dtype_of(problem, role),
                  {},
                  {},
                  to_string(layout_of(problem, role).layout),
                  bytes_of(problem, role),
                  false};
  const bool is_input = role == TensorRole::kQ || role == TensorRole::kK || role == TensorRole::kV;
  info.has_gradient = problem.backward && is_input;
  const auto add = [&](std::int64_t size, std::int64_t stride) {
    info.shape.push_back(size);
    info.strides.push_back(stride);
  };
  for (const char dimension : info.dimensions) {
    if (dimension == 'B') add(shape.batch, strides.batch);
    if (dimension == 'H') add(shape.heads, strides.head);
    if (dimension == 'S' || dimension == 'T') add(shape.sequence, strides.sequence);
    if (dimension == 'D') add(shape.dim, strides.dim);
  }
  return info;
}

TensorInfo lse_info(const AttentionProblem& problem) {
  const StridedTensor lse = lse_tensor(problem);
  return {"lse", lse.dtype, lse.shape, lse.strides, problem.tokens_q ? "TH" : "BHS", lse.bytes(), false};
}

std::string dimensions_of(const OperandDecl& decl) {
  if (decl.is_table()) return "table";
  std::string axes;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if (decl.axes[i]) axes += concat(axes.empty() ? "" : ", ", ir::axis_name(static_cast<Axis>(i)));
  }
  return axes;
}

TensorInfo operand_info(const AttentionProblem& problem, std::uint32_t number) {
  const OperandSpec& spec = spec_of(problem, number);
  const auto strides = strides_of(spec);
  const auto rank = static_cast<std::ptrdiff_t>(spec.shape.size());
  return {spec.name,
          spec.dtype,
          spec.shape,
          {strides.begin(), strides.begin() + rank},
          dimensions_of(problem.program.operands()[number]),
          bytes_of(spec),
          problem.backward && spec.has_gradient()};
}

}  // namespace
}  // namespace problem

std::vector<TensorInfo> tensors_of(const AttentionProblem& given) {
  using problem::TensorRole;
  validate(given);
  const AttentionProblem problem = problem::with_implied_operands(given);
  std::vector<TensorInfo> tensors;
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO})
    tensors.push_back(problem::role_info(problem, role));
  tensors.push_back(problem::lse_info(problem));
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) {
    tensors.push_back(problem::operand_info(problem, i));
  }
  return tensors;
}

std::vector<TensorInfo> gradients_of(const AttentionProblem& problem) {
  using problem::TensorRole;
  validate(problem);
  std::vector<TensorInfo> gradients;
  for (const TensorRole role : {TensorRole::kDO, TensorRole::kDQ, TensorRole::kDK, TensorRole::kDV})
    gradients.push_back(problem::role_info(problem, role));
  return gradients;
}

}  // namespace scoremod
