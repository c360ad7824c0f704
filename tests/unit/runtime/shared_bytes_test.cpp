#include "runtime/shared_bytes.hpp"

#include <random>
#include <set>

#include <gtest/gtest.h>

#include "support/test_seed.hpp"

namespace scoremod::runtime {
namespace {

/// No byte of it is touched.
const void* address(std::uintptr_t number) { return reinterpret_cast<const void*>(number); }

TensorUse tensor(std::uintptr_t begin, std::size_t element_bytes, std::vector<std::int64_t> shape,
                 std::vector<std::int64_t> strides) {
  TensorUse use;
  use.data = address(begin);
  use.element_bytes = element_bytes;
  use.rank = shape.size();
  std::copy(shape.begin(), shape.end(), use.shape.begin());
  std::copy(strides.begin(), strides.end(), use.strides.begin());
  return use;
}

std::set<std::uintptr_t> bytes_of(const TensorUse& use) {
  std::set<std::uintptr_t> bytes;
  std::vector<std::int64_t> index(use.rank, 0);
  for (;;) {
    std::uintptr_t at = reinterpret_cast<std::uintptr_t>(use.data);
    for (std::size_t d = 0; d < use.rank; ++d) {
      at += static_cast<std::uintptr_t>(index[d] * use.strides[d]) * use.element_bytes;
    }
    for (std::size_t i = 0; i < use.element_bytes; ++i) bytes.insert(at + i);
    std::size_t d = use.rank;
    while (d > 0 && ++index[d - 1] == use.shape[d - 1]) index[--d] = 0;
    if (d == 0) return bytes;
  }
}

TensorUse random_tensor(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  const std::size_t element_bytes = std::size_t{1} << below(3);
  std::vector<std::int64_t> shape, strides;
  // Nested strides as of a valid problem, broadcast ones, and any: the answer must be exact for all.
  const bool nested = below(3) != 0;
  std::int64_t span = 1;
  for (std::int64_t rank = below(5); rank > 0; --rank) {
    shape.push_back(1 + below(4));
    strides.push_back(below(8) == 0 ? 0 : nested ? span + below(4) : below(24));
    span += (shape.back() - 1) * strides.back();
  }
  const std::uintptr_t aligned = 1000 + static_cast<std::uintptr_t>(below(120)) * element_bytes;
  return tensor(below(4) == 0 ? aligned + static_cast<std::uintptr_t>(below(4)) : aligned, element_bytes, shape,
                strides);
}

TEST(SharedBytes, AreFoundAsByListingEveryByte) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  int shared = 0;
  constexpr int kPairs = 20000;
  for (int i = 0; i < kPairs; ++i) {
    const TensorUse x = random_tensor(random), y = random_tensor(random);
    const std::set<std::uintptr_t> bytes = bytes_of(x);
    bool expected = false;
    for (const std::uintptr_t byte : bytes_of(y)) expected |= bytes.count(byte) != 0;
    ASSERT_EQ(share_bytes(x, y), expected) << "pair " << i << " of seed " << seed;
    shared += expected ? 1 : 0;
  }
  // Both answers must occur often, or the comparison shows little.
  EXPECT_GT(shared, kPairs / 20);
  EXPECT_LT(shared, kPairs - kPairs / 20);
}

/// dq, dk and dv of [batch, sequence, 3, heads, dim], where a list of bytes would be out of the question.
TEST(SharedBytes, OfAHugePackedTensor) {
  constexpr std::int64_t kRows = std::int64_t{1} << 30, kHeads = 16, kDim = 64;
  const auto part = [&](std::uintptr_t begin, std::int64_t rows) {
    constexpr std::int64_t kPitch = 3 * kHeads * kDim;
    return tensor(begin, 2, {8, kHeads, rows, kDim}, {kRows * kPitch, kDim, kPitch, 1});
  };
  constexpr std::uintptr_t kPart = kHeads * kDim * 2;
  EXPECT_FALSE(share_bytes(part(4096, kRows), part(4096 + kPart, kRows)));
  EXPECT_FALSE(share_bytes(part(4096 + 2 * kPart, kRows), part(4096 + kPart, kRows)));
  EXPECT_TRUE(share_bytes(part(4096, kRows), part(4096 + kPart - 2, kRows)));
  EXPECT_FALSE(share_bytes(part(4096 + 2 * kPart, kRows), part(4096 + 3 * kPart, kRows)));
  EXPECT_TRUE(share_bytes(part(4096 + 2 * kPart, kRows), part(4096 + 5 * kPart, kRows)));
  EXPECT_TRUE(share_bytes(part(4096, 3), part(4096 + 6 * kPart, kRows)));
  EXPECT_FALSE(share_bytes(part(4096, 2), part(4096 + 6 * kPart, 2)));
}

}  // namespace
}  // namespace scoremod::runtime
