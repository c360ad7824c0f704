// Device primitives of the kernels with FP8 products: WGMMA of e4m3 numbers, and rounding to them.
#pragma once

#include "backend/kernels/hopper/primitives.cuh"

// cvt.rn.satfinite.e4m3x2.f32: four floats rounded to e4m3, the first in the lowest bits.
SCOREMOD_FUNCTION unsigned e4m3_quad_of(float x0, float x1, float x2, float x3) {
  unsigned quad;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(quad)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return quad;
}

// wgmma.mma_async.m64nNk32 for N = kColumns: d (+)= a b, 64 x 32 by 32 x kColumns numbers of e4m3. Accumulators are in
// the layout of Sums, and both factors have their columns along the sum. If `adds` is false, d is the product alone.
template <int kColumns>
struct Float8Product {
  // Both a and b come from shared memory.
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds);
  // a comes from registers: of rows l / 4 (first and third) and l / 4 + 8 lane l has columns 4 (l % 4) to the third
  // next, and those 16 beyond.
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds);
};
/*{float8_product}*/
template <>
struct Float8Product</*{columns}*/ 8 /*{}*/> {
  static constexpr int kColumns = /*{columns}*/ 8 /*{}*/;
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, /*{r2}*/%6/*{}*/, 0;\n"
        "mov.b64 a, {/*{r0}*/%4/*{}*/, " SCOREMOD_UPPER_HALF "};\nmov.b64 b, {/*{r1}*/%5/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k32.f32./*{type}*/e4m3.e4m3/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, a, b, p, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a), "r"(b), "r"((int)adds));
  }
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, /*{r5}*/%9/*{}*/, 0;\n"
        "mov.b64 b, {/*{r4}*/%8/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k32.f32./*{type}*/e4m3.e4m3/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, {/*{quad}*/%4, %5, %6, %7/*{}*/}, b, p, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)adds));
  }
};
/*{}*/
