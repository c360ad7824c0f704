#pragma once

#include <cstdint>
#include <string>

namespace scoremod::backend::cuda {

/// Which instructions a kernel is made of: those of every later architecture too, or also those that one alone has
/// (sm_90a), which PTX carries nowhere.
enum class Instructions : std::uint8_t { kCommon, kOfArchitecture };

/// Compiles CUDA C++ with NVRTC for devices of this compute capability (90 for sm_90): to machine code, or to PTX if
/// this NVRTC is older than the device. There is no fast math and no contraction, so each operation rounds as float32
/// does on the host. Needs no device. Throws Error(kEnvironment) if NVRTC cannot be loaded, with the loader's text, or
/// does not know the architecture. Throws Error(kBug) with the compiler's log if the source is wrong.
///
/// `report`, if it is given, gets ptxas' report on each kernel: registers, shared memory, bytes of register spills. It
/// is complete each time: the driver's cache, which keeps no report, is not used then.
std::string compile_kernels(const std::string& source, int compute_capability, std::string* report = nullptr,
                            Instructions instructions = Instructions::kCommon);

/// NVRTC's version, such as 13000 for 13.0. Throws Error(kEnvironment) when it cannot be loaded.
int compiler_version();

}  // namespace scoremod::backend::cuda
