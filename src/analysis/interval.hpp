#pragma once

#include <span>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// Values lo..hi, both included, of one type: f32 (infinities included), i32 (exact in double) or bool (0 and 1).
struct ValueRange {
  double lo = 0;
  double hi = 0;
  bool maybe_nan = false;  ///< f32 only: NaN is possible beside lo..hi

  bool always_true() const { return lo == 1; }
  bool always_false() const { return hi == 0; }
  bool is_point() const { return lo == hi && !maybe_nan; }
  bool operator==(const ValueRange&) const = default;
};

/// Every value of the type.
ValueRange everything(Type type);
/// The one value of a constant.
ValueRange constant_range(const Node& node);

/// A range that holds eval_op's result for all arguments in these ranges, whether f32 is evaluated in single or in
/// double precision. An i32 result that may wrap is everything. `node` is any op but a leaf, `arg_type` the type of its
/// first argument.
ValueRange range_of_op(const Node& node, Type arg_type, std::span<const ValueRange> args);

}  // namespace scoremod::analysis
