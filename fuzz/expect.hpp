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

/// Whether `read` took its input. Refusing it is fine, as the caller's mistake or as unsupported; any other error is a
/// finding, and so is any other exception, which passes through.
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
