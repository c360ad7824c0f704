#include "verification/output_error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/element.hpp"
#include "verification/compare_output.hpp"

namespace scoremod::verification {
namespace {

/// Beyond these exponentials in float32 are zero or denormal, and infinite; a little more, so that whole rows are.
constexpr double kFarLse = 100;

/// Fewer rows are too small a sample of rounding errors: by chance the plain evaluation's may be small. (Of cuDNN's
/// right results for problems of some ten rows a few came near their tolerance; of those with many none came half-way.)
constexpr std::size_t kMinRows = 16;

/// Root mean square of the finite values; such that the norm is 1 where there is nothing to be relative to.
double root_mean_square(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double squares = 0;
  for (const double value : values) squares += std::isfinite(value) ? value * value : 0;
  return std::sqrt((squares > 0 ? squares : 1) / static_cast<double>(values.size()));
}

bool has_size(const std::vector<double>& values) {
  return std::ranges::any_of(values, [](double value) { return value != 0; });
}

template <class T>
std::vector<T> rows_of(const std::vector<T>& values, const std::vector<std::size_t>& rows, std::size_t width) {
  std::vector<T> part;
  part.reserve(rows.size() * width);
  for (const std::size_t row : rows) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
    part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
  }
  return part;
}

/// The evaluations of one output, or of some of its rows.
struct Elements {
  std::vector<double> found, oracle;
  std::vector<float> plain;
};

/// The error of an exponential, a sum and a quotient in float32. An LSE of this magnitude is off by as much, and so are
/// values computed from it.
double float_move(double lse) { return 4 * 0x1p-24 * (1 + std::abs(lse)); }

/// The factor of the plain evaluation's error that is tolerated, and a larger one for few numbers. The ratio of the
/// mean squares of two such errors has an F distribution. For four numbers each it is beyond 2^2 once in 10 times, and
/// beyond 8^2 once in 1400, by (1 + 3 x) / (1 + x)^3.
constexpr double kTimesPlain = 2, kTimesPlainOfFew = 8;
double times_plain(std::size_t numbers) { return numbers < kMinRows ? kTimesPlainOfFew : kTimesPlain; }

/// `times` of the plain evaluation's error, and the band, are the tolerance.
OutputError worst_of(const problem::StridedTensor& tensor, const Elements& elements, const std::vector<double>& band,
                     double times, const std::string& rows) {
  const OutputCheck check = compare_output(tensor, {elements.found, elements.oracle, elements.plain, band});
  const ErrorBound& bound = check.tighter();
  const double size = bound.scale > 0 ? bound.scale : 1;
  const double tolerance = (times * bound.plain_error + bound.band) / size;
  if (check.wrong_kind > 0) return {tensor.name, std::numeric_limits<double>::quiet_NaN(), tolerance, rows};
  // Both are 0 for rows without a key, and for terms that cancel to 0: a second judgement tells these apart.
  const bool cancels = check.l2.plain_error >= check.l2.scale;
  return {tensor.name, bound.error / size, tolerance, rows, cancels};
}

/// The effective number of rows in the plain evaluation's error, as if each had an equal part: (sum of squares)^2 / sum
/// of (squares^2).
double rows_in_error(const Elements& elements, std::size_t width) {
  double sum = 0, squares = 0;
  for (std::size_t begin = 0; begin < elements.oracle.size(); begin += width) {
    double row = 0;
    for (std::size_t i = begin; i < begin + width; ++i) {
      const double error = static_cast<double>(elements.plain[i]) - elements.oracle[i];
      row += std::isfinite(error) ? error * error : 0;
    }
    sum += row;
    squares += row * row;
  }
  return squares > 0 ? sum * sum / squares : static_cast<double>(elements.oracle.size() / width);
}

/// NaN is worst.
double badness(const OutputError& error) {
  if (std::isnan(error.error)) return std::numeric_limits<double>::infinity();
  return error.error == 0 ? 0 : error.error / error.tolerance;
}

/// Judges all elements and then each class by worst_of(). `band` makes the rounding band of a class's elements.
template <class Band>
OutputError worst(const problem::StridedTensor& tensor, const Elements& all, std::span<const RowClass> classes,
                  std::size_t fewest_rows, double times, const Band& band) {
  OutputError result = worst_of(tensor, all, band(all.oracle, classes.front()), times, "");
  const std::size_t width = all.oracle.size() / std::max<std::size_t>(classes.front().rows.size(), 1);
  for (const RowClass& part : classes.subspan(1)) {
    const Elements elements{rows_of(all.found, part.rows, width), rows_of(all.oracle, part.rows, width),
                            rows_of(all.plain, part.rows, width)};
    if (part.rows.size() < fewest_rows && has_size(elements.oracle)) continue;
    const bool few = rows_in_error(elements, width) < kMinRows;
    const OutputError error = worst_of(tensor, elements, band(elements.oracle, part),
                                       few ? std::max(times, kTimesPlainOfFew) : times, part.name);
    if (badness(error) >= badness(result)) result = error;
  }
  return result;
}

}  // namespace

