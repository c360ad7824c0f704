#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/strip.hpp"
#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::backend::cpu {

/// Local indices first <= i < last.
struct IndexSpan {
  std::int64_t first = 0, last = 0;
  bool empty() const { return first >= last; }
};

/// The least and greatest values of operands within a box of elements, read from memory. Operands that vary over both
/// queries and keys are not read, because that would cost as much as evaluating the mask.
class OperandSlices final : public masks::OperandRanges {
 public:
  OperandSlices(const Program& program, std::span<const OperandView> operands, std::int64_t seq_kv);

  void begin_head(std::int64_t batch, std::int64_t head);
  void set_box(IndexSpan queries, IndexSpan keys);

  analysis::ValueRange broadcast(std::uint32_t operand, Type type) const override;
  analysis::ValueRange table(std::uint32_t operand, Type type,
                             std::span<const analysis::ValueRange> indices) const override;

 private:
  const Program& program_;
  std::span<const OperandView> operands_;
  std::int64_t seq_kv_;
  std::int64_t batch_ = 0, head_ = 0;
  IndexSpan queries_, keys_;
  /// For each operand that varies over keys alone and is part of the mask: the range of each run of kRun keys.
  std::vector<std::vector<analysis::ValueRange>> runs_;
};

}  // namespace scoremod::backend::cpu
