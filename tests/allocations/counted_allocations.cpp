#include "allocations/counted_allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
std::atomic<std::int64_t> made_so_far{0}, freed{0};
std::atomic<std::int64_t> first_failing{kNever}, last_failing{kNever};
std::atomic<bool> failed{false};

void* allocate(std::size_t bytes, std::size_t alignment) {
  const std::int64_t number = made_so_far++;
  if (number >= first_failing && number <= last_failing) {
    failed = true;
    ++freed;
    return nullptr;
  }
  bytes = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, bytes == 0 ? alignment : bytes);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) ++freed;
  std::free(memory);
}

constexpr std::size_t kAlignment = alignof(std::max_align_t);

}  // namespace

// NOLINTBEGIN(misc-new-delete-overloads)
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kAlignment); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kAlignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kAlignment); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kAlignment); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
// NOLINTEND(misc-new-delete-overloads)

namespace scoremod::test {

void Allocations::fail(std::int64_t number, Failing failing) {
  failed = false;
  const std::int64_t first = made_so_far + number;
  last_failing = failing == Failing::kOne ? first : kNever;
  first_failing = first;
}

bool Allocations::stop() {
  first_failing = kNever;
  last_failing = kNever;
  return failed;
}

std::int64_t Allocations::made() { return made_so_far; }
std::int64_t Allocations::live() { return made_so_far - freed; }

}  // namespace scoremod::test
