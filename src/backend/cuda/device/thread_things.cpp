#include "backend/cuda/device/thread_things.hpp"

#include "backend/cuda/device/context.hpp"

namespace scoremod::backend::cuda {

void* IdleThings::take(std::uint64_t context) {
  const std::lock_guard lock(mutex_);
  std::vector<void*>& things = by_context_[context];
  if (things.empty()) return nullptr;
  void* const thing = things.back();
  things.pop_back();
  return thing;
}

void IdleThings::give_back(std::uint64_t context, void* thing) {
  const std::lock_guard lock(mutex_);
  by_context_[context].push_back(thing);
}

ThreadThings::~ThreadThings() {
  for (const auto& [context, thing] : by_context_) {
    if (thing != nullptr) idle_.give_back(context, thing);
  }
}

void* ThreadThings::of_current_context(void* (*make)()) {
  const std::uint64_t context = current_context();
  void*& thing = by_context_[context];
  if (thing == nullptr) thing = idle_.take(context);
  if (thing == nullptr) thing = make();
  return thing;
}

}  // namespace scoremod::backend::cuda
