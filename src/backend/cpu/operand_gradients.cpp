#include "backend/cpu/operand_gradients.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cpu/row_kernels.hpp"
#include "base/element.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr auto kB = static_cast<std::size_t>(Axis::kBatch);
constexpr auto kH = static_cast<std::size_t>(Axis::kHead);
constexpr auto kQ = static_cast<std::size_t>(Axis::kQuery);
constexpr auto kK = static_cast<std::size_t>(Axis::kKey);

GradientTarget make_target(const compiler::OperandReduction& reduction, const OperandView& view) {
  const GradientKind kind = reduction.scattered           ? GradientKind::kTable
                            : reduction.has(Axis::kQuery) ? GradientKind::kByQuery
                                                          : GradientKind::kShared;
  return {reduction, kind, nullptr, view};
}

/// Strides of a dense tensor with these extents, 0 along extents of 1.
std::array<std::int64_t, kAxisCount> dense_strides(const std::array<std::int64_t, kAxisCount>& extents) {
  std::array<std::int64_t, kAxisCount> strides{};
  std::int64_t stride = 1;
  for (std::size_t axis = kAxisCount; axis-- > 0;) {
    strides[axis] = extents[axis] == 1 ? 0 : stride;
    stride *= extents[axis];
  }
  return strides;
}

/// Calls body(number in dense order, offset in the operand) for every entry.
template <class Body>
void for_each_entry(const GradientTarget& target, const Body& body) {
  const auto& strides = target.scattered ? target.view.table_strides : target.view.axis_strides;
  const auto& sizes = target.extents;
  std::int64_t number = 0;
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    for (std::int64_t j = 0; j < sizes[1]; ++j) {
      for (std::int64_t k = 0; k < sizes[2]; ++k) {
        const std::int64_t first = i * strides[0] + j * strides[1] + k * strides[2];
        for (std::int64_t l = 0; l < sizes[3]; ++l) body(number++, first + l * strides[3]);
      }
    }
  }
}

std::int64_t at(const std::array<std::int64_t, kAxisCount>& strides, std::int64_t b, std::int64_t h, std::int64_t q,
                std::int64_t kv) {
  return b * strides[kB] + h * strides[kH] + q * strides[kQ] + kv * strides[kK];
}

}  // namespace

OperandGradients::OperandGradients(std::span<const compiler::OperandReduction> reductions,
                                   std::span<const OperandView> views, std::span<void* const> data, Scratch& scratch) {
  for (const compiler::OperandReduction& reduction : reductions) {
    const std::uint32_t operand = reduction.operand;
    if (!data.empty() && data[operand] == nullptr) continue;
    GradientTarget target = make_target(reduction, views[operand]);
    target.data = data.empty() ? nullptr : data[operand];
    const auto entries = static_cast<std::size_t>(target.entries());
    if (target.kind != GradientKind::kByQuery) {
      target.sums = scratch.take<double>(entries);
    } else if (target.view.dtype == DType::kF32) {
      target.rows = static_cast<float*>(target.data);
      target.row_strides = target.view.axis_strides;
    } else {
      target.rows = scratch.take<float>(entries);
      target.row_strides = dense_strides(target.extents);
    }
    targets_.push_back(target);
  }
}

void OperandGradients::clear() const {
  for (const GradientTarget& target : targets_) {
    if (target.sums != nullptr) {
      std::fill_n(target.sums, target.entries(), 0.0);
    } else if (target.rows != target.data) {
      std::fill_n(target.rows, target.entries(), 0.0f);
    } else {
      for_each_entry(target, [&](std::int64_t, std::int64_t offset) { target.rows[offset] = 0; });
    }
  }
}

void OperandGradients::finish() const {
  for (const GradientTarget& target : targets_) {
    if (target.rows != nullptr && target.rows == target.data) continue;
    for_each_entry(target, [&](std::int64_t number, std::int64_t offset) {
      const double sum = target.sums != nullptr ? target.sums[number] : double{target.rows[number]};
      store_element(target.data, target.view.dtype, offset, sum);
    });
  }
}

bool OperandGradients::heads_share_rows() const {
  return std::ranges::any_of(targets_, [](const GradientTarget& target) {
    return target.kind == GradientKind::kByQuery && !(target.has(Axis::kBatch) && target.has(Axis::kHead));
  });
}

