#include "support/host_library.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "base/fail.hpp"

namespace scoremod::test {

namespace {

/// Links them beside the text, so that the text names them alike everywhere: ccache finds an object by its sources.
void link_headers(const std::filesystem::path& header, const std::filesystem::path& folder) {
  for (const char* const end : {"", ".gch", ".gch.sum"}) {
    const std::filesystem::path file = header.string() + end;
    if (std::filesystem::exists(file)) std::filesystem::create_symlink(file, folder / file.filename());
  }
}

}  // namespace

void compile_library(const std::string& text, const std::string& path, const std::string& soname,
                     const std::string& options, const std::string& objects) {
  const std::filesystem::path place(path);
  const std::string name = place.filename().string();
  std::ofstream(path + ".cpp") << text;
  const std::string command =
      concat("cd '", place.parent_path().string(), "' && ", SCOREMOD_TEST_LAUNCHER, " '", SCOREMOD_TEST_CXX, "' ",
             SCOREMOD_TEST_HOST_FLAGS, " ", options, " -c ", name, ".cpp -o ", name, ".o && '", SCOREMOD_TEST_CXX,
             "' -shared -Wl,-Bsymbolic ", soname.empty() ? "" : "-Wl,-soname,", soname, " -o ", name, " ", name, ".o ",
             objects);
  if (std::system(command.c_str()) != 0) fail_bug("generated code does not compile: ", command);
}

HostLibrary::HostLibrary(const std::string& text, const std::string& options, const std::string& header,
                         const std::string& objects) {
  folder_ = (std::filesystem::temp_directory_path() / "scoremod_XXXXXX").string();
  if (mkdtemp(folder_.data()) == nullptr) fail_environment("no temporary folder ", folder_);
  const std::filesystem::path first(header);
  if (!header.empty()) link_headers(first, folder_);
  const std::string library = folder_ + "/program.so";
  compile_library(text, library, "",
                  header.empty() ? options : concat(options, " -include ", first.filename().string()), objects);
  handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) fail_environment(dlerror());
}

HostLibrary::~HostLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
  std::filesystem::remove_all(folder_);
}

void* HostLibrary::symbol(const std::string& name) const { return dlsym(handle_, name.c_str()); }

}  // namespace scoremod::test
