#include "backend/cuda/library.hpp"

#include <array>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

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

}  // namespace
}  // namespace scoremod::backend::cuda
