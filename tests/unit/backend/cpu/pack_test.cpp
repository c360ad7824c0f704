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

class Pack8 : public testing::TestWithParam<DType> {};

TEST_P(Pack8, ReadsEveryCodeAndMultipliesItByItsUnit) {
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  for (const std::size_t dims : {std::size_t{32}, std::size_t{1}}) {
    const auto stride = static_cast<std::int64_t>(dims);
    std::vector<float> packed(256 / dims * 32);
    RowSource source{codes.data(), GetParam(), stride, 1, dims};
    source.unit = 0.3f;
    EXPECT_FALSE(pack_rows(source, 0, 256 / dims, 2, packed.data(), 32));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float expected = 0.6f * load_element<float>(codes.data(), GetParam(), static_cast<std::int64_t>(i));
      const float found = packed[i / dims * 32 + i % dims];
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(found)) << i;
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Pack8, testing::Values(DType::kE4M3, DType::kE5M2));

#ifdef __SSE__
/// XLA runs its calls with float32's subnormals taken for zero, which those of narrower dtypes are not.
TEST(Pack, ReadsSubnormalsWhereFloat32sAreTakenForZero) {
  constexpr unsigned kTakenForZero = 0x8040;
  const std::vector<std::uint16_t> halves(64, 0x0001);
  const std::vector<std::uint8_t> codes(64, 0x01);
  const unsigned before = __builtin_ia32_stmxcsr();
  std::vector<float> packed(64);
  for (const DType dtype : {DType::kF16, DType::kE4M3, DType::kE5M2}) {
    const void* data = dtype == DType::kF16 ? static_cast<const void*>(halves.data()) : codes.data();
    __builtin_ia32_ldmxcsr(before | kTakenForZero);
    pack_rows({data, dtype, 64, 1, 64}, 0, 1, 1, packed.data(), 64);
    __builtin_ia32_ldmxcsr(before);
    const float expected = load_element<float>(data, dtype, 0);
    for (const float number : packed) ASSERT_EQ(number, expected) << to_string(dtype);
  }
}
#endif

TEST(Pack, StoresTimesTheTargetsScale) {
  std::vector<std::uint8_t> stored(3);
  const std::vector<float> row{1.0f, -100.0f, 0.01f};
  RowTarget target{stored.data(), DType::kE4M3, 3, 1, 3};
  target.scale = 8;
  store_row(row.data(), 0.5f, target, 0);
  EXPECT_EQ(stored, (std::vector<std::uint8_t>{encode_e4m3(4), encode_e4m3(-400), encode_e4m3(0.04)}));
}

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
