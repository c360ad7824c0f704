#include "backend/cpu/operand_views.hpp"

#include <limits>

#include "problem/tensor_view.hpp"

namespace scoremod::backend::cpu {
namespace {

bool fits_i32(const OperandSpec& spec, const std::array<std::int64_t, kMaxTableRank>& strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] > std::numeric_limits<std::int32_t>::max() ||
        strides[i] > std::numeric_limits<std::int32_t>::max()) {
      return false;
    }
    last += (spec.shape[i] - 1) * strides[i];
  }
  return last <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace

std::vector<OperandView> operand_views(const AttentionProblem& problem) {
  std::vector<OperandView> views;
  for (std::uint32_t number = 0; number < problem.program.operands().size(); ++number) {
    const OperandDecl& decl = problem.program.operands()[number];
    const OperandSpec& spec = problem::spec_of(problem, number);
    const auto strides = problem::strides_of(spec);
    OperandView view;
    view.dtype = spec.dtype;
    view.table_rank = decl.table_rank;
    if (decl.is_table()) {
      for (std::size_t i = 0; i < spec.shape.size(); ++i) view.extents[i] = spec.shape[i];
      view.table_strides = strides;
      view.narrow = fits_i32(spec, strides);
    } else {
      std::size_t dimension = 0;
      for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
        if (decl.axes[axis]) view.axis_strides[axis] = strides[dimension++];
      }
    }
    views.push_back(view);
  }
  return views;
}

std::vector<OperandView> with_data(const std::vector<OperandView>& views, std::span<const void* const> data) {
  std::vector<OperandView> bound = views;
  for (std::size_t i = 0; i < bound.size(); ++i) bound[i].data = data[i];
  return bound;
}

}  // namespace scoremod::backend::cpu
