#include "scoremod/call_timer.hpp"

#include "backend/backend.hpp"

namespace scoremod {

struct CallTimer::State {
  State(const Attention& attention, void* stream)
      : space(backend::find_backend(attention.backend()).memory()), device(attention.device()) {
    const backend::DeviceScope current(space, device);
    stopwatch = space.stopwatch(stream);
  }
  const backend::MemorySpace& space;
  int device;
  std::unique_ptr<backend::Stopwatch> stopwatch;
};

CallTimer::CallTimer(const Attention& attention, void* stream) : state_(new State(attention, stream)) {}
CallTimer::CallTimer(CallTimer&&) noexcept = default;
CallTimer& CallTimer::operator=(CallTimer&&) noexcept = default;
CallTimer::~CallTimer() = default;

void CallTimer::start() {
  const backend::DeviceScope current(state_->space, state_->device);
  state_->stopwatch->start();
}

double CallTimer::stop() {
  const backend::DeviceScope current(state_->space, state_->device);
  return state_->stopwatch->stop();
}

}  // namespace scoremod
