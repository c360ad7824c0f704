#pragma once

#include <string>

#include "scoremod/error.hpp"
#include "scoremod/export.hpp"

namespace scoremod {

/// The kEnvironment error of a CUDA context that is lost, as after a kernel's illegal access. No later call on its
/// device works in this process; those on the host do.
class SCOREMOD_API ContextLost : public Error {
 public:
  explicit ContextLost(const std::string& message) : Error(ErrorCode::kEnvironment, message) {}
};

}  // namespace scoremod
