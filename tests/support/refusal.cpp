#include "support/refusal.hpp"

#include <gtest/gtest.h>

namespace scoremod::test {

std::string refusal(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected an Error";
  return "";
}

void expect_refusal(const std::string& part, const std::function<void()>& action, ErrorCode code) {
  const std::string message = refusal(action, code);
  EXPECT_NE(message.find(part), std::string::npos) << "expected '" << part << "' in: " << message;
}

}  // namespace scoremod::test
