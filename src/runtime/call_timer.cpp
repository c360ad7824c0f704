#include "scoremod/call_timer.hpp"

#include "backend/backend.hpp"
#include "base/moved_from.hpp"

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

CallTimer::State& CallTimer::state() { return held_by(state_, "CallTimer"); }

void CallTimer::start() {
  const backend::DeviceScope current(state().space, state().device);
  state().stopwatch->start();
}

double CallTimer::stop() {
  const backend::DeviceScope current(state().space, state().device);
  return state().stopwatch->stop();
}

}  // namespace scoremod