std::vector<RowClass> row_classes(const std::vector<double>& oracle_lse, const std::vector<float>& plain_lse,
                                  DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::array<RowClass, 5> classes{RowClass{"", {}, 0}, RowClass{"rows without a key", {}, 0},
                                  RowClass{"rows whose LSE is below -100", {}, 0},
                                  RowClass{"rows whose LSE is above 100", {}, 0}, RowClass{"the other rows", {}, 0}};
  const auto add = [&](RowClass& part, std::size_t row) {
    part.rows.push_back(row);
    if (std::isfinite(oracle_lse[row])) part.largest_lse = std::max(part.largest_lse, std::abs(oracle_lse[row]));
  };
  for (std::size_t row = 0; row < oracle_lse.size(); ++row) {
    const double lse = oracle_lse[row], plain = static_cast<double>(plain_lse[row]);
    add(classes[0], row);
    const bool tells = lse == plain || std::abs(lse - plain) <= unit_roundoff(dtype) + float_move(lse);
    if (tells) add(classes[lse == -kInfinity ? 1 : lse < -kFarLse ? 2 : lse > kFarLse ? 3 : 4], row);
  }
  std::vector<RowClass> found{std::move(classes[0])};
  for (RowClass& part : std::span(classes).subspan(1)) {
    if (part.rows.size() == oracle_lse.size()) return {std::move(found[0])};
    if (!part.rows.empty()) found.push_back(std::move(part));
  }
  return found;
}

OutputError output_error(const problem::StridedTensor& tensor, const std::vector<double>& found,
                         const std::vector<double>& oracle, const std::vector<float>& plain,
                         std::span<const RowClass> classes) {
  const double size_of_all = root_mean_square(oracle);
  return worst(tensor, {found, oracle, plain}, classes, kMinRows, times_plain(oracle.size()),
               [&](const std::vector<double>& elements, const RowClass& part) {
                 const double unit = unit_roundoff(tensor.dtype) + float_move(part.largest_lse);
                 // Over all elements only their own sizes count; of nothing but zeros the norm is taken for 1.
                 double least = size_of_all;
                 if (has_size(elements)) least = part.name.empty() ? 0 : root_mean_square(elements);
                 std::vector<double> band;
                 band.reserve(elements.size());
                 for (const double value : elements) band.push_back(unit * std::max(std::abs(value), least));
                 return band;
               });
}

OutputError lse_error(const std::vector<double>& found, const std::vector<double>& oracle,
                      const std::vector<float>& plain, DType dtype, std::span<const RowClass> classes) {
  const problem::StridedTensor tensor{"lse", DType::kF32, {static_cast<std::int64_t>(oracle.size())}, {1}};
  return worst(tensor, {found, oracle, plain}, classes, 0, kTimesPlain,
               [&](const std::vector<double>& elements, const RowClass&) {
                 std::vector<double> band;
                 band.reserve(elements.size());
                 for (const double lse : elements) band.push_back(unit_roundoff(dtype) + float_move(lse));
                 return band;
               });
}

}  // namespace scoremod::verification
