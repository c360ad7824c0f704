#pragma once

#include <cstddef>
#include <span>

namespace scoremod::test {

/// Memory that ends where a page begins that nobody may touch: a read or write behind it ends the process, with and
/// without a sanitizer.
class ProtectedMemory {
 public:
  /// `behind` bytes lie between the last one and the page that nobody may touch, so that the first one's address may
  /// have any alignment. Throws std::bad_alloc.
  explicit ProtectedMemory(std::span<const std::byte> contents, std::size_t behind = 0);
  ~ProtectedMemory();
  ProtectedMemory(ProtectedMemory&& other) noexcept;
  ProtectedMemory(const ProtectedMemory&) = delete;
  ProtectedMemory& operator=(const ProtectedMemory&) = delete;
  ProtectedMemory& operator=(ProtectedMemory&&) = delete;

  /// From now on a write ends the process.
  void forbid_writes();

  std::byte* data() const { return first_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* pages_ = nullptr;
  std::size_t page_bytes_ = 0;
  std::byte* first_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace scoremod::test
