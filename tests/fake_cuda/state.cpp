#include "fake_cuda/state.hpp"

#include <algorithm>
#include <fstream>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace scoremod::test::fake_cuda {
namespace {

/// The failure that a test asked for.
struct Fault {
  std::string function;  ///< any where it is empty
  std::int64_t left = 0;
  int code = 0;
  Failing failing = Failing::kOne;
  std::string failed;  ///< the first that did
};

std::optional<Fault>& fault() {
  static std::optional<Fault> planted;
  return planted;
}

/// The code that a call of this function fails with; 0 where it does not.
int planted_failure(const char* function, Call::Fails fails) {
  if (!fault()) return 0;
  Fault& planted = *fault();
  if (planted.failing == Failing::kRuntime) {
    if (!std::string_view(function).starts_with("cuda")) return 0;
    if (planted.failed.empty()) planted.failed = function;
    return planted.code;
  }
  if (!planted.failed.empty()) return planted.failing == Failing::kSticky ? planted.code : 0;
  const bool asked = planted.function.empty() || planted.function == function;
  if (fails == Call::Fails::kWhenNothingWorks || !asked || planted.left-- > 0) return 0;
  planted.failed = function;
  if (planted.failing != Failing::kEndsCaptures) return planted.code;
  for (Stream* stream : state().streams) stream->broken = stream->captured != nullptr;
  return 0;
}

}  // namespace

State& state() {
  static State& process = *new State;
  return process;
}

ThreadState& thread_state() {
  static thread_local ThreadState thread;
  return thread;
}

Allocation* State::allocation_of(std::uint64_t address, std::size_t bytes) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  const std::uint64_t offset = address - found->first, size = found->second.size;
  return offset < size && bytes <= size - offset ? &found->second : nullptr;
}

std::byte* State::contents(std::uint64_t address) {
  auto found = --allocations.upper_bound(address);
  return found->second.contents.get() + (address - found->first);
}

void State::make_there(Context& context) {
  if (context.is_there) return;
  context.is_there = true;
  context.id = next_context++;
}

std::uint64_t State::allocate(int device, std::size_t bytes, bool of_pool) {
  constexpr std::uint64_t kBetween = 65536, kAlignment = 256;
  const std::uint64_t address = next_address;
  next_address = (address + bytes + kBetween + kAlignment - 1) / kAlignment * kAlignment;
  auto* const contents = static_cast<std::byte*>(std::calloc(1, bytes));
  if (contents == nullptr) throw std::bad_alloc();
  allocations[address] = {device, bytes, std::unique_ptr<std::byte, Allocation::Free>(contents), of_pool};
  return address;
}

Call::Call(const char* function, Fails fails)
    : lock_(state().mutex), function_(function), code_(planted_failure(function, fails)) {}

const char* text_of(int code) {
  switch (code) {
    case CUDA_SUCCESS: return "no error";
    case CUDA_ERROR_INVALID_VALUE: return "invalid argument";
    case CUDA_ERROR_OUT_OF_MEMORY: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: return "the provided PTX was compiled with an unsupported toolchain.";
    case CUDA_ERROR_ASSERT: return "device-side assert triggered";
    case CUDA_ERROR_MISALIGNED_ADDRESS: return "misaligned address";
    case CUDA_ERROR_LAUNCH_FAILED: return "unspecified launch failure";
    case CUDA_ERROR_ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: return "operation failed due to a previous error during capture";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: return "too many resources requested for launch";
    case CUDA_ERROR_UNKNOWN: return "unknown error";
    default: return "an error that the fake driver has no text for";
  }
}

void Call::must_not_meet_captures() {
  const cudaStreamCaptureMode mode = thread_state().capture_mode;
  if (mode == cudaStreamCaptureModeRelaxed) return;
  for (Stream* stream : state().streams) {
    if (stream->captured == nullptr || stream->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool is_own = stream->captured_by == std::this_thread::get_id();
    const bool is_global = mode == cudaStreamCaptureModeGlobal && stream->mode == cudaStreamCaptureModeGlobal;
    if (!is_own && !is_global) continue;
    stream->broken = true;
    refuse(cudaErrorStreamCaptureUnsupported, "a stream captures, and the thread is not in relaxed mode");
  }
}

void Call::end_captures() {
  for (Stream* stream : state().streams) {
    if (stream->captured == nullptr || stream->device != thread_state().contexts.back()->device) continue;
    stream->broken = true;
    fail(cudaErrorStreamCaptureUnsupported);
  }
}

void Call::bind_device() {
  state().is_initialized = true;
  ThreadState& thread = thread_state();
  if (thread.contexts.empty()) thread.contexts.push_back(&state().contexts[static_cast<std::size_t>(thread.device)]);
  state().make_there(*thread.contexts.back());
}

void describe_devices(const std::vector<std::string>& files) {
  const std::scoped_lock lock(state().mutex);
  if (!state().devices.empty()) throw std::logic_error("the devices are described once");
  for (const std::string& file : files) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error("no such description of a device: " + file);
    state().contexts.push_back({static_cast<int>(state().devices.size()), state().next_context++});
    state().devices.push_back(nlohmann::json::parse(in));
  }
}

std::int64_t described(int device, const std::string& property) {
  return state().devices.at(static_cast<std::size_t>(device)).at(property).get<std::int64_t>();
}

std::vector<Launch> take_launches() {
  const std::scoped_lock lock(state().mutex);
  return std::exchange(state().launches, {});
}

std::size_t take_waits() {
  const std::scoped_lock lock(state().mutex);
  return std::exchange(state().waits, 0);
}

std::vector<std::string> take_violations() {
  const std::scoped_lock lock(state().mutex);
  return std::exchange(state().violations, {});
}

Live live() {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  return {s.modules.size(), s.allocations.size(), s.events.size(), s.streams.size(), s.pools.size(), s.graphs.size()};
}

void fail(const std::string& function, std::int64_t number, int code, Failing failing) {
  const std::scoped_lock lock(state().mutex);
  fault() = Fault{function, number, code, failing, {}};
}

std::string stop_failing() {
  const std::scoped_lock lock(state().mutex);
  std::string failed = fault() ? fault()->failed : "";
  fault().reset();
  return failed;
}

void reset_device(int device) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  const auto drop = [device](auto& things) {
    std::erase_if(things, [device](auto* thing) {
      if (thing->device != device) return false;
      delete thing;
      return true;
    });
  };
  drop(s.modules);
  drop(s.streams);
  drop(s.events);
  std::erase_if(s.allocations,
                [device](const auto& entry) { return entry.second.device == device && !entry.second.of_pool; });
  s.contexts.at(static_cast<std::size_t>(device)).is_there = false;
}

int last_error() { return thread_state().last_error; }

}  // namespace scoremod::test::fake_cuda
