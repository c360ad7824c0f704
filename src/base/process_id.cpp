#include "base/process_id.hpp"

#include <atomic>
#include <pthread.h>
#include <unistd.h>

namespace scoremod {
namespace {

std::atomic<pid_t> known = 0;

}  // namespace

pid_t process_id() {
  static const bool hears_of_forks = pthread_atfork(nullptr, nullptr, [] { known = 0; }) == 0;
  pid_t id = known.load(std::memory_order_relaxed);
  if (id != 0 && hears_of_forks) return id;
  id = getpid();
  known.store(id, std::memory_order_relaxed);
  return id;
}

}  // namespace scoremod
