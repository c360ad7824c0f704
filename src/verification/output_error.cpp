#include "verification/output_error.hpp"

#include <cmath>

#include "base/element.hpp"

namespace scoremod::verification {
namespace {

/// Euclidean distance; NaN wherever one is not finite and the other is not the same.
template <class T>
double distance(const std::vector<T>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (static_cast<double>(x[i]) == y[i]) continue;  // equal infinities among them
    const double difference = static_cast<double>(x[i]) - y[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

/// Of the finite values; 1 where there is nothing to be relative to.
double norm_of(const std::vector<double>& truth) {
  double squares = 0;
  for (const double value : truth) squares += std::isfinite(value) ? value * value : 0;
  return squares > 0 ? std::sqrt(squares) : 1.0;
}

}  // namespace

OutputError lse_error(const std::vector<double>& found, const std::vector<double>& truth,
                      const std::vector<float>& plain, DType dtype) {
  const double norm = norm_of(truth);
  const double allowed = unit_roundoff(dtype) * std::sqrt(static_cast<double>(truth.size()));
  return {"lse", distance(found, truth) / norm, (2 * distance(plain, truth) + allowed) / norm};
}

OutputError output_error(const std::string& name, const std::vector<double>& found, const std::vector<double>& truth,
                         const std::vector<float>& plain, DType dtype) {
  const double norm = norm_of(truth);
  return {name, distance(found, truth) / norm, 2 * distance(plain, truth) / norm + unit_roundoff(dtype)};
}

}  // namespace scoremod::verification
