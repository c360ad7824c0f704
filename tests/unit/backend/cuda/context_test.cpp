#include "backend/cuda/device/context.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend::cuda {
namespace {

/// A driver with one thread: contexts are ints, whose value is their id.
struct FakeDriver {
  int* current = nullptr;
  int* primary = nullptr;
  int primaries_made = 0;
};
FakeDriver driver;

const ContextCalls kCalls{[]() -> void* { return driver.current; },
                          [] {
                            ++driver.primaries_made;
                            driver.current = driver.primary;
                          },
                          [](void* context) { return static_cast<std::uint64_t>(*static_cast<int*>(context)); }};

TEST(CurrentContext, IsTheThreadsOwnOrElseThePrimaryOne) {
  int primary = 1, other = 2;
  driver = {nullptr, &primary, 0};
  EXPECT_EQ(current_context(kCalls), 1u);
  EXPECT_EQ(driver.primaries_made, 1);
  driver.current = &other;
  EXPECT_EQ(current_context(kCalls), 2u);
  EXPECT_EQ(driver.primaries_made, 1);
}

TEST(CurrentContext, OfAThreadWithoutOneIsNotMade) {
  int primary = 1;
  driver = {nullptr, &primary, 0};
  EXPECT_FALSE(context_of_thread(kCalls));
  EXPECT_EQ(driver.primaries_made, 0);
  driver.current = &primary;
  EXPECT_EQ(context_of_thread(kCalls), 1u);
}

TEST(CurrentContext, AtTheAddressOfADestroyedOneIsAnother) {
  int memory = 7;
  driver = {&memory, &memory, 0};
  const std::uint64_t before = current_context(kCalls);
  memory = 8;  // destroyed, and a new one made in its place
  EXPECT_NE(current_context(kCalls), before);
}

TEST(CurrentContext, ThatCannotBeMadeIsAnError) {
  driver = {};
  try {
    current_context(kCalls);
    FAIL() << "found a context";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
  }
}

}  // namespace
}  // namespace scoremod::backend::cuda
