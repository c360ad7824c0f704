#include "base/companion_file.hpp"

#include <dlfcn.h>
#include <system_error>

namespace scoremod {
namespace {

/// The folder of the library, or of the executable, that holds this code.
std::filesystem::path own_folder() {
  Dl_info self;
  std::error_code error;
  std::filesystem::path file;
  if (dladdr(reinterpret_cast<const void*>(&companion_file), &self) != 0) {
    file = std::filesystem::canonical(self.dli_fname, error);
  }
  // The name of an executable is the one that it was called by, and may be stale.
  if (file.empty() || error) file = std::filesystem::canonical("/proc/self/exe", error);
  return file.parent_path();
}

}  // namespace

std::vector<std::filesystem::path> companion_file(std::string_view name) {
  const std::filesystem::path folder = own_folder();
  return {folder / "scoremod" / name, folder.parent_path() / "lib" / "scoremod" / name};
}

}  // namespace scoremod
