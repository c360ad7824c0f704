#include "scoremod/tensors.hpp"

#include "base/fail.hpp"
#include "ir/op_table.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod {
namespace problem {
namespace {

TensorInfo role_info(const AttentionProblem& problem, TensorRole role, const TensorLayout& layout) {
  const TensorShape shape = shape_of(problem, role);
  const Strides strides = strides_of(problem, role);
  TensorInfo info{to_string(role), problem.dtype, {}, {}, to_string(layout.layout), bytes_of(problem, role), false};
  info.has_gradient = problem.backward && role != TensorRole::kO;
  const auto add = [&](std::int64_t size, std::int64_t stride) {
    info.shape.push_back(size);
    info.strides.push_back(stride);
  };
  for (const char dimension : info.dimensions) {
    if (dimension == 'B') add(shape.batch, strides.batch);
    if (dimension == 'H') add(shape.heads, strides.head);
    if (dimension == 'S') add(shape.sequence, strides.sequence);
    if (dimension == 'D') add(shape.dim, strides.dim);
  }
  return info;
}

TensorInfo lse_info(const AttentionProblem& problem) {
  const std::int64_t rows = problem.batch * problem.heads_q * problem.seq_q;
  return {"lse",
          DType::kF32,
          {problem.batch, problem.heads_q, problem.seq_q},
          {problem.heads_q * problem.seq_q, problem.seq_q, 1},
          "BHS",
          static_cast<std::size_t>(rows) * sizeof(float),
          false};
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
  std::vector<TensorInfo> tensors{problem::role_info(problem, TensorRole::kQ, problem.q),
                                  problem::role_info(problem, TensorRole::kK, problem.k),
                                  problem::role_info(problem, TensorRole::kV, problem.v),
                                  problem::role_info(problem, TensorRole::kO, problem.o), problem::lse_info(problem)};
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) {
    tensors.push_back(problem::operand_info(problem, i));
  }
  return tensors;
}

}  // namespace scoremod
