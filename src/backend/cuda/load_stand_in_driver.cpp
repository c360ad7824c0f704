#include "backend/cuda/load_stand_in_driver.hpp"

#include <array>
#include <dlfcn.h>
#include <filesystem>
#include <string>
#include <system_error>

#include "backend/cuda/library.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr const char* kFile = "stand_in_driver.so";

/// The folder of the library, or of the executable, that holds this code.
std::filesystem::path own_folder() {
  Dl_info self;
  std::error_code error;
  std::filesystem::path file;
  if (dladdr(reinterpret_cast<const void*>(&load_stand_in_driver), &self) != 0) {
    file = std::filesystem::canonical(self.dli_fname, error);
  }
  // The name of an executable is what it was called by, and may say nothing by now.
  if (file.empty() || error) file = std::filesystem::canonical("/proc/self/exe", error);
  return file.parent_path();
}

}  // namespace

void load_stand_in_driver() {
  // Left open: if this is the stand-in of an earlier call, or a driver, it is the one to use.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const std::filesystem::path folder = own_folder();
  std::string reason;
  for (const auto& file : {folder / "scoremod" / kFile, folder.parent_path() / "lib" / "scoremod" / kFile}) {
    // Its SONAME is libcuda.so.1, by which everything that looks for a driver finds it from now on.
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return look_for_driver_again();
    reason += concat(reason.empty() ? "" : "; ", dlerror());
  }
  fail_environment("no CUDA driver, and scoremod's stand-in for one could not be loaded: ", reason,
                   "; install scoremod with its folder lib/scoremod");
}

}  // namespace scoremod::backend::cuda
