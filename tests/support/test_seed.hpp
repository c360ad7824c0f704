#pragma once

#include <cstdint>

namespace scoremod::test {

/// The seed of this run's random tests: SCOREMOD_TEST_SEED if it is set, else a new one. Printed on first use. Give
/// each case a generator of its own, std::mt19937_64(test_seed() + case), so that a failure's case runs alone.
std::uint64_t test_seed();

}  // namespace scoremod::test
