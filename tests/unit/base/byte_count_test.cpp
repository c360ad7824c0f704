#include "base/byte_count.hpp"

#include <gtest/gtest.h>

namespace scoremod {
namespace {

TEST(ByteCount, StaysAtTheMost) {
  constexpr std::size_t kHuge = std::size_t{1} << 40;
  EXPECT_EQ(add_bytes(3, 4), 7u);
  EXPECT_EQ(add_bytes(kMaxBytes, 1), kMaxBytes);
  EXPECT_EQ(add_bytes(kMaxBytes, kMaxBytes), kMaxBytes);
  EXPECT_EQ(add_bytes(SIZE_MAX, SIZE_MAX), kMaxBytes);
  EXPECT_EQ(add_bytes(kMaxBytes - 1, 1), kMaxBytes);
  EXPECT_EQ(add_bytes(kMaxBytes - 2, 1), kMaxBytes - 1);
  EXPECT_EQ(multiply_bytes(1 << 20, 1 << 20), kHuge);
  EXPECT_EQ(multiply_bytes(kHuge, kHuge), kMaxBytes);
  EXPECT_EQ(multiply_bytes(kMaxBytes, 2), kMaxBytes);  // no 64 bits wrap, but no memory is so large
  EXPECT_EQ(align_bytes(65, 64), 128u);
  EXPECT_EQ(align_bytes(128, 64), 128u);
  EXPECT_EQ(align_bytes(kMaxBytes, 64), kMaxBytes);
  EXPECT_EQ(align_bytes(kMaxBytes - 10, 64), kMaxBytes);
}

}  // namespace
}  // namespace scoremod
