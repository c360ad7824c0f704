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
  /// The plain evaluation has not one right digit, as in a gradient whose terms cancel. The tolerance is what its
  /// rounding leaves, and other roundings may leave another multiple.
  bool cancels = false;

  bool right() const { return error <= tolerance; }
};

/// Query rows that are judged together.
struct RowClass {
  std::string name;               ///< empty for all rows
  std::vector<std::size_t> rows;  ///< numbers in the order of the LSE
  double largest_lse = 0;         ///< the largest finite magnitude
};

/// All rows, and then classes of rows that a kernel may treat specially. They are few among many, so their errors
/// hardly show in a norm over all. The classes are rows without a key, rows with an LSE below -100 or above 100
/// (float32's exponential is then 0 or infinite), and others. Only classes that have rows are listed, and none if all
/// rows are of one class. A row is in no class if the plain LSE is off by more than half a unit of the problem's dtype
/// and float32's rounding.
std::vector<RowClass> row_classes(const std::vector<double>& oracle_lse, const std::vector<float>& plain_lse,
                                  DType dtype);

/// Applies compare_output()'s rule to an output, in both norms, over all its elements and then over each class by
/// itself. All are dense: the found output, the oracle, and a plain evaluation in the output's own precision. The
/// rounding band of an element is half a unit of the dtype for its store, and 4 * 2^-24 (1 + |LSE|) for weights
/// computed from a float32 LSE. It is relative to the element's size. In a class it is at least relative to the root
/// mean square of the class, or of all elements if the class's are zero.
///
/// `classes` is row_classes() for outputs with a vector for each query row (o and dq), and its first entry for others.
/// A class of fewer than 16 rows counts by itself only if the oracle's rows are zero. If fewer than 16 rows make up
/// most of the plain evaluation's error, the tolerance of few numbers applies.
OutputError output_error(const problem::StridedTensor& tensor, const std::vector<double>& found,
                         const std::vector<double>& oracle, const std::vector<float>& plain,
                         std::span<const RowClass> classes);

/// The error of the LSE. It is f32 and a logarithm: its absolute error is the relative error of the row's weights. So
/// half a unit of the problem's dtype is allowed absolutely, and float32's own rounding as above. An infinite one must
/// be met exactly.
OutputError lse_error(const std::vector<double>& found, const std::vector<double>& oracle,
                      const std::vector<float>& plain, DType dtype, std::span<const RowClass> classes);

}  // namespace scoremod::verification
