#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "problem/strided_tensor.hpp"

namespace scoremod::verification {

/// How far an output is from the float64 oracle, relative to the oracle's own size: where it is worst.
struct OutputError {
  std::string name;
  double error = 0;  ///< NaN where one is not finite and the other is, or is another infinity
  /// Twice the plain same-precision evaluation's own distance, or of fewer than 16 numbers eight times, and half a unit
  /// of the dtype.
  double tolerance = 0;
  std::string rows;  ///< which rows, such as "rows without a key"; empty for all elements together
  /// The plain evaluation has not one digit right, as of a gradient whose terms cancel: the tolerance says what it has
  /// left of them, which of what is rounded otherwise may be another multiple.
  bool cancels = false;

  bool right() const { return error <= tolerance; }
};

/// Query rows that are judged together.
struct RowClass {
  std::string name;               ///< empty for all rows
  std::vector<std::size_t> rows;  ///< numbers in the order of the LSE
  double largest_lse = 0;         ///< the largest finite magnitude
};

/// All rows, and then those that a kernel may treat otherwise than the rest, few among many, so that what is wrong in
/// them hardly shows in a norm over all: rows without a key, those with an LSE below -100 or above 100 (where float32's
/// exponential is 0 or infinite), and the rest; only classes that have rows, and none where all rows are of one class.
/// Of rows whose LSE the plain evaluation itself misses by more than half a unit of the problem's dtype and float32's
/// own rounding nothing can be said by themselves: they are in no class.
std::vector<RowClass> row_classes(const std::vector<double>& oracle_lse, const std::vector<float>& plain_lse,
                                  DType dtype);

/// Holds an output to compare_output()'s rule, in both norms, over all its elements and then over each class by itself.
/// All are dense: what was found, the oracle, and a plain evaluation in the output's own precision. The rounding band
/// of an element is relative: half a unit of the dtype for its store, and 4 * 2^-24 (1 + |LSE|) for weights that are
/// computed from an LSE in float32; of its own size, or in a class of the root mean square of the elements (of the
/// class, or of all where the class's are zero), whichever is more.
///
/// `classes` is what row_classes() says for outputs with a vector for each query row (o and dq), and its first for
/// others. A class of fewer than 16 rows counts by itself only where the oracle's rows are zero; one of which fewer
/// make up most of the plain evaluation's error is held to the tolerance of few numbers.
OutputError output_error(const problem::StridedTensor& tensor, const std::vector<double>& found,
                         const std::vector<double>& oracle, const std::vector<float>& plain,
                         std::span<const RowClass> classes);

/// The same of the LSE. It is f32 and a logarithm: what it is off by is what the row's weights are off by relatively,
/// so that half a unit of the problem's dtype is allowed absolutely, and float32's own rounding as above. An infinite
/// one must be met exactly.
OutputError lse_error(const std::vector<double>& found, const std::vector<double>& oracle,
                      const std::vector<float>& plain, DType dtype, std::span<const RowClass> classes);

}  // namespace scoremod::verification
