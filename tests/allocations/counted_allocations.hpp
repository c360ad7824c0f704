#pragma once

#include <cstdint>

namespace scoremod::test {

/// The program's operator new counts its calls in all threads, and fails those that a test asks for.
struct Allocations {
  enum class Failing {
    kOne,   ///< that one alone: what runs on must be as it was
    kRest,  ///< that one and all after it: a process without memory
  };
  /// From here on, allocation `number` (0 is the next one) throws std::bad_alloc.
  static void fail(std::int64_t number, Failing failing);
  /// Nothing fails any more. Whether something has failed since fail().
  static bool stop();
  /// Allocations since the program began, and of these the ones that were not freed.
  static std::int64_t made();
  static std::int64_t live();
};

}  // namespace scoremod::test
