#include "backend/cuda/device/load_stub_driver.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <iostream>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/library.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

bool has_driver() { return dlopen("libcuda.so.1", RTLD_NOW) != nullptr; }

template <class Function>
Function entry_point(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(driver, name));
}

/// Ends a child process, because a stub driver that is loaded once is there for all.
[[noreturn]] void end(bool right, const char* what) {
  if (!right) std::cerr << what;
  std::_Exit(right ? 0 : 1);
}

TEST(LoadStubDriver, IsFoundAsTheDriverAndHasNoDevice) {
  if (has_driver()) GTEST_SKIP() << "this machine has a CUDA driver";
  EXPECT_EXIT(
      {
        load_stub_driver();
        const auto init = entry_point<int (*)(unsigned)>("cuInit");
        const auto count = entry_point<int (*)(int*)>("cuDeviceGetCount");
        int devices = -1;
        end(init != nullptr && init(0) == kNoDevice && count(&devices) == 0 && devices == 0, "cuInit");
      },
      testing::ExitedWithCode(0), "");
}

TEST(LoadStubDriver, LoadsModulesAndResolvesEntryPoints) {
  if (has_driver()) GTEST_SKIP() << "this machine has a CUDA driver";
  EXPECT_EXIT(
      {
        load_stub_driver();
        void* module = nullptr;
        const auto load = entry_point<int (*)(void**, const void*)>("cuModuleLoadData");
        const auto resolve = entry_point<int (*)(const char*, void**, int, std::uint64_t, int*)>("cuGetProcAddress_v2");
        void* launch = nullptr;
        void* later = nullptr;
        void* nothing = &nothing;
        const bool right = load(&module, "") == 0 && module != nullptr &&
                           resolve("cuLaunchKernel", &launch, 13000, 0, nullptr) == 0 &&
                           reinterpret_cast<int (*)()>(launch)() == kNoDevice &&
                           resolve("cuOfALaterCuda", &later, 14000, 0, nullptr) == 0 &&
                           reinterpret_cast<int (*)()>(later)() == kNoDevice &&
                           resolve("notOfCuda", &nothing, 13000, 0, nullptr) != 0 && nothing == nullptr;
        end(right, "an entry point");
      },
      testing::ExitedWithCode(0), "");
}

TEST(LoadStubDriver, LeavesTheReasonWhyThereIsNoDevice) {
  if (has_driver() || !library().reason.starts_with("no CUDA driver")) GTEST_SKIP() << "this machine has a CUDA driver";
  EXPECT_EXIT(
      {
        const std::string before = library().reason;
        load_stub_driver();
        std::string after = missing_driver();
        try {
          if (library().available) current_device_ordinal();
        } catch (const Error& error) {
          after = error.what();
        }
        end(after == before, after.c_str());
      },
      testing::ExitedWithCode(0), "");
}

TEST(LoadStubDriver, IsNeverFoundUnasked) {
  if (has_driver()) GTEST_SKIP() << "this machine has a CUDA driver";
  EXPECT_EQ(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr);
}

}  // namespace
}  // namespace scoremod::backend::cuda
