#include "base/canonical_bytes.hpp"

#include <array>
#include <bit>

namespace scoremod {
namespace {

constexpr char kBoolean = 'b';
constexpr char kInteger = 'i';
constexpr char kReal = 'r';
constexpr char kText = 't';
constexpr char kBytes = 'y';
constexpr char kList = 'l';

}  // namespace

void CanonicalWriter::word(std::uint64_t value, int width) {
  // Keys of problems are some hundred bytes, and are made for each new size of a call.
  constexpr std::size_t kFirstRoom = 512;
  if (bytes_.capacity() < kFirstRoom) bytes_.reserve(kFirstRoom);
  std::array<std::byte, 8> bytes;
  for (int i = 0; i < width; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i) & 0xff);
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.begin() + width);
}

void CanonicalWriter::counted(char letter, std::span<const std::byte> value) {
  tag(letter);
  word(value.size(), 8);
  bytes_.insert(bytes_.end(), value.begin(), value.end());
}

CanonicalWriter& CanonicalWriter::boolean(bool value) {
  tag(kBoolean);
  word(value ? 1 : 0, 1);
  return *this;
}

CanonicalWriter& CanonicalWriter::integer(std::int64_t value) {
  tag(kInteger);
  word(static_cast<std::uint64_t>(value), 8);
  return *this;
}

CanonicalWriter& CanonicalWriter::real(float value) {
  tag(kReal);
  word(std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

CanonicalWriter& CanonicalWriter::text(std::string_view value) {
  counted(kText, std::as_bytes(std::span(value)));
  return *this;
}

CanonicalWriter& CanonicalWriter::bytes(std::span<const std::byte> value) {
  counted(kBytes, value);
  return *this;
}

CanonicalWriter& CanonicalWriter::list(std::size_t count) {
  tag(kList);
  word(count, 8);
  return *this;
}

std::uint64_t CanonicalReader::word(char letter, std::size_t width) {
  ok_ = ok_ && rest_.size() > width && rest_[0] == static_cast<std::byte>(letter);
  if (!ok_) return 0;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value |= static_cast<std::uint64_t>(rest_[i + 1]) << (8 * i);
  rest_ = rest_.subspan(width + 1);
  return value;
}

std::span<const std::byte> CanonicalReader::counted(char letter) {
  const std::uint64_t count = word(letter, 8);
  ok_ = ok_ && count <= rest_.size();
  if (!ok_) return {};
  const auto value = rest_.first(count);
  rest_ = rest_.subspan(count);
  return value;
}

bool CanonicalReader::boolean() {
  const std::uint64_t value = word(kBoolean, 1);
  ok_ = ok_ && value <= 1;
  return ok_ && value == 1;
}

std::int64_t CanonicalReader::integer() { return static_cast<std::int64_t>(word(kInteger, 8)); }

float CanonicalReader::real() { return std::bit_cast<float>(static_cast<std::uint32_t>(word(kReal, 4))); }

std::string CanonicalReader::text() {
  const auto value = counted(kText);
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

Bytes CanonicalReader::bytes() {
  const auto value = counted(kBytes);
  return {value.begin(), value.end()};
}

std::size_t CanonicalReader::list() {
  const std::uint64_t count = word(kList, 8);
  // Every element takes at least one byte.
  ok_ = ok_ && count <= rest_.size();
  return ok_ ? count : 0;
}

}  // namespace scoremod
