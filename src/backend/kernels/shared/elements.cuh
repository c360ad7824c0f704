// The element types of tensors and tiles, and their conversions. q, k, v and their gradients have one type, o and d_o
// another, and tiles in shared memory a third. shared/products.cuh has the MMAs of each.
#pragma once

#include "backend/kernels/shared/primitives.cuh"

struct OtherHalf {
  unsigned short bits;
};

// The type of q, k, v and their gradients, and of tiles.
template <bool kAreFloats>
struct ElementOf {
  using Type = Half;
};
template <>
struct ElementOf<true> {
  using Type = float;
};
using Element = ElementOf<kFloats>::Type;
using TileElement = ElementOf<kFloatTiles>::Type;

// An FP8 number of q, k or v, by kKeyKind.
struct Float8 {
  unsigned char bits;
};
// The type of k and v.
template <bool kAreFloat8>
struct KeyElementOf {
  using Type = Element;
};
template <>
struct KeyElementOf<true> {
  using Type = Float8;
};
using KeyElement = KeyElementOf<kKeyKind != kElementKeys>::Type;
using QueryElement = KeyElementOf<kFloat8Queries>::Type;

// The type of o and d_o.
template <OutputKind kKind>
struct OutputElement {
  using Type = Half;
};
template <>
struct OutputElement<kOtherHalfOutput> {
  using Type = OtherHalf;
};
template <>
struct OutputElement<kFloatOutput> {
  using Type = float;
};
using Output = OutputElement<kOutput>::Type;

SCOREMOD_FUNCTION float float_of(Half x) { return kBf16 ? load_bf16(&x, 0) : load_f16(&x, 0); }
SCOREMOD_FUNCTION float float_of(OtherHalf x) { return kBf16 ? load_f16(&x.bits, 0) : load_bf16(&x.bits, 0); }
SCOREMOD_FUNCTION float float_of(float x) { return x; }
SCOREMOD_FUNCTION float float_of(Float8 x) {
  if (kKeyKind == kE5M2Keys) {  // an f16 without its lower half
    const unsigned short bits = (unsigned short)(x.bits << 8);
    return load_f16(&bits, 0);
  }
  const unsigned sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7fu) return float_of_bits(0x7fc00000u);
  // 2^120 moves the exponent's bias from 7 to 127; exact for subnormal numbers too.
  return float_of_bits(sign | bits_of(float_of_bits(magnitude << 20) * 0x1p120f));
}
SCOREMOD_FUNCTION unsigned other_pair_of(float low, float high) {
  return kBf16 ? f16_pair_of(low, high) : bf16_pair_of(low, high);
}
SCOREMOD_FUNCTION void store_element(Half* to, float x) { *to = (Half)pair_of(x, 0.0f); }
SCOREMOD_FUNCTION void store_element(OtherHalf* to, float x) { to->bits = (unsigned short)other_pair_of(x, 0.0f); }
SCOREMOD_FUNCTION void store_element(float* to, float x) { *to = x; }

// Converts a tensor's element to a tile's.
template <class From, class To>
SCOREMOD_FUNCTION void convert_element(To* to, From x) {
  store_element(to, float_of(x));
}
SCOREMOD_FUNCTION void convert_element(Half* to, Half x) { *to = x; }
// The number that a tile holds for it.
template <class From>
SCOREMOD_FUNCTION float in_tile(From x) {
  TileElement element;
  convert_element(&element, x);
  return float_of(element);
}

// Two neighbours in an aligned row.
struct alignas(8) FloatPair {
  float low, high;
};
SCOREMOD_FUNCTION void store_pair(Half* to, float low, float high) { *(unsigned*)to = pair_of(low, high); }
SCOREMOD_FUNCTION void store_pair(OtherHalf* to, float low, float high) { *(unsigned*)to = other_pair_of(low, high); }
SCOREMOD_FUNCTION void store_pair(float* to, float low, float high) { *(FloatPair*)to = {low, high}; }

// Sixteen bytes, where one access may take them.
struct alignas(16) Word {
  unsigned long long halves[2];
};
SCOREMOD_FUNCTION void copy_word(void* to, const void* from) { *(Word*)to = *(const Word*)from; }

template <class X, class Y>
constexpr bool kSameType = false;
template <class X>
constexpr bool kSameType<X, X> = true;

template <class X>
constexpr int kWordElements = 16 / (int)sizeof(X);
