#include "base/warning.hpp"

#include <cstdio>
#include <mutex>
#include <utility>

#include "base/fork_mutex.hpp"

namespace scoremod {
namespace {

struct HandlerState {
  ForkMutex mutex;
  WarningHandler handler;
};

/// Never destroyed: threads may warn while the process ends.
HandlerState& state() {
  static auto& made = *new HandlerState;
  return made;
}

}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().handler, std::move(handler));
}

void emit_warning(const std::string& text) {
  WarningHandler handler;
  {
    const std::lock_guard lock(state().mutex);
    handler = state().handler;
  }
  if (handler) {
    handler(text);
  } else {
    std::fprintf(stderr, "scoremod: warning: %s\n", text.c_str());
  }
}

}  // namespace scoremod
