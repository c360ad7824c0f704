#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "scoremod/error.hpp"

#include "c_structs/choices.hpp"

namespace scoremod::fuzz {

[[noreturn]] inline void refuse(const char* why) { throw Error(ErrorCode::kInvalidArgument, why); }

/// The size of a struct that a caller names.
struct DrawnSize {
  std::size_t said = 0;    ///< 0: what sizeof says, which is right
  bool has_field = false;  ///< whether a field is set that no header has yet
};

/// boundaries: where a header may have ended, which are the places of the fields that came later.
inline DrawnSize draw_size(Choices& choices, std::size_t size, std::span<const std::size_t> boundaries) {
  const std::size_t older = boundaries[choices.byte() % boundaries.size()];
  DrawnSize drawn{
      choices.right_or<std::size_t>(0, {older, older, older, size + 16, size + 16, 1, 7, 4097, ~std::size_t{0}})};
  drawn.has_field = drawn.said == size + 16 && choices.rarely();
  return drawn;
}

/// A struct as a caller with some header has it. Its memory has the size that its struct_size says and no more, so that
/// the address sanitizer sees what reads behind it.
template <class Struct>
class GivenStruct {
 public:
  GivenStruct(const Struct& full, const DrawnSize& size) : said_(size.said == 0 ? sizeof(Struct) : size.said) {
    const bool is_refused = said_ < sizeof said_ || said_ > kMaxSize;
    bytes_.resize(is_refused ? sizeof(Struct) : said_);
    std::memcpy(bytes_.data(), &full, std::min(bytes_.size(), sizeof full));
    std::memcpy(bytes_.data(), &said_, sizeof said_);
    if (size.has_field) bytes_.back() = std::byte{1};
    bytes_.shrink_to_fit();
  }

  Struct* get() { return reinterpret_cast<Struct*>(bytes_.data()); }

  /// Whether a field's memory, `bytes` of it, is there.
  bool has(std::size_t offset, std::size_t bytes) const { return offset + bytes <= bytes_.size(); }

  /// The struct as the library has to understand it. Throws Error(kInvalidArgument).
  Struct understood() const {
    if (said_ < sizeof said_ || said_ > kMaxSize) refuse("struct_size");
    Struct made{};
    const std::size_t known = std::min(bytes_.size(), sizeof made);
    std::memcpy(&made, bytes_.data(), known);
    const auto is_set = [](std::byte byte) { return byte != std::byte{0}; };
    if (std::any_of(bytes_.begin() + static_cast<std::ptrdiff_t>(known), bytes_.end(), is_set)) refuse("a newer field");
    return made;
  }

 private:
  static constexpr std::size_t kMaxSize = 4096;

  std::size_t said_;
  std::vector<std::byte> bytes_;
};

}  // namespace scoremod::fuzz
