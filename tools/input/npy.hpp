#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "scoremod/inputs.hpp"

namespace scoremod::input {

/// NumPy's array files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0 to 3.0, in
/// C order and little-endian. f32, f16, i32 and bool are NumPy's own types. bf16, which NumPy lacks, is read from
/// 16-bit integers ('<u2') or two-byte records ('|V2', from ml_dtypes). It is written as '<u2', its bits.

/// Reads an array of exactly this dtype and shape: its elements, dense. Throws Error(kInvalidArgument) that begins with
/// the path.
std::vector<std::byte> read_npy(const std::filesystem::path& path, DType dtype, const std::vector<std::int64_t>& shape);

/// Reads the .npy files of a problem file's inputs, whose paths are relative to `folder`.
ReadInputFile npy_files(std::filesystem::path folder);

/// Writes dense elements, by way of a temporary file beside `path`, so that no half-written array is ever there.
/// Throws Error(kEnvironment).
void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<std::int64_t>& shape,
               const std::vector<std::byte>& elements);

}  // namespace scoremod::input
