#include "support/protected_memory.hpp"

#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace scoremod::test {

ProtectedMemory::ProtectedMemory(std::span<const std::byte> contents, std::size_t behind) : size_(contents.size()) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t usable = (size_ + behind + page - 1) / page * page;
  page_bytes_ = usable + page;
  void* pages = mmap(nullptr, page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(static_cast<std::byte*>(pages) + usable, page, PROT_NONE) != 0)
    throw std::bad_alloc();
  pages_ = static_cast<std::byte*>(pages);
  first_ = pages_ + usable - behind - size_;
  if (size_ > 0) std::memcpy(first_, contents.data(), size_);
}

ProtectedMemory::~ProtectedMemory() {
  if (pages_ != nullptr) munmap(pages_, page_bytes_);
}

ProtectedMemory::ProtectedMemory(ProtectedMemory&& other) noexcept
    : pages_(std::exchange(other.pages_, nullptr)),
      page_bytes_(other.page_bytes_),
      first_(other.first_),
      size_(other.size_) {}

void ProtectedMemory::forbid_writes() {
  if (mprotect(pages_, page_bytes_ - static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_READ) != 0)
    throw std::bad_alloc();
}

}  // namespace scoremod::test
