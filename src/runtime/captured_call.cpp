#include "runtime/captured_call.hpp"

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "scoremod/capture_failed.hpp"
#include "scoremod/context_lost.hpp"

#include "base/concat.hpp"

namespace scoremod::runtime {
namespace {

/// A captured graph replays at any time, and nobody says when it is destroyed: its plans stay until the process ends.
void keep_for_replays(std::shared_ptr<const backend::Plan> plan) {
  static std::mutex mutex;
  static auto& kept = *new std::set<std::shared_ptr<const backend::Plan>>;
  const std::lock_guard lock(mutex);
  kept.insert(std::move(plan));
}

/// `found` is the failed call's own message, if it failed.
[[noreturn]] void fail_ended(const std::string& found) {
  throw CaptureFailed(
      ErrorCode::kEnvironment,
      concat(
          "the capture of a CUDA graph on the call's stream was ended from outside, and the graph is lost: a wait for "
          "the whole device in any thread ends it (cudaDeviceSynchronize, torch.cuda.synchronize(), the start of "
          "torch.cuda.graph()); keep such calls out of captures, and capture again",
          found.empty() ? "" : "; found: ", found));
}

bool is_ended(const backend::MemorySpace& memory, void* stream) {
  return memory.capture(stream) == backend::StreamCapture::kEnded;
}

}  // namespace

void run_captured(const backend::MemorySpace& memory, void* stream, const std::function<void(RanPlan)>& body) {
  std::shared_ptr<const backend::Plan> ran;
  if (is_ended(memory, stream)) fail_ended("");
  try {
    // A library may load kernels where they are launched for the first time, which a capture forbids its own thread.
    const auto relaxed = memory.enter_planning();
    body(&ran);
  } catch (const ContextLost&) {
    throw;
  } catch (const Error& error) {
    if (is_ended(memory, stream)) fail_ended(error.what());
    throw CaptureFailed(error.code(), error.what());
  }
  // The end of a capture would say so, too. But a caller whose own books are wrong then, as XLA's are, has to know.
  if (is_ended(memory, stream)) fail_ended("");
  if (ran != nullptr) keep_for_replays(std::move(ran));
}

}  // namespace scoremod::runtime
