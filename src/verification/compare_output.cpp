#include "verification/compare_output.hpp"

#include <algorithm>
#include <cmath>

#include "base/fail.hpp"

namespace scoremod::verification {
namespace {

/// The largest error of rounding to the dtype below its normal numbers: half of the smallest subnormal.
double underflow_error(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-25;
    case DType::kBF16: return 0x1p-134;
    case DType::kE4M3: return 0x1p-10;
    case DType::kE5M2: return 0x1p-17;
    default: return 0x1p-150;
  }
}

/// A dense element number as its indices: "[1, 0, 3, 5]".
std::string position(const StridedTensor& tensor, std::size_t number) {
  std::string text;
  auto rest = static_cast<std::int64_t>(number);
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    text = concat(rest % tensor.shape[d], text.empty() ? "" : ", ", text);
    rest /= tensor.shape[d];
  }
  return "[" + text + "]";
}

/// Both norms at once.
class Norms {
 public:
  void add(double x) {
    squares_ += x * x;
    largest_ = std::max(largest_, std::abs(x));
  }
  double l2() const { return std::sqrt(squares_); }
  double max() const { return largest_; }

 private:
  double squares_ = 0;
  double largest_ = 0;
};

enum class Relation { kCompared, kRightKind, kWrongKind, kLeftOut };

Relation relate(bool is_lse, double found, double oracle, double plain, double band) {
  if (std::isfinite(oracle) && std::isfinite(plain)) {
    if (!std::isfinite(band)) return Relation::kLeftOut;
    return std::isfinite(found) ? Relation::kCompared : Relation::kWrongKind;
  }
  if (std::isfinite(oracle) || std::isfinite(plain)) return Relation::kLeftOut;
  if (is_lse && oracle == plain) return found == oracle ? Relation::kRightKind : Relation::kWrongKind;
  return std::isfinite(found) ? Relation::kWrongKind : Relation::kRightKind;
}

void judge(const char* norm, const ErrorBound& bound, OutputCheck& check) {
  if (bound.holds()) return;
  check.problems.push_back(concat("the error in the ", norm, " norm is ", bound.error, ", expected at most ",
                                  bound.tolerance(), " (twice the plain evaluation's ", bound.plain_error,
                                  ", and a rounding band of ", bound.band,
                                  ", or three of it alone); the oracle's own norm is ", bound.scale));
}

}  // namespace

OutputCheck compare_output(const StridedTensor& tensor, const Evaluations& e) {
  OutputCheck check;
  check.name = tensor.name;
  const std::size_t count = e.oracle.size();
  if (e.found.size() != count || e.plain.size() != count || e.band.size() != count) {
    fail_bug("'", tensor.name, "' has ", count, " elements in the oracle, ", e.found.size(), " in the backend, ",
             e.plain.size(), " in the plain evaluation and ", e.band.size(), " in the band");
  }
  Norms error, plain_error, band, scale;
  std::size_t first_wrong = count;
  for (std::size_t i = 0; i < count; ++i) {
    const Relation relation = relate(tensor.name == "lse", e.found[i], e.oracle[i], e.plain[i], e.band[i]);
    check.left_out += relation == Relation::kLeftOut ? 1 : 0;
    check.wrong_kind += relation == Relation::kWrongKind ? 1 : 0;
    if (relation == Relation::kWrongKind) first_wrong = std::min(first_wrong, i);
    if (relation != Relation::kCompared) continue;
    error.add(e.found[i] - e.oracle[i]);
    plain_error.add(e.plain[i] - e.oracle[i]);
    band.add(e.band[i] + underflow_error(tensor.dtype));
    scale.add(e.oracle[i]);
  }
  check.l2 = {error.l2(), plain_error.l2(), band.l2(), scale.l2()};
  check.max = {error.max(), plain_error.max(), band.max(), scale.max()};
  if (check.wrong_kind > 0) {
    check.problems.push_back(concat(check.wrong_kind, " of ", count,
                                    " elements were not written, or are finite where the ",
                                    "oracle is not, or the reverse; the first, ", position(tensor, first_wrong),
                                    ", is ", e.found[first_wrong], ", expected ", e.oracle[first_wrong]));
  }
  judge("Euclidean", check.l2, check);
  judge("maximum", check.max, check);
  return check;
}

}  // namespace scoremod::verification
