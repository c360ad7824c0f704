#include "scoremod/error.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "base/fail.hpp"

namespace scoremod {
namespace {

TEST(Error, CodesHaveNames) {
  EXPECT_STREQ(to_string(ErrorCode::kInvalidArgument), "invalid argument");
  EXPECT_STREQ(to_string(ErrorCode::kUnsupported), "unsupported");
  EXPECT_STREQ(to_string(ErrorCode::kEnvironment), "environment");
  EXPECT_STREQ(to_string(ErrorCode::kBug), "bug");
}

TEST(Fail, ThrowsItsCodeAndJoinsItsParts) {
  const auto thrown = [](const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return std::pair(error.code(), std::string(error.what()));
    }
    return std::pair(ErrorCode::kBug, std::string("nothing"));
  };
  EXPECT_EQ(thrown([] { fail_argument("expected ", 1, ", found ", 2.5); }),
            std::pair(ErrorCode::kInvalidArgument, std::string("expected 1, found 2.5")));
  EXPECT_EQ(thrown([] { fail_unsupported("x"); }), std::pair(ErrorCode::kUnsupported, std::string("x")));
  EXPECT_EQ(thrown([] { fail_environment("x"); }), std::pair(ErrorCode::kEnvironment, std::string("x")));
  EXPECT_EQ(thrown([] { fail_bug("x"); }),
            std::pair(ErrorCode::kBug, std::string("internal error, please report it: x")));
}

TEST(Error, SaysAllOfAMessageThatHasANul) {
  EXPECT_STREQ(Error(ErrorCode::kBug, std::string("found 'a\0b', expected a", 23)).what(), "found 'a?b', expected a");
}

}  // namespace
}  // namespace scoremod
