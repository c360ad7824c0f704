#include "base/cpu_threads.hpp"

#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// Both variables as a test sets them, and afterwards as they were.
class CpuThreads : public testing::Test {
 protected:
  CpuThreads() { unset(); }
  ~CpuThreads() override {
    unset();
    if (before_) setenv("OMP_NUM_THREADS", before_->c_str(), 1);
  }

 private:
  static void unset() {
    unsetenv("SCOREMOD_THREADS");
    unsetenv("OMP_NUM_THREADS");
  }
  static std::optional<std::string> value(const char* name) {
    const char* found = std::getenv(name);
    return found == nullptr ? std::nullopt : std::optional<std::string>(found);
  }
  const std::optional<std::string> before_ = value("OMP_NUM_THREADS");
};

TEST_F(CpuThreads, AreThoseThatAreAskedFor) {
  EXPECT_EQ(cpu_threads(7), 7);
  EXPECT_EQ(cpu_threads(0), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST_F(CpuThreads, AreOpenMPsWhereNobodyAsksForANumber) {
  for (const char* const text : {"3", "3,2,1"}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(cpu_threads(0), 3) << text;
    EXPECT_EQ(cpu_threads(5), 5) << text;
  }
  for (const char* const text : {"", "0", "-2", "many", "3 "}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(cpu_threads(0), static_cast<int>(std::thread::hardware_concurrency())) << text;
  }
}

TEST_F(CpuThreads, AreBoundedByTheOwnVariable) {
  setenv("OMP_NUM_THREADS", "6", 1);
  setenv("SCOREMOD_THREADS", "2", 1);
  EXPECT_EQ(cpu_threads(0), 2);
  EXPECT_EQ(cpu_threads(5), 2);
  EXPECT_EQ(cpu_threads(1), 1);
  for (const char* const text : {"0", "-1", "two", "2 ", "99999999999"}) {
    setenv("SCOREMOD_THREADS", text, 1);
    test::expect_refusal("SCOREMOD_THREADS: expected a number of CPU threads, at least 1, found '" + std::string(text),
                         [] { cpu_threads(0); });
  }
}

}  // namespace
}  // namespace scoremod
