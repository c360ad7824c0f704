#include "masks/mask_class.hpp"

#include <gtest/gtest.h>

namespace scoremod::masks {
namespace {

TEST(MaskClass, ABandKeepsItsOpenEndsUnderEitherAnchor) {
  EXPECT_EQ(top_left(Band{0, std::nullopt, BandAnchor::kBottomRight}, 100, 612), (Band{-512, std::nullopt}));
  EXPECT_EQ(top_left(Band{std::nullopt, 0, BandAnchor::kBottomRight}, 100, 612), (Band{std::nullopt, 512}));
  EXPECT_EQ(anchored(Band{-512, std::nullopt}, 100, 612), (Band{0, std::nullopt, BandAnchor::kBottomRight}));
  EXPECT_EQ(anchored(Band{}, 100, 612), Band{});
}

}  // namespace
}  // namespace scoremod::masks
