#include <bit>
#include <cmath>

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"

namespace scoremod::zoo {
namespace {

/// The i-th slope, from 1, of `heads` heads, which is a power of two.
float slope(int i, int heads) { return static_cast<float>(std::exp2(-8.0 * i / heads)); }

}  // namespace

std::vector<float> alibi_slopes(int heads) {
  constexpr int kMaxHeads = 1 << 16;
  if (heads < 1 || heads > kMaxHeads) {
    fail_argument("alibi_slopes: expected 1 to ", kMaxHeads, " heads, found ", heads);
  }
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)));
  std::vector<float> slopes;
  for (int i = 1; i <= power; ++i) slopes.push_back(slope(i, power));
  for (int i = 0; i < heads - power; ++i) slopes.push_back(slope(2 * i + 1, 2 * power));
  return slopes;
}

}  // namespace scoremod::zoo
