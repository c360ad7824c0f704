#include "runtime/request_memory.hpp"

#include <utility>

namespace scoremod::runtime {

Buffer RequestMemory::take(const backend::MemorySpace& space, std::size_t bytes, void* stream) {
  if (const std::uint64_t context = space.context(); context != context_) {
    // The device was reset: nothing runs in the old context any more, and what was allocated there may be gone.
    in_use_ = nullptr;
    memory_ = {};
    context_ = context;
  }
  const bool grows = memory_.bytes() < bytes;
  if (in_use_ != nullptr && (grows || stream != stream_)) {
    in_use_->wait();
    in_use_ = nullptr;
  }
  if (grows) {
    memory_ = {};  // first, so that both are not there at once
    memory_ = backend::OwnedMemory(space, bytes);
    space.wait(space.own_stream());  // calls are enqueued on other streams
  }
  return bytes == 0 ? Buffer{} : Buffer{memory_.data(), memory_.bytes()};
}

void RequestMemory::use_until(std::shared_ptr<const backend::StreamEvent> done, void* stream) {
  in_use_ = std::move(done);
  stream_ = stream;
}

}  // namespace scoremod::runtime
