#pragma once

#include <cstdint>
#include <cstring>

#include "scoremod/dtype.hpp"

#include "base/fail.hpp"
#include "base/float16.hpp"
#include "base/float8.hpp"

namespace scoremod {

/// Reads one number of a tensor of this dtype; exact for every dtype but i32 read as float.
template <class Number>
Number load_element(const void* data, DType dtype, std::int64_t index) {
  const auto read = [&](auto value) {
    std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(sizeof(value)),
                sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kF32: return static_cast<Number>(read(float{}));
    case DType::kF16: return static_cast<Number>(decode_f16(read(std::uint16_t{})));
    case DType::kBF16: return static_cast<Number>(decode_bf16(read(std::uint16_t{})));
    case DType::kI32: return static_cast<Number>(read(std::int32_t{}));
    case DType::kBool: return static_cast<Number>(read(std::uint8_t{}) != 0);
    case DType::kE4M3: return static_cast<Number>(decode_e4m3(read(std::uint8_t{})));
    case DType::kE5M2: return static_cast<Number>(decode_e5m2(read(std::uint8_t{})));
  }
  fail_bug("an unknown dtype cannot be read");
}

/// Writes one number, rounded once to nearest even for the float dtypes, and saturated if they are FP8. The value must
/// fit an i32 or bool tensor.
inline void store_element(void* data, DType dtype, std::int64_t index, double number) {
  const auto write = [&](auto value) {
    std::memcpy(static_cast<std::byte*>(data) + index * static_cast<std::int64_t>(sizeof(value)), &value,
                sizeof(value));
  };
  switch (dtype) {
    case DType::kF32: return write(static_cast<float>(number));
    case DType::kF16: return write(encode_f16(number));
    case DType::kBF16: return write(encode_bf16(number));
    case DType::kI32: return write(static_cast<std::int32_t>(number));
    case DType::kBool: return write(static_cast<std::uint8_t>(number != 0));
    case DType::kE4M3: return write(encode_e4m3(number));
    case DType::kE5M2: return write(encode_e5m2(number));
  }
  fail_bug("an unknown dtype cannot be written");
}

/// The value that a tensor of this floating dtype holds once `number` has been stored in it.
inline float round_to(DType dtype, float number) {
  switch (dtype) {
    case DType::kF16: return decode_f16(encode_f16(number));
    case DType::kBF16: return decode_bf16(encode_bf16(number));
    case DType::kE4M3: return decode_e4m3(encode_e4m3(double{number}));
    case DType::kE5M2: return decode_e5m2(encode_e5m2(double{number}));
    default: return number;
  }
}

/// The number itself, saturated to the range if the element is FP8, as stored values are.
template <class Number>
Number saturate(DType dtype, Number number) {
  if (!is_float8(dtype)) return number;
  const Number largest = dtype == DType::kE4M3 ? kMaxE4M3 : kMaxE5M2;
  return number > largest ? largest : number < -largest ? -largest : number;
}

/// Half the distance from 1 to the next number of a float dtype: 2^-24, 2^-11, 2^-8, 2^-4 or 2^-3.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    case DType::kE4M3: return 0x1p-4;
    case DType::kE5M2: return 0x1p-3;
    default: return 0x1p-24;
  }
}

}  // namespace scoremod
