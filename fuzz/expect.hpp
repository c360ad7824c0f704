#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "scoremod/error.hpp"

namespace scoremod::fuzz {

/// Aborts if a property that every input must have does not hold, so that libFuzzer keeps the input.
inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "scoremod fuzz: this does not hold: %s\n", what);
  std::abort();
}

/// Whether `read` took its input. It may refuse it as the caller's mistake or as unsupported. Any other error or
/// exception is a finding and passes through.
inline bool takes(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    const bool refuses = error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported;
    expect(refuses, error.what());
    return false;
  }
}

}  // namespace scoremod::fuzz
