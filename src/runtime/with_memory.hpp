#pragma once

#include <new>

#include "base/fail.hpp"

namespace scoremod::runtime {

/// Runs body; the machine's being out of memory becomes the error that it is.
template <class Body>
auto with_memory(const char* what, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    fail_environment("out of memory in ", what,
                     ": the system refused an allocation; use a smaller problem or free memory");
  }
}

}  // namespace scoremod::runtime
