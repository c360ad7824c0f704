#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.hpp"

namespace scoremod {

/// Writes values as bytes that are the same on every machine and that no other sequence of values has. Each value is a
/// tag of its type, then a fixed width, least significant byte first, or a length and that many bytes.
class CanonicalWriter {
 public:
  CanonicalWriter& boolean(bool value);
  CanonicalWriter& integer(std::int64_t value);
  /// The bits: 0 and -0 differ, and so do NaNs.
  CanonicalWriter& real(float value);
  CanonicalWriter& text(std::string_view value);
  CanonicalWriter& bytes(std::span<const std::byte> value);
  /// Says how many elements follow; the caller writes them.
  CanonicalWriter& list(std::size_t count);

  const Bytes& written() const { return bytes_; }

 private:
  void tag(char letter) { bytes_.push_back(static_cast<std::byte>(letter)); }
  void word(std::uint64_t value, int width);
  void counted(char letter, std::span<const std::byte> value);

  Bytes bytes_;
};

/// Reads a CanonicalWriter's bytes, which may be damaged. After the first mismatch ok() is false and everything reads
/// as zero or empty. It never reads outside and never allocates more than there is.
class CanonicalReader {
 public:
  explicit CanonicalReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool boolean();
  std::int64_t integer();
  float real();
  std::string text();
  Bytes bytes();
  /// At most the number of bytes that are left.
  std::size_t list();

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::uint64_t word(char letter, std::size_t width);
  std::span<const std::byte> counted(char letter);

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace scoremod
