#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace scoremod::fuzz {

/// An input's bytes, each of which decides one thing. A byte of 0 takes what is right, and so does each one after the
/// end: short inputs are right calls with few mistakes, which get past the first check.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }

  /// The right value, unless the byte is the number of a wrong one.
  template <class Value>
  Value right_or(Value right, std::initializer_list<Value> wrong) {
    const std::size_t number = byte();
    return number == 0 || number > wrong.size() ? right : wrong.begin()[number - 1];
  }

  /// One of values that are all right.
  template <class Value>
  Value among(std::initializer_list<Value> values) {
    return values.begin()[byte() % values.size()];
  }

  /// True for few bytes, and not for 0.
  bool rarely() { return byte() % 16 == 1; }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace scoremod::fuzz
