// WGMMAs of e4m3 numbers. A device is said to shift the 32 products of a step, and what they are added to, to the
// largest exponent among them. It cuts off all beyond 13 bits of a fraction, and of the sum again ("MMA-Sim:
// Bit-Accurate Reference Model of Tensor Cores and Matrix Cores", 2025).
#include <cmath>

#include "emulated/state.hpp"

namespace emulated {
namespace {

constexpr int kKeptBits = 13;

float number_of_e4m3(unsigned code) {
  const int exponent = (int)(code >> 3 & 15u), mantissa = (int)(code & 7u);
  if ((code & 0x7fu) == 0x7fu) return NAN;
  const float magnitude = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
  return code & 0x80u ? -magnitude : magnitude;
}

/// The factor that makes the last bit that is kept, of a number as large as this one, that of the units.
double units_of(double largest) { return ldexp(1.0, kKeptBits - ilogb(largest)); }

float sum_of_step(float before, const float (&left)[32], const float* right) {
  double terms[33], largest = 0;
  for (int k = 0; k < 33; ++k) {
    terms[k] = k == 32 ? (double)before : (double)left[k] * right[k];
    if (terms[k] - terms[k] != 0) return NAN;
    largest = std::max(largest, fabs(terms[k]));
  }
  if (largest == 0) return 0.0f;
  double units = units_of(largest);
  long long sum = 0;
  for (const double term : terms) sum += (long long)(term * units);
  if (sum == 0) return 0.0f;
  const double total = (double)sum / units;
  units = units_of(total);
  return (float)((double)(long long)(total * units) / units);
}

float number_along(unsigned view, int number, int k) {
  const unsigned start = (view & 0x3fffu) << 4;
  return number_of_e4m3(*byte_at(swizzled(start + number / 8 * 1024 + number % 8 * 128 + k)));
}

}  // namespace

unsigned e4m3_of(float x) {
  if (x != x) return 0x7fu;
  const unsigned sign = std::signbit(x) ? 0x80u : 0u;
  const float magnitude = fabsf(x);
  if (magnitude >= 448.0f) return sign | 0x7eu;
  if (magnitude == 0.0f) return sign;
  int exponent = ilogbf(magnitude);
  if (exponent < -6) exponent = -6;
  int digits = (int)nearbyintf(ldexpf(magnitude, 3 - exponent));
  if (digits == 16) {
    digits = 8;
    ++exponent;
  }
  return sign | (unsigned)(digits < 8 ? digits : (exponent + 7) * 8 + digits - 8);
}

void multiply_float8(unsigned warp, Step* const (&lanes)[32]) {
  const Step& first = *lanes[0];
  static float left[16][32];
  static std::vector<float> right;
  right.resize((size_t)first.columns * 32);
  for (int lane = 0; lane < 32; ++lane) {
    const Step& step = *lanes[lane];
    check_same(step, first);
    if (step.a.registers == nullptr) continue;
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 4; ++i)
        left[lane / 4 + part % 2 * 8][lane % 4 * 4 + i + part / 2 * 16] =
            number_of_e4m3(step.a.registers[part] >> (8 * i) & 0xffu);
  }
  if (first.a.registers == nullptr)
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 32; ++k) left[row][k] = number_along(first.a.view, (int)(warp % 4) * 16 + row, k);
  for (int column = 0; column < first.columns; ++column)
    for (int k = 0; k < 32; ++k) right[column * 32 + k] = number_along(first.b, column, k);
  for (int lane = 0; lane < 32; ++lane) {
    Step& step = *lanes[lane];
    for (int n = 0; n < step.columns / 8; ++n)
      for (int e = 0; e < 4; ++e)
        step.sums[n][e] =
            sum_of_step(step.sum_before(n, e), left[lane / 4 + e / 2 * 8], &right[(n * 8 + lane % 4 * 2 + e % 2) * 32]);
  }
}

}  // namespace emulated
