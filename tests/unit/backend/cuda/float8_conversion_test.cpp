// The kernels' text that converts FP8 tensors, run by the host with one thread.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/text/kernel_text.hpp"
#include "base/concat.hpp"
#include "base/element.hpp"
#include "support/host_library.hpp"

namespace scoremod::backend::cuda {
namespace {

/// The CUDA names that the text uses, for one thread.
constexpr const char* kOneThread = R"(
#define __global__
#define __launch_bounds__(threads)
struct Index { unsigned x = 0; };
static const Index blockIdx, threadIdx;
static const struct { unsigned x = 1; } blockDim, gridDim;
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static unsigned __shfl_xor_sync(unsigned, unsigned value, int) { return value; }
static void atomicMax(unsigned* at, unsigned value) { *at = value > *at ? value : *at; }
)";
constexpr const char* kEntries = R"(
extern "C" float read_number(int dtype, unsigned bits) { return number_of(dtype, bits); }
extern "C" unsigned write_number(int dtype, float x) { return stored_bits(dtype, x); }
)";

std::string text() {
  return concat(file_text("backend/cuda/text/program_prelude.cuh"), kOneThread,
                file_text("backend/cuda/float8/float8_numbers.cuh"),
                file_text("backend/cuda/float8/float8_conversion.cuh"), kEntries);
}
const test::HostLibrary& library() {
  static const test::HostLibrary kLibrary(text(), "-O1");
  return kLibrary;
}
/// One that counts no runs in 32 bits, as of tensors too large for a test.
const test::HostLibrary& library_of_large_tensors() {
  static const test::HostLibrary kLibrary = [] {
    std::string large = text();
    const std::string_view limit = "0x7fffffff;";
    large.replace(large.find(limit), limit.size(), "0;");
    return test::HostLibrary(large, "-O1");
  }();
  return kLibrary;
}

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2};

std::uint32_t bits_of(DType dtype, double number) {
  std::uint32_t bits = 0;
  store_element(&bits, dtype, 0, number);
  return bits;
}

TEST(Float8Numbers, AreReadAsTheHostReadsThem) {
  const auto read = library().function<float (*)(int, unsigned)>("read_number");
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2}) {
    for (std::uint32_t bits = 0; bits < (size_of(dtype) == 1 ? 0x100u : 0x10000u); ++bits) {
      const auto expected = load_element<float>(&bits, dtype, 0);
      const float found = read(static_cast<int>(dtype), bits);
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(found)) << to_string(dtype) << " " << bits;
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected))
            << to_string(dtype) << " " << bits;
    }
  }
}

TEST(Float8Numbers, AreWrittenAsTheHostWritesThem) {
  const auto write = library().function<unsigned (*)(int, float)>("write_number");
  const auto compare = [&](DType dtype, float number) {
    const std::uint32_t found = write(static_cast<int>(dtype), number), expected = bits_of(dtype, double{number});
    if (std::isnan(number)) {
      EXPECT_TRUE(std::isnan(load_element<float>(&found, dtype, 0))) << to_string(dtype);
    } else {
      ASSERT_EQ(found, expected) << to_string(dtype) << " " << number;
    }
  };
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2}) {
    // A prime step: every exponent, and all that the upper bits of the mantissa may be.
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
      compare(dtype, std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    // Ties, and their neighbours.
    for (std::uint32_t code = 0; code < 0x7cu; ++code) {
      const std::uint32_t next = code + 1;
      for (const DType format : {DType::kE4M3, DType::kE5M2}) {
        const float middle = (load_element<float>(&code, format, 0) + load_element<float>(&next, format, 0)) / 2;
        for (const float sign : {1.0f, -1.0f}) {
          compare(dtype, sign * middle);
          compare(dtype, sign * std::nextafter(middle, 0.0f));
          compare(dtype, sign * std::nextafter(middle, 1e9f));
        }
      }
    }
  }
}

using Long = long long;
using Convert = void (*)(const void*, int, Long, Long, Long, Long, void*, int, Long, Long, Long, Long, Long, Long, Long,
                         int, const float*, Long, Long, const float*, const float*, const float*, const float*,
                         unsigned*, const float*, Long, Long, Long, Long, Long, int);

