#include "backend/cuda/device/retirement.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "scoremod/error.hpp"

#include "backend/cuda/device/load_stub_driver.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/background_thread.hpp"

namespace scoremod::backend::cuda {
namespace {

/// Only a job destroys cuDNN's graphs in turn with the threads that build others.
struct Retirement {
  static constexpr auto kAtEnd = BackgroundThread::AtEnd::kRuns;
};

void run(const std::function<void()>& job) {
  try {
    std::optional<RelaxedCapture> relaxed;
    if (library().available && missing_driver().empty()) relaxed.emplace();
    job();
  } catch (const Error&) {
    return;  // The driver is gone already, and with it the plan's objects.
  }
}

}  // namespace

void retire(std::function<void()> job) noexcept {
  try {
    BackgroundThread::of_process<Retirement>().add([job = std::move(job)] { run(job); });
  } catch (const std::exception&) {
    return;  // The system gave no thread or no memory: the plan's objects stay until the process ends.
  }
}

}  // namespace scoremod::backend::cuda
