#pragma once

#include "scoremod/error.hpp"

namespace scoremod::cli {

/// The command's exit codes, documented in docs/reference/command.md.
enum ExitCode : int {
  kFine = 0,
  kCheckFailed = 1,  ///< `check`: an output is further from the oracle than it may be; `cache verify`: damage
  kMistake = 2,      ///< the command line or a file
  kUnsupported = 3,
  kEnvironment = 4,  ///< memory, files that cannot be written
  kBug = 5,
};

inline ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return kMistake;
    case ErrorCode::kUnsupported: return kUnsupported;
    case ErrorCode::kEnvironment: return kEnvironment;
    case ErrorCode::kBug: return kBug;
  }
  return kBug;
}

}  // namespace scoremod::cli
