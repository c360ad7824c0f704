#include "backend/cuda/device/library.hpp"

#include <array>
#include <cstdlib>
#include <dlfcn.h>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "support/host_library.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::backend::cuda {
namespace {

TEST(CudaLibrary, ThatIsMissingIsAReasonInTheLoadersWords) {
  const SharedLibrary missing = open_library(std::array{"libscoremod_none.so.1", "libscoremod_none.so.2"});
  EXPECT_EQ(missing.handle, nullptr);
  EXPECT_NE(missing.reason.find("libscoremod_none.so.1: cannot open shared object file"), std::string::npos)
      << missing.reason;
  EXPECT_NE(missing.reason.find("libscoremod_none.so.2"), std::string::npos) << missing.reason;
  try {
    symbol_of(missing, "cublasCreate_v2");
    FAIL() << "found a function of a library that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("cannot open shared object file"), std::string::npos) << error.what();
  }
}

TEST(CudaLibrary, WithoutTheFunctionIsTheEnvironmentsFault) {
  const SharedLibrary libc = open_library(std::array{"libc.so.6"});
  ASSERT_NE(libc.handle, nullptr) << libc.reason;
  EXPECT_NE(symbol_of(libc, "malloc"), nullptr);
  EXPECT_THROW(symbol_of(libc, "scoremod_none"), Error);
}

/// In a process with CUDA 12 that a framework brought along, a CUDA 13 on the loader's path is not the one to use.
TEST(CudaLibrary, ThatIsLoadedAlreadyComesBeforeANewerOne) {
  const test::ScratchFolder folder;
  const std::string newer = folder.path() / "newer.so", older = folder.path() / "older.so";
  test::compile_library("extern \"C\" int which() { return 13; }", newer, "libscoremod_stand_in.so.13");
  test::compile_library("extern \"C\" int which() { return 12; }", older, "libscoremod_stand_in.so.12");
  const auto which = [&] {
    const SharedLibrary found = open_library(std::array{newer.c_str(), "libscoremod_stand_in.so.12"});
    return reinterpret_cast<int (*)()>(symbol_of(found, "which"))();
  };
  EXPECT_EXIT(std::_Exit(which()), testing::ExitedWithCode(13), "");
  EXPECT_EXIT(
      {
        dlopen(older.c_str(), RTLD_NOW | RTLD_LOCAL);
        std::_Exit(which());
      },
      testing::ExitedWithCode(12), "");
}

TEST(CudaLibrary, HasTheFolderThatItWasLoadedFrom) {
  const test::ScratchFolder folder;
  const std::string path = folder.path() / "library.so";
  test::compile_library("int none;", path);
  const SharedLibrary library = open_library(std::array{path.c_str()});
  EXPECT_EQ(folder_of(library), folder.path().string() + "/");
  EXPECT_EQ(folder_of({}), "");
}

}  // namespace
}  // namespace scoremod::backend::cuda
