#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/program.hpp"

#include "ir/scalar_eval.hpp"
#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::test {

/// b, h, q_idx and kv_idx of one element.
using Element4 = std::array<std::int32_t, kAxisCount>;

/// Operand values that are a function of a seed and the place in the tensor. i32 are from -3 to 9, f32 are such values
/// or halves and now and then NaN or inf, and bool are either. Tables have kExtent entries in each dimension.
class MaskData {
 public:
  static constexpr std::int32_t kExtent = 5;

  MaskData(const Program& program, std::uint64_t seed) : program_(program), seed_(seed) {}

  ir::Scalar<float> operand(std::uint32_t number, const Element4& at) const;
  ir::Scalar<float> table(std::uint32_t number, std::span<const std::int32_t> indices) const;

  /// The value of every node at one element, by ir::eval_op; score is the value of kScore.
  std::vector<ir::Scalar<float>> evaluate(const Element4& at, float score = 0) const;
  bool keep(const Element4& at) const;

 private:
  ir::Scalar<float> value(std::uint32_t number, std::uint64_t place) const;

  const Program& program_;
  std::uint64_t seed_;
};

/// The ranges of MaskData's operands within one tile, found by looking at each entry.
class MaskDataRanges : public masks::OperandRanges {
 public:
  MaskDataRanges(const MaskData& data, const analysis::IndexBox& tile) : data_(data), tile_(tile) {}
  analysis::ValueRange broadcast(std::uint32_t operand, Type type) const override;
  analysis::ValueRange table(std::uint32_t operand, Type type,
                             std::span<const analysis::ValueRange> indices) const override;

 private:
  const MaskData& data_;
  const analysis::IndexBox& tile_;
};

}  // namespace scoremod::test
