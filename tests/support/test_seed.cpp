#include "support/test_seed.hpp"

#include <cstdlib>
#include <iostream>
#include <random>

namespace scoremod::test {

std::uint64_t test_seed() {
  static const std::uint64_t kSeed = [] {
    const char* given = std::getenv("SCOREMOD_TEST_SEED");
    const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::cout << "SCOREMOD_TEST_SEED=" << seed << std::endl;
    return seed;
  }();
  return kSeed;
}

}  // namespace scoremod::test
