// The compiler keeps the rounding of a conversion from double to float, also where it works on two values at once.
// Everything that is said about f32 programs rests on that, and GCC 12 breaks it without the option that
// cmake/ScoremodCompiler.cmake sets.
#include <gtest/gtest.h>

namespace {

struct Pair {
  double first = 0;
  double second = 0;
};

[[gnu::noinline]] void round_to_float(const Pair& in, Pair& out) {
  out.first = static_cast<float>(in.first);
  out.second = static_cast<float>(in.second);
}

TEST(FloatRounding, HoldsForNeighbouringValues) {
  // Volatile, so that the compiler can't do the conversion itself.
  const volatile double first = 2147483636.0;
  const volatile double second = 0.1;
  const Pair in{first, second};
  Pair out;
  round_to_float(in, out);
  EXPECT_EQ(out.first, 2147483648.0);
  EXPECT_EQ(out.second, 0x1.99999ap-4);
}

}  // namespace
