#include "base/environment.hpp"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod {
namespace {

constexpr const char* kName = "SCOREMOD_TEST_VARIABLE";

class Environment : public testing::Test {
 protected:
  ~Environment() override { unsetenv(kName); }
};

TEST_F(Environment, ReadsAVariable) {
  EXPECT_EQ(environment_variable(kName), "");
  setenv(kName, "wait", 1);
  EXPECT_EQ(environment_variable(kName), "wait");
}

TEST_F(Environment, ReadsAFlag) {
  for (const bool otherwise : {false, true}) {
    unsetenv(kName);
    EXPECT_EQ(environment_flag(kName, otherwise), otherwise);
    setenv(kName, "", 1);
    EXPECT_EQ(environment_flag(kName, otherwise), otherwise);
    setenv(kName, "0", 1);
    EXPECT_FALSE(environment_flag(kName, otherwise));
    setenv(kName, "1", 1);
    EXPECT_TRUE(environment_flag(kName, otherwise));
  }
}

TEST_F(Environment, RefusesAFlagThatIsNone) {
  for (const char* value : {"yes", "2", " 1", "01"}) {
    setenv(kName, value, 1);
    try {
      environment_flag(kName, false);
      ADD_FAILURE() << "expected a refusal of '" << value << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(std::string(error.what()),
                std::string("SCOREMOD_TEST_VARIABLE: expected 0 or 1, found '") + value + "'");
    }
  }
}

}  // namespace
}  // namespace scoremod
