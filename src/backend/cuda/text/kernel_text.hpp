#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fail.hpp"

// Kernel text with named holes. The text is a .cuh file that compiles as it stands, because every hole holds a
// stand-in:
//
//     if (row >= /*{rows}*/ 64 /*{}*/) return;
//
// fill(text, {{"rows", 100}}) makes `if (row >= 100) return;` of it. Holes may be nested: repeated or optional text is
// a hole whose stand-in has holes of its own, and part() takes it out.
//
// cmake/EmbedText.cmake puts the .cuh files into the library.

namespace scoremod::backend::cuda {

/// A .cuh file of src.
struct KernelFile {
  std::string_view path;    ///< as #include lines write it: "backend/cuda/text/exact_sum.cuh"
  std::string_view text;    ///< below `#pragma once`, without #include lines
  std::string_view digest;  ///< the first 96 bits of the SHA-256 of the text, in hexadecimal
  std::vector<std::string_view> includes;
};
/// Files that kernel_file() knows beside those of src; they must outlive their use.
void set_added_files(std::span<const KernelFile> files);
/// A path that no file has is a bug.
const KernelFile& kernel_file(std::string_view path);
/// Its text alone.
std::string_view file_text(std::string_view path);

/// A hole's name and its value, which is anything that can be printed.
struct Hole {
  template <class Value>
  Hole(std::string_view hole_name, const Value& value) : name(hole_name), text(concat(value)) {}

  std::string_view name;
  std::string text;
};

/// `text` with every hole filled; one name may stand in several places. A hole of the text without a value, a value
/// without a hole and a hole without an end are bugs, and Errors say which.
std::string fill(std::string_view text, std::initializer_list<Hole> holes);

/// As above, with a function that has a value for each name.
std::string fill(std::string_view text, const std::function<std::string_view(std::string_view name)>& value);
/// The names of a text's holes, but for those that lie in another hole. A name may come more than once.
std::vector<std::string_view> holes_of(std::string_view text);

/// The stand-in of the first hole of this name, wherever it lies.
std::string_view part(std::string_view text, std::string_view name);

}  // namespace scoremod::backend::cuda

namespace scoremod::embedded {
/// All .cuh files of src, in the order of their paths.
std::span<const backend::cuda::KernelFile> cuda_files();
}  // namespace scoremod::embedded
