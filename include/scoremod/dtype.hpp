#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "scoremod/export.hpp"

namespace scoremod {

/// Storage types of tensors. Bool is one byte, 0 or 1. The FP8 types are the OCP's. E4M3 has no infinity, NaN as 0x7f
/// and 0xff and numbers up to 448 (JAX's float8_e4m3fn). E5M2 is the upper byte of a binary16 and has numbers up to
/// 57344.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kI32, kBool, kE4M3, kE5M2 };

/// Bytes of one element.
SCOREMOD_API std::size_t size_of(DType dtype);
/// "f32", "f16", "bf16", "i32", "bool", "e4m3" or "e5m2".
SCOREMOD_API const char* to_string(DType dtype);
/// The inverse of to_string; empty when the name is not one of them.
SCOREMOD_API std::optional<DType> parse_dtype(std::string_view name);
/// True for f32, f16, bf16, e4m3 and e5m2.
SCOREMOD_API bool is_floating(DType dtype);
/// True for e4m3 and e5m2.
SCOREMOD_API bool is_float8(DType dtype);

/// One element as a number; a bool is 0 or 1. Exact.
SCOREMOD_API double read_element(DType dtype, const void* element);
/// Writes a number as one element: floats are rounded to nearest even once; i32 and bool must be able to hold it. e4m3
/// and e5m2 saturate: larger numbers and infinities become the largest number, with their sign; NaN stays NaN.
SCOREMOD_API void write_element(DType dtype, void* element, double number);

}  // namespace scoremod
