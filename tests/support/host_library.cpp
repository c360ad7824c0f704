#include "support/host_library.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "base/fail.hpp"

namespace scoremod::test {

void compile_library(const std::string& text, const std::string& path, const std::string& soname,
                     const std::string& options) {
  const std::string source = path + ".cpp";
  std::ofstream(source) << text;
  const std::string command = concat(SCOREMOD_TEST_CXX, " ", SCOREMOD_TEST_HOST_FLAGS, " ", options, " -shared ",
                                     soname.empty() ? "" : "-Wl,-soname,", soname, " -o ", path, " ", source);
  if (std::system(command.c_str()) != 0) fail_bug("generated code does not compile: ", command);
}

HostLibrary::HostLibrary(const std::string& text, const std::string& options) {
  folder_ = (std::filesystem::temp_directory_path() / "scoremod_XXXXXX").string();
  if (mkdtemp(folder_.data()) == nullptr) fail_environment("no temporary folder ", folder_);
  const std::string library = folder_ + "/program.so";
  compile_library(text, library, "", options);
  handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) fail_environment(dlerror());
}

HostLibrary::~HostLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
  std::filesystem::remove_all(folder_);
}

void* HostLibrary::symbol(const std::string& name) const { return dlsym(handle_, name.c_str()); }

}  // namespace scoremod::test
