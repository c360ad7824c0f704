#include "fake_driver/guarded_heap.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <sys/mman.h>

namespace {

constexpr std::size_t kPage = 4096;
// A kernel's parameters, of 4096 bytes at most, and what holds them: two pages and the one that nobody may read.
constexpr std::size_t kRoom = 2 * kPage, kSlot = kRoom + kPage;
constexpr std::size_t kSlots = 4096;

constinit thread_local int scopes = 0;
std::atomic<std::int64_t> guarded_so_far{0}, left_out_so_far{0};

/// The free slots, as a list through their first words.
struct Slots {
  std::mutex mutex;
  std::byte* memory = nullptr;
  std::size_t used = 0;
  void* free = nullptr;

  bool has(const void* data) const { return memory != nullptr && data >= memory && data < memory + kSlots * kSlot; }

  std::byte* take() {
    const std::scoped_lock lock(mutex);
    if (memory == nullptr) {
      void* const pages = mmap(nullptr, kSlots * kSlot, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (pages == MAP_FAILED) return nullptr;
      memory = static_cast<std::byte*>(pages);
    }
    if (free != nullptr) {
      auto* const slot = static_cast<std::byte*>(free);
      free = *static_cast<void**>(free);
      return slot;
    }
    if (used == kSlots) return nullptr;
    std::byte* const slot = memory + used++ * kSlot;
    return mprotect(slot, kRoom, PROT_READ | PROT_WRITE) == 0 ? slot : nullptr;
  }

  void give_back(void* data) {
    const std::scoped_lock lock(mutex);
    const std::size_t number = static_cast<std::size_t>(static_cast<std::byte*>(data) - memory) / kSlot;
    std::byte* const slot = memory + number * kSlot;
    *reinterpret_cast<void**>(slot) = free;
    free = slot;
  }
};
/// Never destroyed, and made without an allocation.
constinit Slots slots;

void* allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (scopes != 0) {
    std::byte* const slot = rounded <= kRoom ? slots.take() : nullptr;
    if (slot != nullptr) {
      ++guarded_so_far;
      return slot + kRoom - rounded;
    }
    ++left_out_so_far;
  }
  return std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes == 0 ? 1 : bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (slots.has(memory)) return slots.give_back(memory);
  std::free(memory);
}

constexpr std::size_t kAlignment = alignof(std::max_align_t);

}  // namespace

// The array and nothrow forms call these.
// NOLINTBEGIN(misc-new-delete-overloads)
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kAlignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
// NOLINTEND(misc-new-delete-overloads)

namespace scoremod::test {

GuardedHeap::GuardedHeap() { ++scopes; }
GuardedHeap::~GuardedHeap() { --scopes; }
std::int64_t GuardedHeap::guarded() { return guarded_so_far; }
std::int64_t GuardedHeap::left_out() { return left_out_so_far; }

}  // namespace scoremod::test
