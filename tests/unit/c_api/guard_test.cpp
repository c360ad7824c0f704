#include "c_api/guard.hpp"

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::c_api {
namespace {

struct Outcome {
  scoremod_status status;
  std::string message;
};

template <class Body>
Outcome run(const Body& body) {
  char* message = nullptr;
  const scoremod_status status = guard(&message, body);
  Outcome outcome{status, message == nullptr ? "" : message};
  scoremod_text_free(message);
  return outcome;
}

TEST(Guard, SuccessClearsTheMessage) {
  char stale = 'x';
  char* message = &stale;
  EXPECT_EQ(guard(&message, [] {}), SCOREMOD_OK);
  EXPECT_EQ(message, nullptr);
}

TEST(Guard, EachKindOfErrorHasItsStatus) {
  const auto failing = [](ErrorCode code) { return run([code] { throw Error(code, "expected this"); }); };
  EXPECT_EQ(failing(ErrorCode::kInvalidArgument).status, SCOREMOD_INVALID_ARGUMENT);
  EXPECT_EQ(failing(ErrorCode::kUnsupported).status, SCOREMOD_UNSUPPORTED);
  EXPECT_EQ(failing(ErrorCode::kEnvironment).status, SCOREMOD_ENVIRONMENT);
  EXPECT_EQ(failing(ErrorCode::kBug).status, SCOREMOD_BUG);
  EXPECT_EQ(failing(ErrorCode::kUnsupported).message, "expected this");
}

TEST(Guard, NoExceptionLeaves) {
  const Outcome no_memory = run([] { throw std::bad_alloc(); });
  EXPECT_EQ(no_memory.status, SCOREMOD_ENVIRONMENT);
  EXPECT_NE(no_memory.message.find("out of memory"), std::string::npos);

  const Outcome no_thread =
      run([] { throw std::system_error(std::make_error_code(std::errc::operation_would_block)); });
  EXPECT_EQ(no_thread.status, SCOREMOD_ENVIRONMENT);
  EXPECT_NE(no_thread.message.find("Resource temporarily unavailable"), std::string::npos) << no_thread.message;

  const Outcome unexpected = run([] { throw std::logic_error("the reason"); });
  EXPECT_EQ(unexpected.status, SCOREMOD_BUG);
  EXPECT_NE(unexpected.message.find("the reason"), std::string::npos);

  EXPECT_EQ(run([] { throw 7; }).status, SCOREMOD_BUG);
}

TEST(Guard, MessageMayBeUnwanted) {
  EXPECT_EQ(guard(nullptr, [] { throw std::bad_alloc(); }), SCOREMOD_ENVIRONMENT);
}

TEST(Guard, RequireNamesTheArgument) {
  const char* const absent = nullptr;
  const Outcome missing = run([absent] { require(absent, "problem_json"); });
  EXPECT_EQ(missing.status, SCOREMOD_INVALID_ARGUMENT);
  EXPECT_NE(missing.message.find("problem_json"), std::string::npos);
  EXPECT_EQ(run([] { require("something", "problem_json"); }).status, SCOREMOD_OK);
}

}  // namespace
}  // namespace scoremod::c_api
