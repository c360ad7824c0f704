#pragma once

#include <functional>
#include <string>

#include "scoremod/error.hpp"

namespace scoremod::test {

/// The message of the Error of this kind that `action` must throw. The test fails where it throws none.
std::string refusal(const std::function<void()>& action, ErrorCode code = ErrorCode::kInvalidArgument);

/// Fails unless `action` throws such an Error with `part` in its message.
void expect_refusal(const std::string& part, const std::function<void()>& action,
                    ErrorCode code = ErrorCode::kInvalidArgument);

}  // namespace scoremod::test
