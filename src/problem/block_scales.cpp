#include "problem/block_scales.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::problem {
namespace {

std::array<std::int64_t, 4> extents_of(const TensorShape& shape) {
  return {shape.batch, shape.heads, shape.sequence, shape.dim};
}

}  // namespace

std::vector<std::int64_t> scale_extents(const TensorShape& tensor, std::size_t dimension) {
  const std::int64_t elements = extents_of(tensor).at(dimension);
  const bool has_blocks = dimension >= 2;
  std::vector<std::int64_t> extents{elements};
  if (has_blocks && elements != kOpenSize) extents.push_back((elements + kScaleBlock - 1) / kScaleBlock);
  extents.push_back(1);
  extents.erase(std::unique(extents.begin(), extents.end()), extents.end());
  return extents;
}

bool fits_block_scales(const AttentionProblem& problem, TensorRole role, std::span<const std::int64_t> shape) {
  const TensorShape tensor = memory_shape_of(problem, role);
  if (shape.size() != extents_of(tensor).size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == kOpenSize) continue;
    const std::vector<std::int64_t> known = scale_extents(tensor, i);
    if (std::ranges::find(known, shape[i]) == known.end()) return false;
  }
  return true;
}

BlockScales::BlockScales(const AttentionProblem& problem, TensorRole role) : rows_(problem, role) {
  const auto number = operand_number(problem.program, descale_of(role));
  if (!number) fail_bug("block scales of a problem whose program does not declare '", descale_of(role), "'");
  operand_ = *number;
  const OperandSpec& spec = spec_of(problem, operand_);
  const auto strides = strides_of(spec);
  const std::array<std::int64_t, 4> tensor = extents_of(rows_.memory_shape());
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const bool is_shared = spec.shape.at(i) == 1;
    places_.steps[i] = is_shared ? 0 : strides[i];
    if (is_shared) places_.per_scale[i] = std::max<std::int64_t>(tensor[i], 1);
    if (!is_shared && spec.shape[i] != tensor[i]) places_.per_scale[i] = kScaleBlock;
  }
}

RowScales BlockScales::of(std::int64_t batch, std::int64_t head, std::span<const void* const> operands) const {
  const auto& [steps, per_scale] = places_;
  RowScales scales{.first = static_cast<const float*>(operands[operand_]) + head * steps[1],
                   .row_step = steps[2],
                   .rows_per_scale = per_scale[2],
                   .element_step = steps[3],
                   .elements_per_scale = per_scale[3]};
  if (rows_.offsets()) {
    scales.first_row = *rows_.offsets()->at(operands, batch);
  } else if (rows_.pages()) {
    scales.table = {rows_.pages()->at(operands, batch), rows_.pages()->inner, rows_.memory_shape().sequence, steps[0]};
  } else {
    scales.first += batch * steps[0];
  }
  return scales;
}

std::vector<std::int64_t> resized_block_scales(std::span<const std::int64_t> scales, const TensorShape& before,
                                               const TensorShape& after) {
  const std::array<std::int64_t, 4> from = extents_of(before), to = extents_of(after);
  std::vector<std::int64_t> resized;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const bool is_shared = scales[i] == 1, has_each = scales[i] == from[i];
    resized.push_back(is_shared ? 1 : has_each ? to[i] : (to[i] + kScaleBlock - 1) / kScaleBlock);
  }
  return resized;
}

std::optional<BlockScales> block_scales_of(const AttentionProblem& problem, TensorRole role) {
  if (!has_block_scales(problem, descale_of(role))) return std::nullopt;
  return BlockScales(problem, role);
}

}  // namespace scoremod::problem
