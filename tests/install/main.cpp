#include <cstdio>

#include <scoremod/error.hpp>
#include <scoremod/program.hpp>

// An exception thrown inside the library must be catchable outside, which hidden visibility can break.
int main() {
  const scoremod::Program identity;
  std::printf("the identity program has %zu node(s)\n", identity.nodes().size());
  try {
    throw scoremod::Error(scoremod::ErrorCode::kInvalidArgument, "thrown on purpose");
  } catch (const scoremod::Error&) {
    return identity.nodes().size() == 1 ? 0 : 1;
  }
}
