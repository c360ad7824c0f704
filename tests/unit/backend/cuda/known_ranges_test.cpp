#include "backend/cuda/device/known_ranges.hpp"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "support/test_seed.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr std::uintptr_t kFirst = std::uintptr_t{0x7f} << 40;

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

TEST(KnownRanges, ContainNothingAtFirst) {
  const KnownRanges known;
  EXPECT_FALSE(known.contains(at(kFirst), 0));
  EXPECT_FALSE(known.contains(nullptr, 0));
  EXPECT_FALSE(known.contains(nullptr, -1));
}

TEST(KnownRanges, ContainWhatLiesInTheAllocationOnItsDevice) {
  KnownRanges known;
  known.add(at(kFirst + 100), kFirst + 64, 1000, 1);
  for (const std::uintptr_t address : {kFirst + 64, kFirst + 100, kFirst + 1063}) {
    EXPECT_TRUE(known.contains(at(address), 1));
    EXPECT_FALSE(known.contains(at(address), 0));
  }
  for (const std::uintptr_t address : {kFirst, kFirst + 63, kFirst + 1064})
    EXPECT_FALSE(known.contains(at(address), 1));
}

TEST(KnownRanges, ContainNoMoreThanTheSameBlock) {
  constexpr std::uintptr_t kBlock = std::uintptr_t{2} << 20;
  KnownRanges known;
  known.add(at(kFirst + kBlock + 5), kFirst, 8 * kBlock, 0);
  EXPECT_TRUE(known.contains(at(kFirst + kBlock), 0));
  EXPECT_TRUE(known.contains(at(kFirst + 2 * kBlock - 1), 0));
  for (std::uintptr_t block = 0; block < 8; ++block)
    EXPECT_EQ(known.contains(at(kFirst + block * kBlock + 7), 0), block == 1) << block;
  EXPECT_FALSE(known.contains(at(kFirst + 2 * kBlock), 0));
}

TEST(KnownRanges, AreNeverThoseOfOtherAllocations) {
  KnownRanges known;
  std::mt19937_64 random(test::test_seed());
  constexpr std::uintptr_t kBytes = std::uintptr_t{3} << 20;
  std::map<std::uintptr_t, int> devices;  // by the allocation's number
  const auto draw = [&](std::uintptr_t below) { return random() % below; };
  for (int i = 0; i < 20'000; ++i) {
    const std::uintptr_t allocation = draw(2000), address = kFirst + allocation * kBytes + draw(kBytes);
    const auto found = devices.find(allocation);
    for (const int device : {0, 1}) {
      if (found == devices.end() || found->second != device) {
        EXPECT_FALSE(known.contains(at(address), device));
      }
    }
    const int device = found == devices.end() ? static_cast<int>(draw(2)) : found->second;
    devices[allocation] = device;
    known.add(at(address), kFirst + allocation * kBytes, kBytes, device);
    EXPECT_TRUE(known.contains(at(address), device));
  }
}

}  // namespace
}  // namespace scoremod::backend::cuda
