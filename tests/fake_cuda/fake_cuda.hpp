#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// A CUDA driver and runtime without a GPU (libcuda.so.1 and libcudart.so.13 or .12), for tests of all that the host
/// does for a device. Its devices are those of description files, and their memory is the host's. A launch computes
/// nothing: it is checked, and its parameters are copied as a driver copies them.
namespace scoremod::test::fake_cuda {

/// The devices, by ordinal: files with the properties of one each, as cuDNN writes them. To be called before CUDA is.
void describe_devices(const std::vector<std::string>& files);
/// A number of the description of a device, such as "multiProcessorCount".
std::int64_t described(int device, const std::string& property);

/// A launch that the driver took.
struct Launch {
  std::string kernel;
  int device = 0;
  std::size_t parameter_bytes = 0;
  bool is_relaxed = false;  ///< the thread was in the relaxed mode of captures
};
/// Launches since the last time that this was asked.
std::vector<Launch> take_launches();

/// How often a host waited for a stream or an event since the last time that this was asked. An event is behind what
/// the device has done until somebody has asked for it, or waited for it.
std::size_t take_waits();

/// Each call that broke a rule of CUDA, with the rule; a real device may crash at it, or not show it.
/// They are those since the last time that this was asked.
std::vector<std::string> take_violations();

/// Counts of things that were made and not destroyed yet.
struct Live {
  std::size_t modules = 0, allocations = 0, events = 0, streams = 0, pools = 0, graphs = 0;
  bool operator==(const Live&) const = default;
};
Live live();

enum class Failing : std::uint8_t {
  kOne,           ///< that call alone: what runs on must be as it was
  kSticky,        ///< that call and all after it, as after a kernel's illegal access
  kRuntime,       ///< every call of the runtime, from the next one on, as with a driver that is older than it
  kEndsCaptures,  ///< none, but all captures are ended just before that call, as by another thread
};
/// From here on, call `number` (0 is the next one) of `function`, or of any where it is empty, fails with `code`. A
/// call that would make something makes nothing; one that destroys something destroys it.
void fail(const std::string& function, std::int64_t number, int code, Failing failing = Failing::kOne);
/// Nothing fails any more. The name of the function that failed since fail(); empty where none did.
std::string stop_failing();
/// Somebody resets a device (cudaDeviceReset): its primary context is gone with its modules, streams and events, and
/// with memory that no pool has. The next function of the runtime in it makes it anew, at the same address and with
/// another id. As on a device, old handles of modules are errors; streams and events would crash, and break a rule.
void reset_device(int device);

/// The error that the calling thread's next cudaGetLastError() returns.
int last_error();

}  // namespace scoremod::test::fake_cuda
