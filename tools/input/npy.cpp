#include "npy.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "fail.hpp"
#include "input_file.hpp"
#include "npy_header.hpp"
#include "output_file.hpp"

namespace scoremod::input {
namespace {

/// NumPy refuses headers of more than 10 000 characters by default; nothing that we read comes near.
constexpr std::size_t kMaxHeaderBytes = 65536;

struct NpyType {
  DType dtype;
  const char* written;
  std::array<const char*, 4> accepted;
};

// A type of one byte, or of bytes without an order, may be marked '|' or '<'.
constexpr std::array<NpyType, 7> kTypes{{
    {DType::kF32, "<f4", {"<f4"}},
    {DType::kF16, "<f2", {"<f2"}},
    {DType::kBF16, "<u2", {"<u2", "|V2", "<V2", "V2"}},
    {DType::kI32, "<i4", {"<i4"}},
    {DType::kBool, "|b1", {"|b1", "<b1"}},
    {DType::kE4M3, "|u1", {"|u1", "<u1", "|V1", "<V1"}},
    {DType::kE5M2, "|u1", {"|u1", "<u1", "<f1", "|f1"}},
}};

const NpyType& npy_type(DType dtype) { return *std::ranges::find(kTypes, dtype, &NpyType::dtype); }

class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& path) : name_(path.string()), file_(nullptr, std::fclose) {
    input::InputFile input = input::open_input_file(name_);
    if (input.file == nullptr) refuse("expected a .npy file: ", input.failure);
    file_ = std::move(input.file);
  }

  void read(void* to, std::size_t bytes, const char* what) {
    const std::size_t count = std::fread(to, 1, bytes, file_.get());
    if (count == bytes) return;
    if (std::ferror(file_.get())) refuse("cannot be read: ", std::strerror(errno));
    refuse("expected ", bytes, " bytes of ", what, ", found the end of the file after ", count, "; is it truncated?");
  }

  void expect_end() {
    if (std::fgetc(file_.get()) != EOF) refuse("expected the end of the file after the elements, found more bytes");
  }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kInvalidArgument, name_, ": ", parts...);
  }

 private:
  std::string name_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

NpyHeader read_header(NpyFile& file) {
  std::array<unsigned char, 8> start{};
  file.read(start.data(), start.size(), "a .npy file's start");
  if (std::memcmp(start.data(), "\x93NUMPY", 6) != 0) {
    file.refuse("expected a .npy file, found other contents; write it with numpy.save");
  }
  const int version = start[6];
  if (version < 1 || version > 3 || start[7] != 0) {
    file.refuse("expected version 1.0, 2.0 or 3.0 of the .npy format, found ", version, ".", int{start[7]});
  }
  std::array<unsigned char, 4> length_bytes{};
  file.read(length_bytes.data(), version == 1 ? 2 : 4, "the header's length");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes.size(); ++i) length |= std::size_t{length_bytes[i]} << (8 * i);
  if (length > kMaxHeaderBytes) file.refuse("expected a header of at most ", kMaxHeaderBytes, " bytes, found ", length);
  std::string text(length, '\0');
  file.read(text.data(), length, "the header");
  try {
    return parse_npy_header(text);
  } catch (const Error& error) {
    file.refuse(error.what());
  }
}

/// Only as far as it is plain text: a file may hold anything.
std::string quoted(const std::string& text) {
  std::string out = text.substr(0, 40);
  std::ranges::replace_if(
      out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return "'" + out + "'";
}

void check_header(const NpyFile& file, const NpyHeader& header, DType dtype, const std::vector<std::int64_t>& shape) {
  const NpyType& type = npy_type(dtype);
  const auto is_it = [&](const char* accepted) { return accepted != nullptr && header.descr == accepted; };
  if (!std::ranges::any_of(type.accepted, is_it)) {
    file.refuse("expected elements of type '", type.written, "' (", to_string(dtype), "), found ", quoted(header.descr),
                "; convert them with numpy's astype");
  }
  if (header.shape != shape) {
    file.refuse("expected the shape ", npy_shape_text(shape), ", found ", npy_shape_text(header.shape));
  }
  if (header.fortran_order && shape.size() > 1) {
    file.refuse("expected C order, found Fortran order; convert with numpy.ascontiguousarray");
  }
}

}  // namespace

std::vector<std::byte> read_npy(const std::filesystem::path& path, DType dtype,
                                const std::vector<std::int64_t>& shape) {
  NpyFile file(path);
  check_header(file, read_header(file), dtype, shape);
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);  // a valid problem's: it fits
  std::vector<std::byte> elements(bytes);
  file.read(elements.data(), bytes, "elements");
  file.expect_end();
  const auto is_bool = [](std::byte byte) { return byte == std::byte{0} || byte == std::byte{1}; };
  if (dtype == DType::kBool && !std::ranges::all_of(elements, is_bool)) {
    file.refuse("expected bools of 0 or 1, found another byte");
  }
  return elements;
}

ReadInputFile npy_files(std::filesystem::path folder) {
  return [folder = std::move(folder)](const InputSpec& entry, const TensorInfo& tensor) {
    return read_npy(folder / entry.path, tensor.dtype, tensor.shape);
  };
}

void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<std::int64_t>& shape,
               const std::vector<std::byte>& elements) {
  const std::string header = format_npy_header({npy_type(dtype).written, false, shape});
  write_file(path, {std::as_bytes(std::span(header)), elements});
}

}  // namespace scoremod::input
