// .npy files, which other programs write: elements are read as they stand, and written so that they read back.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "expect.hpp"
#include "npy.hpp"
#include "npy_header.hpp"

namespace {

using scoremod::DType;
using Shape = std::vector<std::int64_t>;

/// A file in memory, whose path a reader opens.
class File {
 public:
  File() : descriptor_(memfd_create("npy", MFD_CLOEXEC)) {}
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void add(std::string_view bytes) {
    scoremod::fuzz::expect(::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
                           "a file in memory takes what is written");
  }

 private:
  int descriptor_;
};

/// The header of a file, if it has one.
std::optional<scoremod::input::NpyHeader> header_of(std::string_view file) {
  constexpr std::size_t kVersionPlace = 6, kLengthPlace = 8;
  if (file.size() < kLengthPlace) return std::nullopt;
  const std::size_t first = kLengthPlace + (file[kVersionPlace] == 1 ? 2 : 4);
  if (file.size() < first) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t place = first; place-- > kLengthPlace;)
    length = 256 * length + static_cast<std::uint8_t>(file[place]);
  std::optional<scoremod::input::NpyHeader> header;
  scoremod::fuzz::takes([&] { header = scoremod::input::parse_npy_header(file.substr(first, length)); });
  return header;
}

/// The shape that the file itself has, unless no problem of a test is as large.
Shape shape_of(std::string_view file) {
  constexpr std::int64_t kMostElements = 1 << 16;
  const auto header = header_of(file);
  if (!header) return {2, 3};
  std::int64_t elements = 1;
  for (const std::int64_t size : header->shape) {
    if (size > kMostElements / std::max<std::int64_t>(elements, 1)) return {2, 3};
    elements *= size;
  }
  return header->shape;
}

void check(std::string_view file, DType dtype, const Shape& shape, const char* written) {
  File given;
  given.add(file);
  std::vector<std::byte> elements;
  if (!scoremod::fuzz::takes([&] { elements = scoremod::input::read_npy(given.path(), dtype, shape); })) return;
  const std::string_view read(reinterpret_cast<const char*>(elements.data()), elements.size());
  scoremod::fuzz::expect(file.ends_with(read), "a file ends with its elements");
  File again;
  again.add(scoremod::input::format_npy_header({written, false, shape}));
  again.add(read);
  scoremod::fuzz::expect(scoremod::input::read_npy(again.path(), dtype, shape) == elements,
                         "an array that was read is written so that it reads back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const Shape shape = shape_of(file);
  check(file, DType::kF32, shape, "<f4");
  check(file, DType::kBF16, shape, "<u2");
  check(file, DType::kBool, shape, "|b1");
  check(file, DType::kE5M2, shape, "|u1");
  return 0;
}
