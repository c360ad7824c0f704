#include "problem/strided_tensor.hpp"

#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod::problem {
namespace {

std::vector<std::int64_t> offsets_of(const StridedTensor& tensor) {
  std::vector<std::int64_t> all;
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    EXPECT_EQ(number, static_cast<std::int64_t>(all.size()));
    all.push_back(offset);
  });
  return all;
}

TEST(StridedTensor, VisitsElementsInDenseOrder) {
  EXPECT_EQ(offsets_of({"q", DType::kF32, {2, 3}, {1, 10}}), (std::vector<std::int64_t>{0, 10, 20, 1, 11, 21}));
}

TEST(StridedTensor, VisitsNoneOfAnEmptyTensor) { EXPECT_TRUE(offsets_of({"q", DType::kF32, {2, 0}, {1, 10}}).empty()); }

/// Their stride has no meaning, and may be any number: a sum with it would overflow.
TEST(StridedTensor, DimensionsOfSizeOneMayHaveAnyStride) {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(offsets_of({"q", DType::kF32, {1, 2, 1, 2}, {kAny, 8, kAny, 1}}), (std::vector<std::int64_t>{0, 1, 8, 9}));
}

}  // namespace
}  // namespace scoremod::problem
