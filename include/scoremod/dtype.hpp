#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "scoremod/export.hpp"

namespace scoremod {

/// Storage types of tensors. Bool is one byte, 0 or 1.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kI32, kBool };

/// Bytes of one element.
SCOREMOD_API std::size_t size_of(DType dtype);
/// "f32", "f16", "bf16", "i32" or "bool".
SCOREMOD_API const char* to_string(DType dtype);
/// The inverse of to_string; empty when the name is not one of them.
SCOREMOD_API std::optional<DType> parse_dtype(std::string_view name);
/// True for f32, f16 and bf16.
SCOREMOD_API bool is_floating(DType dtype);

/// One element as a number; a bool is 0 or 1. Exact.
SCOREMOD_API double read_element(DType dtype, const void* element);
/// Writes a number as one element: floats are rounded to nearest even once; i32 and bool must be able to hold it.
SCOREMOD_API void write_element(DType dtype, void* element, double number);

}  // namespace scoremod
