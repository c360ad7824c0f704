#include "backend/cudnn/graph/engine.hpp"

#include <new>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend::cudnn {
namespace {

TEST(OutcomeOfBuild, TakesTheFrontendsExceptionsAloneForARefusal) {
  const auto of = [](auto thrown) { return outcome_of_build([&]() -> BuildOutcome { throw thrown; }); };
  EXPECT_EQ(of(std::runtime_error("no such node")).status, BuildStatus::kRefused);
  EXPECT_EQ(of(std::runtime_error("no such node")).text, "no such node");
  EXPECT_EQ(of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))).status,
            BuildStatus::kFailed);
  EXPECT_THROW(of(std::bad_alloc()), std::bad_alloc);
  EXPECT_THROW(of(std::logic_error("a mistake of ours")), std::logic_error);
  EXPECT_THROW(of(Error(ErrorCode::kEnvironment, "no driver")), Error);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
