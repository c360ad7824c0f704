#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace scoremod::input {

/// The header of a .npy file.
struct NpyHeader {
  std::string descr;  ///< the type: "<f4", "|b1", ...
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the text of a header: a Python dictionary with exactly the keys descr (a string), fortran_order and shape.
/// Throws Error(kInvalidArgument).
NpyHeader parse_npy_header(std::string_view text);

/// A complete file header, version 1.0: magic, version, length, dictionary, padding to 64 bytes.
std::string format_npy_header(const NpyHeader& header);

/// "(2, 3)", "(4,)" or "()".
std::string npy_shape_text(const std::vector<std::int64_t>& shape);

}  // namespace scoremod::input
