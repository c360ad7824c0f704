#include "output_difference.hpp"

#include <cmath>
#include <limits>

namespace scoremod::measure {
namespace {

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-8;
    case DType::kF16: return 0x1p-11;
    case DType::kE4M3: return 0x1p-4;
    case DType::kE5M2: return 0x1p-3;
    default: return 0x1p-24;
  }
}

/// Of a large tensor so many elements tell enough.
constexpr std::size_t kMaxElements = std::size_t{1} << 22;

bool has_gaps(const TensorInfo& tensor) {
  std::size_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= static_cast<std::size_t>(size);
  return elements * size_of(tensor.dtype) != tensor.bytes;
}

double relative_distance(const RunOutput& expected, const RunOutput& found) {
  const std::size_t size = size_of(expected.tensor.dtype);
  const bool gaps = has_gaps(expected.tensor);
  // Odd, so that every place of a row of even length is met.
  const std::size_t step = size * (expected.bytes.size() / size / kMaxElements | 1);
  double distance = 0, norm = 0;
  for (std::size_t at = 0; at < expected.bytes.size(); at += step) {
    const double x = read_element(expected.tensor.dtype, expected.bytes.data() + at);
    const double y = read_element(expected.tensor.dtype, found.bytes.data() + at);
    if (gaps && std::isnan(x) && std::isnan(y)) continue;  // nobody writes there
    distance += (x - y) * (x - y);
    norm += x * x;
  }
  if (distance == 0) return 0;
  const double relative = std::sqrt(distance / norm);
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

}  // namespace

std::vector<OutputDifference> output_differences(std::span<const RunOutput> expected,
                                                 std::span<const RunOutput> found) {
  std::vector<OutputDifference> differences;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].name == "lse") continue;
    differences.push_back(
        {expected[i].name, relative_distance(expected[i], found[i]), 4 * unit_roundoff(expected[i].tensor.dtype)});
  }
  return differences;
}

}  // namespace scoremod::measure
