#include "backend/cudnn/output_error.hpp"

#include <cmath>

namespace scoremod::backend::cudnn {
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

}  // namespace

OutputError output_error(const std::string& name, const std::vector<double>& found, const std::vector<double>& truth,
                         const std::vector<float>& plain, DType dtype) {
  double squares = 0;
  for (const double value : truth) squares += std::isfinite(value) ? value * value : 0;
  const double unit = squares > 0 ? std::sqrt(squares) : 1.0;
  const double half_unit = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
  return {name, distance(found, truth) / unit, 2 * distance(plain, truth) / unit + half_unit};
}

}  // namespace scoremod::backend::cudnn
