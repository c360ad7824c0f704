#include "backend/cpu/pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "backend/cpu/matrix_product.hpp"
#include "base/element.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/pack.cpp"
#include <hwy/foreach_target.h>
// clang-format off: foreach_target.h comes first.
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace scoremod::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;
using WordTag = hn::RebindToUnsigned<Tag>;
using HalfWordTag = hn::Rebind<std::uint16_t, Tag>;
using ByteTag = hn::Rebind<std::uint8_t, Tag>;

HWY_INLINE Vec load_f32(const float* data) { return hn::LoadU(Tag(), data); }

HWY_INLINE Vec load_bf16(const std::uint16_t* data) {
  const auto words = hn::PromoteTo(WordTag(), hn::LoadU(HalfWordTag(), data));
  return hn::BitCast(Tag(), hn::ShiftLeft<16>(words));
}

// Integer steps and exact multiplications make subnormals, infinities and NaN come out right on every instruction set.
// They also do if the caller flushes float32 subnormals to zero, as XLA does. Codes have no signs. `special` is the
// first that is no number, whose float32 is `made_special`; `smallest` is the smallest subnormal.
template <int kMantissaBits, int kBias>
HWY_INLINE Vec from_codes(hn::Vec<WordTag> code, hn::Vec<WordTag> sign, std::uint32_t special,
                          hn::Vec<WordTag> made_special, float smallest) {
  const Tag d;
  const WordTag dw;
  const hn::RebindToSigned<Tag> di;
  const auto normal = hn::Add(hn::ShiftLeft<23 - kMantissaBits>(code), hn::Set(dw, std::uint32_t{127 - kBias} << 23));
  const auto count = hn::ConvertTo(d, hn::BitCast(di, code));
  const auto subnormal = hn::BitCast(dw, hn::Mul(count, hn::Set(d, smallest)));
  auto number = hn::IfThenElse(hn::Lt(code, hn::Set(dw, 1u << kMantissaBits)), subnormal, normal);
  number = hn::IfThenElse(hn::Lt(code, hn::Set(dw, special)), number, made_special);
  return hn::BitCast(d, hn::Or(number, sign));
}

HWY_INLINE Vec from_f16(hn::Vec<WordTag> words) {
  const WordTag dw;
  const auto code = hn::And(words, hn::Set(dw, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::And(words, hn::Set(dw, 0x8000u)));
  const auto special = hn::Or(hn::ShiftLeft<13>(code), hn::Set(dw, 0x7f800000u));
  return from_codes<10, 15>(code, sign, 0x7c00u, special, 0x1p-24f);
}

HWY_INLINE Vec load_f16(const std::uint16_t* data) {
  return from_f16(hn::PromoteTo(WordTag(), hn::LoadU(HalfWordTag(), data)));
}

HWY_INLINE Vec load_e5m2(const std::uint8_t* data) {
  return from_f16(hn::ShiftLeft<8>(hn::PromoteTo(WordTag(), hn::LoadU(ByteTag(), data))));
}

HWY_INLINE Vec load_e4m3(const std::uint8_t* data) {
  const WordTag dw;
  const auto words = hn::PromoteTo(dw, hn::LoadU(ByteTag(), data));
  const auto code = hn::And(words, hn::Set(dw, 0x7fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(words, hn::Set(dw, 0x80u)));
  return from_codes<3, 7>(code, sign, 0x7fu, hn::Set(dw, 0x7fc00000u), 0x1p-9f);
}

/// Copies contiguous numbers; returns the largest magnitude's bits, which are at least those of infinity if one is not
/// finite.
template <auto kLoad, class T>
HWY_INLINE std::uint32_t copy_contiguous(const T* from, std::size_t count, float scale, float* out) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const std::size_t lanes = hn::Lanes(d);
  const Vec factor = hn::Set(d, scale);
  auto largest = hn::Zero(di);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vec x = hn::Mul(kLoad(from + i), factor);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(x)));
    hn::StoreU(x, d, out + i);
  }
  if (i < count) {
    T rest[hn::MaxLanes(d)] = {};
    std::copy(from + i, from + count, rest);
    const Vec x = hn::Mul(kLoad(rest), factor);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(x)));
    hn::StoreU(x, d, out + i);  // rows are padded to kColumnAlignment
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

std::uint32_t copy_row(const RowSource& source, std::int64_t row, float scale, float* out) {
  const std::int64_t offset = source.offset(row);
  if (source.dim_stride == 1 && source.dtype == DType::kF32) {
    return copy_contiguous<load_f32>(static_cast<const float*>(source.data) + offset, source.dims, scale, out);
  }
  if (source.dim_stride == 1 && is_float8(source.dtype)) {
    const auto* from = static_cast<const std::uint8_t*>(source.data) + offset;
    if (source.dtype == DType::kE4M3) return copy_contiguous<load_e4m3>(from, source.dims, scale, out);
    return copy_contiguous<load_e5m2>(from, source.dims, scale, out);
  }
  if (source.dim_stride == 1) {
    const auto* from = static_cast<const std::uint16_t*>(source.data) + offset;
    if (source.dtype == DType::kBF16) return copy_contiguous<load_bf16>(from, source.dims, scale, out);
    return copy_contiguous<load_f16>(from, source.dims, scale, out);
  }
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < source.dims; ++i) {
    const auto index = offset + static_cast<std::int64_t>(i) * source.dim_stride;
    out[i] = scale * load_element<float>(source.data, source.dtype, index);
    if (!std::isfinite(out[i])) largest = 0x7f800000u;
  }
  return largest;
}