void expect_every_element_once(Convert convert) {
  constexpr Long kBatches = 2, kHeads = 3, kRows = 5;
  // Heads have their own: two of them the first, and the third the one behind a gap.
  const std::array<float, 3> times0{0.75f, 99, 0.4f};
  const float times1 = 3, by0 = 1.5f, by1 = 0.7f, scale = 11;
  // Block scales of two batches, three heads, three blocks of 2 rows and up to four blocks of 5 dims.
  constexpr Long kScaleRows = 2, kScaleDims = 5, kScaleRow = 4, kScaleHead = 3 * kScaleRow,
                 kScaleBatch = 3 * kScaleHead;
  std::array<float, 2 * kScaleBatch> block_scales{};
  for (std::size_t i = 0; i < block_scales.size(); ++i) block_scales[i] = 0.1f * static_cast<float>(i % 13);
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (const Long dims : {8, 16, 19}) {
        for (const Long gap : {0, 3}) {
          for (const Long dim_step : {1, 2}) {
            // From heads before rows to rows before heads, with gaps.
            const Long row = dims * dim_step + gap, to_row = kHeads * (dims + gap);
            const Long from_head = kRows * row, from_batch = kHeads * from_head;
            std::vector<std::byte> source(static_cast<std::size_t>(kBatches * from_batch) * size_of(from) + 8);
            std::vector<std::byte> target(static_cast<std::size_t>(kBatches * kRows * to_row) * size_of(to) + 8,
                                          std::byte{0x55});
            std::vector<std::byte> expected = target;
            for (Long i = 0; i < kBatches * from_batch; ++i)
              store_element(source.data(), from, i, std::sin(static_cast<double>(i)) * 20);
            float largest = 0;
            for (Long b = 0; b < kBatches; ++b) {
              for (Long h = 0; h < kHeads; ++h) {
                for (Long s = 0; s < kRows; ++s) {
                  for (Long d = 0; d < dims; ++d) {
                    float number = load_element<float>(source.data(), from,
                                                       b * from_batch + h * from_head + s * row + d * dim_step);
                    number *= times0[h < 2 ? 0 : 2] * times1 / (by0 * by1) *
                              block_scales[static_cast<std::size_t>(b * kScaleBatch + h * kScaleHead +
                                                                    s / kScaleRows * kScaleRow + d / kScaleDims)];
                    largest = std::max(largest, std::abs(number));
                    store_element(expected.data(), to, (b * kRows + s) * to_row + h * (dims + gap) + d,
                                  double{number * scale});
                  }
                }
              }
            }
            unsigned found = 0;
            convert(source.data(), static_cast<int>(from), from_batch, from_head, row, dim_step, target.data(),
                    static_cast<int>(to), kRows * to_row, dims + gap, to_row, 1, kBatches, kHeads, kRows,
                    static_cast<int>(dims), times0.data(), 2, 2, &times1, &by0, &by1, &scale, &found,
                    block_scales.data(), kScaleBatch, kScaleHead, kScaleRow, 1, kScaleRows, kScaleDims);
            ASSERT_EQ(target, expected) << to_string(from) << " to " << to_string(to) << " " << dims << " " << gap;
            ASSERT_EQ(std::bit_cast<float>(found), largest);
          }
        }
      }
    }
  }
}

TEST(Float8Conversion, ConvertsEveryElementOnce) {
  expect_every_element_once(library().function<Convert>("convert_tensor"));
}
TEST(Float8Conversion, ConvertsEveryElementOfLargeTensorsOnce) {
  expect_every_element_once(library_of_large_tensors().function<Convert>("convert_tensor"));
}

TEST(Float8Conversion, SpreadsTheScalesOfKvHeads) {
  const auto spread = library().function<void (*)(const float*, Long, float*, Long, Long)>("spread_head_scales");
  const std::vector<float> from{2, 99, 3, 99, 5};
  std::vector<float> found(7, -1);
  spread(from.data(), 2, found.data(), 6, 2);
  EXPECT_EQ(found, (std::vector<float>{2, 2, 3, 3, 5, 5, -1}));
}

TEST(Float8Conversion, NeedsNoFactorsAndKeepsNan) {
  const auto convert = library().function<Convert>("convert_tensor");
  const std::vector<float> source{1, -1e9f, std::numeric_limits<float>::quiet_NaN(), 0.25f};
  std::vector<std::uint8_t> target(4);
  unsigned largest = 0;
  convert(source.data(), 0, 4, 4, 4, 1, target.data(), static_cast<int>(DType::kE4M3), 4, 4, 4, 1, 1, 1, 1, 4, nullptr,
          0, 1, nullptr, nullptr, nullptr, nullptr, &largest, nullptr, 0, 0, 0, 0, 1, 1);
  EXPECT_EQ(target, (std::vector<std::uint8_t>{encode_e4m3(1), 0xfe, 0x7f, encode_e4m3(0.25)}));
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(largest)));
}

}  // namespace
}  // namespace scoremod::backend::cuda
