#include "output_difference.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

namespace scoremod::measure {
namespace {

RunOutput output(const std::string& name, const std::vector<float>& values) {
  RunOutput made;
  made.name = name;
  made.tensor.dtype = DType::kF32;
  made.tensor.shape = {static_cast<std::int64_t>(values.size())};
  made.tensor.bytes = values.size() * sizeof(float);
  made.bytes.resize(made.tensor.bytes);
  std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
  return made;
}

double distance(const std::vector<float>& expected, const std::vector<float>& found) {
  const std::vector a{output("o", expected)}, b{output("o", found)};
  const auto differences = output_differences(a, b);
  EXPECT_EQ(differences.size(), 1u);
  return differences.at(0).relative;
}

TEST(OutputDifference, IsRelativeToTheExpectedOutput) {
  EXPECT_EQ(distance({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(distance({3, 4}, {3, 5}), 0.2);
  EXPECT_EQ(distance({0, 0}, {0, 0}), 0) << "rows without keys";
}

TEST(OutputDifference, IsInfiniteWhereSomethingWasNotWritten) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(distance({3, 4}, {3, nan})));
  EXPECT_TRUE(std::isinf(distance({3, nan}, {3, 4})));
  EXPECT_TRUE(std::isinf(distance({3, nan}, {3, nan})));
  EXPECT_TRUE(std::isinf(distance({0, 0}, {0, 1})));
}

TEST(OutputDifference, SeesAThirdOfALargeOutput) {
  std::vector<float> expected((std::size_t{1} << 23) + 5, 1.0f);
  std::vector<float> found = expected;
  for (std::size_t i = 0; i < found.size() / 3; ++i) found[i] = 0;
  EXPECT_NEAR(distance(expected, found), std::sqrt(1.0 / 3), 1e-3);
}

TEST(OutputDifference, LeavesTheLseOut) {
  const std::vector a{output("o", {1}), output("lse", {1})}, b{output("o", {1}), output("lse", {2})};
  EXPECT_EQ(output_differences(a, b).size(), 1u);
}

}  // namespace
}  // namespace scoremod::measure
