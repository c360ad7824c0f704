#include "backend/cudnn/graph/library.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <string>

#include <gtest/gtest.h>

#include "support/host_library.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// No cuDNN has this version.
constexpr std::size_t kVersion = 99907;

/// A folder as a Python package installs it, with stand-ins for two of cuDNN's libraries.
class Package {
 public:
  Package() {
    test::compile_library("extern \"C\" unsigned long cudnnGetVersion() { return 99907; }", whole(), "libcudnn.so.9");
    test::compile_library("int none;", part(), "libcudnn_graph.so.9");
  }
  std::string whole() const { return folder_.path() / "libcudnn.so.9"; }
  std::string part() const { return folder_.path() / "libcudnn_graph.so.9"; }

 private:
  test::ScratchFolder folder_;
};

/// 0 where there is none.
std::size_t version_found() {
  const cuda::SharedLibrary found = open_cudnn();
  if (found.handle == nullptr) return 0;
  return reinterpret_cast<std::size_t (*)()>(cuda::symbol_of(found, "cudnnGetVersion"))();
}

/// The version that a process finds after it loaded a library as frameworks do. A loaded library stays loaded, hence a
/// child process.
void expect_version_after(const std::string& loaded, bool expected) {
  // A process of its own, in which no other test has loaded cuDNN.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (!loaded.empty()) dlopen(loaded.c_str(), RTLD_NOW | RTLD_LOCAL);
        std::_Exit((version_found() == kVersion) == expected ? 0 : 1);
      },
      testing::ExitedWithCode(0), "")
      << loaded;
}

TEST(CudnnLibrary, ThatAFrameworkLoadedIsTheOne) {
  const Package package;
  expect_version_after(package.whole(), true);
  expect_version_after("", false);
}

TEST(CudnnLibrary, BesideALoadedPartIsTheOne) {
  const Package package;
  expect_version_after(package.part(), true);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
