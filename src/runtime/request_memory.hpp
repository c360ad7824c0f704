#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/memory_space.hpp"

namespace scoremod::runtime {

/// The workspace of one thread of a request queue, which its calls use in turn. It grows to the needs of the largest.
/// On one stream calls follow each other; one on another stream begins once the last is done, so that a thread's calls
/// follow each other everywhere.
class RequestMemory {
 public:
  /// At least `bytes` for a call on `stream`; empty for 0.
  Buffer take(const backend::MemorySpace& space, std::size_t bytes, void* stream);
  /// `done` comes behind the call's work on `stream`; null if that is done.
  void use_until(std::shared_ptr<const backend::StreamEvent> done, void* stream);

 private:
  backend::OwnedMemory memory_;
  std::uint64_t context_ = 0;                           ///< in which it was allocated
  std::shared_ptr<const backend::StreamEvent> in_use_;  ///< null where the last call is known to be done
  void* stream_ = nullptr;                              ///< that of the last call
};

}  // namespace scoremod::runtime