/// Asks for a row's memory. Rows of one head often lie kilobytes apart, farther than the processor looks ahead by
/// itself.
HWY_INLINE void prefetch_row(const RowSource& source, std::int64_t row) {
  if (source.dim_stride != 1) return;
  const auto size = static_cast<std::int64_t>(size_of(source.dtype));
  const auto* bytes = static_cast<const std::uint8_t*>(source.data) + source.offset(row) * size;
  constexpr std::int64_t kCacheLine = 64;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(source.dims) * size; i += kCacheLine) hwy::Prefetch(bytes + i);
}

/// Multiplies a copied row by its block scales; returns the bits of infinity if a product is not finite.
std::uint32_t apply_block_scales(const RowSource& source, std::int64_t row, std::span<float> values) {
  source.scales.apply(row, values);
  const bool is_finite = std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  return is_finite ? 0 : 0x7f800000u;
}

bool pack(const RowSource& source, std::int64_t first, std::size_t rows, float scale, float* out, std::size_t stride) {
  std::uint32_t largest = 0;
  constexpr std::size_t kAhead = 8;
  for (std::size_t r = 0; r < rows; ++r) {
    if (r + kAhead < rows) prefetch_row(source, first + static_cast<std::int64_t>(r + kAhead));
    float* to = out + r * stride;
    const std::int64_t row = first + static_cast<std::int64_t>(r);
    largest = std::max(largest, copy_row(source, row, scale, to));
    if (source.scales.first != nullptr) largest = std::max(largest, apply_block_scales(source, row, {to, source.dims}));
    std::fill(to + source.dims, to + stride, 0.0f);
  }
  return largest < 0x7f800000u;
}

/// A 4 x 4 block: rows of `from` become columns of `to`.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void transpose_block(const float* from, std::size_t stride, float* to) {
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t k = 0; k < 4; ++k) to[k * kPanelColumns + r] = from[r * stride + k];
  }
}
#else
HWY_INLINE void transpose_block(const float* from, std::size_t stride, float* to) {
  const hn::FixedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + stride);
  const auto r2 = hn::LoadU(d, from + 2 * stride), r3 = hn::LoadU(d, from + 3 * stride);
  const auto low01 = hn::InterleaveLower(d, r0, r1), low23 = hn::InterleaveLower(d, r2, r3);
  const auto high01 = hn::InterleaveUpper(d, r0, r1), high23 = hn::InterleaveUpper(d, r2, r3);
  hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, to);
  hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d, to + kPanelColumns);
  hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d, to + 2 * kPanelColumns);
  hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d, to + 3 * kPanelColumns);
}
#endif

void transpose(const float* packed, std::size_t rows, std::size_t dims, std::size_t stride, float* panels) {
  for (std::size_t first = 0; first < rows; first += kPanelColumns, panels += dims * kPanelColumns) {
    const float* from = packed + first * stride;
    const std::size_t count = std::min(kPanelColumns, rows - first);
    if (count < kPanelColumns) std::fill_n(panels, dims * kPanelColumns, 0.0f);
    const std::size_t block_rows = count / 4 * 4, block_dims = dims / 4 * 4;
    for (std::size_t r = 0; r < block_rows; r += 4) {
      for (std::size_t k = 0; k < block_dims; k += 4)
        transpose_block(from + r * stride + k, stride, panels + k * kPanelColumns + r);
    }
    for (std::size_t r = 0; r < count; ++r) {
      const std::size_t done = r < block_rows ? block_dims : 0;
      for (std::size_t k = done; k < dims; ++k) panels[k * kPanelColumns + r] = from[r * stride + k];
    }
  }
}

}  // namespace scoremod::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace scoremod::backend::cpu {

HWY_EXPORT(pack);
HWY_EXPORT(transpose);

bool pack_rows(const RowSource& source, std::int64_t first, std::size_t rows, float scale, float* out,
               std::size_t stride) {
  return HWY_DYNAMIC_DISPATCH(pack)(source, first, rows, scale * source.unit, out, stride);
}

void transpose_to_panels(const float* packed, std::size_t rows, std::size_t dims, std::size_t stride, float* panels) {
  HWY_DYNAMIC_DISPATCH(transpose)(packed, rows, dims, stride, panels);
}

void store_row(const float* row, float scale, const RowTarget& target, std::int64_t index) {
  const std::int64_t first = index * target.row_stride;
  if (target.dtype == DType::kF32) {
    auto* out = static_cast<float*>(target.data) + first;
    for (std::size_t i = 0; i < target.dims; ++i)
      out[static_cast<std::int64_t>(i) * target.dim_stride] = scale * row[i];
    return;
  }
  for (std::size_t i = 0; i < target.dims; ++i) {
    store_element(target.data, target.dtype, first + static_cast<std::int64_t>(i) * target.dim_stride,
                  double{scale * row[i]} * double{target.scale});
  }
}

}  // namespace scoremod::backend::cpu
#endif
