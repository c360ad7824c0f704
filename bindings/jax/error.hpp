#pragma once

#include <exception>
#include <string>

#include "scoremod/error.hpp"

#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

/// The XLA error with scoremod's message.
inline xla::ffi::Error to_xla(const Error& error) {
  const std::string message = std::string("scoremod: ") + to_string(error.code()) + ": " + error.what();
  switch (error.code()) {
    case ErrorCode::kInvalidArgument: return xla::ffi::Error::InvalidArgument(message);
    case ErrorCode::kUnsupported: return xla::ffi::Error(xla::ffi::ErrorCode::kUnimplemented, message);
    case ErrorCode::kEnvironment: return xla::ffi::Error(xla::ffi::ErrorCode::kFailedPrecondition, message);
    case ErrorCode::kBug: break;
  }
  return xla::ffi::Error::Internal(message);
}

/// Runs body(); no exception leaves, for XLA is built without them.
template <class Body>
xla::ffi::Error guarded(const Body& body) {
  try {
    body();
    return xla::ffi::Error::Success();
  } catch (const Error& error) {
    return to_xla(error);
  } catch (const std::exception& error) {
    return xla::ffi::Error::Internal(std::string("scoremod: ") + error.what());
  }
}

}  // namespace scoremod::jax
