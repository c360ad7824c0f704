#include "support/any_program.hpp"

#include <random>

#include "check/random_program.hpp"

namespace scoremod::test {

Program any_program(std::uint64_t seed) {
  checking::RandomProgramOptions options;
  options.continuity = checking::Continuity::kAny;
  options.tame = seed % 2 == 0;
  options.adjoint_roots = seed % 3 == 0;
  options.infinity_mask_probability = 0.2;
  options.max_nodes = seed % 5 == 0 ? 400 : 40;
  std::mt19937_64 random(seed);
  return checking::random_program(random, options);
}

}  // namespace scoremod::test