OperandGradientWorker::OperandGradientWorker(const OperandGradients& gradients, const VectorProgram& program,
                                             std::int64_t group, std::size_t rows, std::size_t columns,
                                             Scratch& scratch)
    : group_(group), rows_(rows), columns_(columns), stride_(round_up(columns, kLanePadding) + kLanePadding) {
  for (const GradientTarget& target : gradients.targets()) {
    Part part;
    part.target = &target;
    for (const OperandContribution& contribution : program.contributions) {
      if (contribution.operand == target.operand) part.contributions.push_back(contribution);
    }
    if (part.contributions.empty()) continue;
    const std::size_t heads = target.has(Axis::kHead) ? static_cast<std::size_t>(group) : 1;
    const std::size_t keys = target.has(Axis::kKey) ? columns : 1;
    if (target.kind == GradientKind::kByQuery) {
      part.block = scratch.take<float>(rows * (target.has(Axis::kKey) ? stride_ : 1));
    } else {
      part.count = target.kind == GradientKind::kTable ? static_cast<std::size_t>(target.entries()) : heads * keys;
      part.sums = scratch.take<double>(part.count);
    }
    parts_.push_back(part);
  }
  masked_ = scratch.take<float>(stride_);
}

void OperandGradientWorker::begin_unit() {
  for (const Part& part : parts_) {
    if (part.sums != nullptr) std::fill_n(part.sums, part.count, 0.0);
  }
}

void OperandGradientWorker::begin_block() {
  for (const Part& part : parts_) {
    if (part.block != nullptr) std::fill_n(part.block, rows_ * (part.target->has(Axis::kKey) ? stride_ : 1), 0.0f);
  }
}

void OperandGradientWorker::add_row(const TileProgram& program, const GradientTile& tile, std::size_t row,
                                    std::size_t column, std::size_t count, const float* probabilities) {
  for (const Part& part : parts_) {
    for (const OperandContribution& contribution : part.contributions) {
      keep_where_probable(program.at(contribution.value), probabilities, count, masked_);
      const bool by_key = part.target->has(Axis::kKey);
      if (part.target->kind == GradientKind::kTable) {
        scatter(part, contribution, program, count);
      } else if (part.block != nullptr) {
        if (by_key)
          add_to(masked_, count, part.block + row * stride_ + column);
        else
          part.block[row] += sum_of(masked_, count);
      } else {
        const std::int64_t head = part.target->has(Axis::kHead) ? tile.head % group_ : 0;
        double* sums = part.sums + static_cast<std::size_t>(head) * (by_key ? columns_ : 1);
        if (by_key) {
          for (std::size_t j = 0; j < count; ++j) sums[column + j] += double{masked_[j]};
        } else {
          *sums += double{sum_of(masked_, count)};
        }
      }
    }
  }
}

void OperandGradientWorker::scatter(const Part& part, const OperandContribution& contribution,
                                    const TileProgram& program, std::size_t count) const {
  const OperandView& view = part.target->view;
  for (std::size_t j = 0; j < count; ++j) {
    if (masked_[j] == 0) continue;
    std::int64_t entry = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(view.table_rank); ++k) {
      const LaneSource source = program.at(contribution.indices[k]);
      std::int32_t index = 0;
      std::memcpy(&index, source.data + (source.broadcast ? 0 : j), sizeof(index));
      entry = entry * view.extents[k] + std::clamp<std::int64_t>(index, 0, view.extents[k] - 1);
    }
    part.sums[entry] += double{masked_[j]};
  }
}

void OperandGradientWorker::commit_block(const GradientTile& tile) {
  for (const Part& part : parts_) {
    if (part.block == nullptr) continue;
    const GradientTarget& target = *part.target;
    const auto& strides = target.row_strides;
    for (std::size_t r = 0; r < tile.rows; ++r) {
      float* out =
          target.rows + at(strides, tile.batch, tile.head, tile.query + static_cast<std::int64_t>(r), tile.key);
      if (!target.has(Axis::kKey)) {
        *out += part.block[r];
      } else if (strides[kK] == 1) {
        add_to(part.block + r * stride_, tile.columns, out);
      } else {
        for (std::size_t j = 0; j < tile.columns; ++j)
          out[static_cast<std::int64_t>(j) * strides[kK]] += part.block[r * stride_ + j];
      }
    }
  }
}

void OperandGradientWorker::commit_unit(std::int64_t batch, std::int64_t head_kv, std::int64_t key,
                                        std::size_t columns) {
  for (const Part& part : parts_) {
    if (part.sums == nullptr) continue;
    const GradientTarget& target = *part.target;
    if (target.kind == GradientKind::kTable) {
      for (std::size_t i = 0; i < part.count; ++i) target.sums[i] += part.sums[i];
      continue;
    }
    const auto strides = dense_strides(target.extents);
    const std::int64_t heads = target.has(Axis::kHead) ? group_ : 1;
    const std::size_t keys = target.has(Axis::kKey) ? columns : 1;
    for (std::int64_t g = 0; g < heads; ++g) {
      double* out = target.sums + at(strides, batch, head_kv * group_ + g, 0, key);
      const double* from = part.sums + static_cast<std::size_t>(g) * (target.has(Axis::kKey) ? columns_ : 1);
      for (std::size_t j = 0; j < keys; ++j) out[j] += from[j];
    }
  }
}

}  // namespace scoremod::backend::cpu
