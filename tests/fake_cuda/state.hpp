#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "fake_cuda/cubin.hpp"
#include "fake_cuda/fake_cuda.hpp"

// State and checks that the functions of the driver and the runtime share.

namespace scoremod::test::fake_cuda {

/// Memory of a device. Its addresses are none of the process: a host that reads them crashes, as with a real device.
/// Between two of them are addresses that are nobody's, and none is given twice.
struct Allocation {
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  int device = 0;
  std::size_t size = 0;
  std::unique_ptr<std::byte, Free> contents;  ///< not by operator new, which a test may watch
  bool of_pool = false;                       ///< and so stays when the device is reset
};

struct Module;
/// A kernel in a module: CUfunction points to one.
struct Function {
  const Module* module = nullptr;
  Kernel kernel;
  std::int64_t shared_limit = 0;  ///< static and dynamic, bytes of a block
};

struct Module {
  int device = 0;
  std::vector<Function> functions;
};

/// A launch that a graph holds.
struct Work {
  std::string kernel;
  Module* module = nullptr;
  std::vector<std::uint64_t> words;  ///< of the parameters
};

struct Graph {
  std::vector<Work> work;
};

struct Stream {
  int device = 0;
  std::unique_ptr<Graph> captured;  ///< while it captures
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  std::thread::id captured_by;  ///< the thread that began to capture
  bool broken = false;          ///< by a call that captures forbid
};

struct Event {
  int device = 0;
  bool is_recorded = false;
  bool is_ahead = false;  ///< the device has not come to it yet
};

/// A device's primary context: CUcontext points to one.
struct Context {
  int device = 0;
  std::uint64_t id = 0;
  bool is_there = true;  ///< false from a reset until the runtime makes it anew
};

class State {
 public:
  std::mutex mutex;
  std::vector<nlohmann::json> devices;
  std::vector<Context> contexts;  ///< one for each device
  std::uint64_t next_context = 1;
  bool is_initialized = false;  ///< by the first function of the runtime, as cuInit() does it

  std::map<std::uint64_t, Allocation> allocations;
  /// The next allocation begins here. The numbers that kernels take (sizes, strides, call ids of 48 bits) are smaller.
  std::uint64_t next_address = kFirstAddress;
  std::set<Module*> modules;
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::set<int*> pools;  ///< each is its device
  std::set<Graph*> graphs;

  std::vector<Launch> launches;
  std::vector<std::string> violations;
  std::size_t waits = 0;  ///< of hosts

  static constexpr std::uint64_t kFirstAddress = std::uint64_t{0x00d0} << 48,
                                 kEndOfAddresses = std::uint64_t{0x00d1} << 48;
  static bool is_device_address(std::uint64_t address) { return address >= kFirstAddress && address < kEndOfAddresses; }

  /// The allocation that has all of these bytes; null where none has.
  Allocation* allocation_of(std::uint64_t address, std::size_t bytes);
  std::byte* contents(std::uint64_t address);
  std::uint64_t allocate(int device, std::size_t bytes, bool of_pool);
  /// Makes a context that a reset destroyed anew.
  void make_there(Context& context);
};

/// The process's; never destroyed, since threads may call CUDA while it ends.
State& state();

/// The contexts that the calling thread has made current, the last on top; empty before it called the runtime.
struct ThreadState {
  int device = 0;
  std::vector<Context*> contexts;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  int last_error = 0;
};
ThreadState& thread_state();

/// A call of CUDA while it runs: no other one runs meanwhile. Each function that may fail begins with one.
class Call {
 public:
  enum class Fails : std::uint8_t {
    kWhenAsked,
    kWhenNothingWorks,  ///< asks only what the thread's own state is: it fails after a sticky error alone
  };
  explicit Call(const char* function, Fails fails = Fails::kWhenAsked);

  /// It fails because a test asked for it, or because of an earlier one.
  bool fails() const { return code_ != 0; }
  /// The function's return value.
  int code() const { return code_; }
  /// Breaks a rule of CUDA, which a test wants to know of: the call fails with this code.
  template <class... Parts>
  void refuse(int code, const Parts&... what) {
    std::ostringstream text;
    ((text << function_ << ": ") << ... << what);
    state().violations.push_back(text.str());
    code_ = code;
  }
  /// The call fails with this code, as a device would have it: it breaks no rule itself.
  void fail(int code) { code_ = code; }
  /// A call that ends the thread's own captures, and other threads' of the global mode, unless this thread is in
  /// relaxed mode.
  void must_not_meet_captures();
  /// A call that ends each capture on its device, whatever the modes are.
  void end_captures();
  /// The runtime makes the device's primary context current in a thread that has none.
  void bind_device();

 private:
  std::scoped_lock<std::mutex> lock_;
  const char* function_;
  int code_ = 0;
};

/// Whether a handle is one of these; else the call is refused.
template <class Thing>
bool is_known(Call& call, const std::set<Thing*>& things, const void* handle, const char* what) {
  if (std::ranges::any_of(things, [&](const Thing* thing) { return thing == handle; })) return true;
  call.refuse(cudaErrorInvalidResourceHandle, "expected ", what, ", found a handle of none");
  return false;
}

/// CUDA's own words for the codes that tests ask for.
const char* text_of(int code);

/// Copies memory that the process may not have: how a driver would crash, found without crashing.
bool copy_if_readable(const void* from, std::byte* to, std::size_t bytes);

using Sizes = std::array<unsigned, 3>;
/// All that a launch must keep to. Gives the parameters' words, for graphs.
std::vector<std::uint64_t> check_launch(Call& call, const Function& function, const Sizes& grid, const Sizes& block,
                                        unsigned shared_bytes, void** parameters);
/// That what looks like an address of a device is one of a live allocation of this device.
void check_addresses(Call& call, const std::string& kernel, int device, const std::vector<std::uint64_t>& words);

}  // namespace scoremod::test::fake_cuda
