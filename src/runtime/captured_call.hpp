#pragma once

#include <functional>
#include <memory>

#include "backend/memory_space.hpp"
#include "backend/plan.hpp"
#include "runtime/with_memory.hpp"

namespace scoremod::runtime {

/// Names the plan that a captured call has run, which its graph needs; null in other calls.
using RanPlan = std::shared_ptr<const backend::Plan>*;

/// Runs a call whose stream captures a graph. Throws CaptureFailed in place of another Error, and if something else
/// has ended the capture meanwhile.
void run_captured(const backend::MemorySpace& memory, void* stream, const std::function<void(RanPlan)>& body);

/// Runs a call: body(RanPlan).
template <class Body>
void run_call(const char* what, const backend::MemorySpace& memory, void* stream, const Body& body) {
  const auto run = [&](RanPlan ran) { with_memory(what, [&] { body(ran); }); };
  if (memory.is_capturing(stream)) return run_captured(memory, stream, run);
  run(nullptr);
}

}  // namespace scoremod::runtime
