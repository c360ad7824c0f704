#include "base/byte_count.hpp"

#include <gtest/gtest.h>

namespace scoremod {
namespace {

TEST(ByteCount, StaysAtTheMost) {
  constexpr std::size_t kHuge = std::size_t{1} << 40;
  EXPECT_EQ(add_bytes(3, 4), 7u);
  EXPECT_EQ(add_bytes(kMostBytes, 1), kMostBytes);
  EXPECT_EQ(add_bytes(kMostBytes, kMostBytes), kMostBytes);
  EXPECT_EQ(add_bytes(SIZE_MAX, SIZE_MAX), kMostBytes);
  EXPECT_EQ(add_bytes(kMostBytes - 1, 1), kMostBytes);
  EXPECT_EQ(add_bytes(kMostBytes - 2, 1), kMostBytes - 1);
  EXPECT_EQ(multiply_bytes(1 << 20, 1 << 20), kHuge);
  EXPECT_EQ(multiply_bytes(kHuge, kHuge), kMostBytes);
  EXPECT_EQ(multiply_bytes(kMostBytes, 2), kMostBytes);  // no 64 bits wrap, but no memory is so large
  EXPECT_EQ(align_bytes(65, 64), 128u);
  EXPECT_EQ(align_bytes(128, 64), 128u);
  EXPECT_EQ(align_bytes(kMostBytes, 64), kMostBytes);
  EXPECT_EQ(align_bytes(kMostBytes - 10, 64), kMostBytes);
}

}  // namespace
}  // namespace scoremod
