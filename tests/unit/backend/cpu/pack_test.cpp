#include "backend/cpu/pack.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/matrix_product.hpp"
#include "base/element.hpp"

namespace scoremod::backend::cpu {
namespace {

class Pack16 : public testing::TestWithParam<DType> {};

TEST_P(Pack16, ReadsEveryBitPatternExactly) {
  std::vector<std::uint16_t> words(65536);
  std::iota(words.begin(), words.end(), std::uint16_t{0});
  constexpr std::size_t kDims = 64;
  std::vector<float> packed(65536);
  const RowSource source{words.data(), GetParam(), kDims, 1, kDims};
  EXPECT_FALSE(pack_rows(source, 0, 65536 / kDims, 1, packed.data(), kDims));
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto expected = load_element<float>(words.data(), GetParam(), static_cast<std::int64_t>(i));
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(packed[i])) << i;
    else
      ASSERT_EQ(std::bit_cast<std::uint32_t>(packed[i]), std::bit_cast<std::uint32_t>(expected)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Pack16, testing::Values(DType::kF16, DType::kBF16));

TEST(Pack, FollowsStridesScalesAndPads) {
  std::vector<float> data(200);
  std::iota(data.begin(), data.end(), 0.0f);
  for (const std::int64_t dim_stride : {1, 3}) {
    std::vector<float> packed(4 * 32, -1.0f);
    EXPECT_TRUE(pack_rows({data.data(), DType::kF32, 20, dim_stride, 5}, 2, 4, 0.5f, packed.data(), 32));
    for (std::int64_t r = 0; r < 4; ++r) {
      for (std::int64_t d = 0; d < 32; ++d) {
        const float expected = d < 5 ? 0.5f * static_cast<float>((r + 2) * 20 + d * dim_stride) : 0.0f;
        EXPECT_EQ(packed[static_cast<std::size_t>(r * 32 + d)], expected);
      }
    }
  }
}

TEST(Pack, TellsWhatIsNotFinite) {
  for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0u, 15u, 16u, 18u}) {
      std::vector<float> data(19, 1.0f), packed(32);
      EXPECT_TRUE(pack_rows({data.data(), DType::kF32, 19, 1, 19}, 0, 1, 1, packed.data(), 32));
      data[at] = value;
      EXPECT_FALSE(pack_rows({data.data(), DType::kF32, 19, 1, 19}, 0, 1, 1, packed.data(), 32)) << at;
    }
  }
}

TEST(Pack, TransposesIntoPanels) {
  for (const std::size_t rows : {1u, 4u, 31u, 32u, 33u, 70u}) {
    constexpr std::size_t kDims = 7, kStride = 16;
    std::vector<float> packed(rows * kStride);
    std::iota(packed.begin(), packed.end(), 1.0f);
    const std::size_t panels = (rows + kPanelColumns - 1) / kPanelColumns;
    std::vector<float> out(panels * kDims * kPanelColumns, -1.0f);
    transpose_to_panels(packed.data(), rows, kDims, kStride, out.data());
    for (std::size_t row = 0; row < panels * kPanelColumns; ++row) {
      for (std::size_t d = 0; d < kDims; ++d) {
        const float expected = row < rows ? packed[row * kStride + d] : 0.0f;
        EXPECT_EQ(out[(row / kPanelColumns * kDims + d) * kPanelColumns + row % kPanelColumns], expected);
      }
    }
  }
}

}  // namespace
}  // namespace scoremod::backend::cpu
