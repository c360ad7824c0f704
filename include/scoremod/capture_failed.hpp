#pragma once

#include <string>

#include "scoremod/error.hpp"
#include "scoremod/export.hpp"

namespace scoremod {

/// The error of a call whose stream captures a CUDA graph. The graph has not all of the call, so nobody may replay it.
class SCOREMOD_API CaptureFailed : public Error {
 public:
  CaptureFailed(ErrorCode code, const std::string& message) : Error(code, message) {}
};

}  // namespace scoremod
