// Rows of varlen and paged tensors, and their elements: the types and their conversions. q, k, v and their gradients
// have one type, o and d_o another, and tiles in shared memory a third. shared/products.cuh has the MMAs of each.
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

SCOREMOD_FUNCTION int clamped(int x, int least, int most) { return x < least ? least : x > most ? most : x; }

// The place of a batch's sequence among the tokens of a varlen tensor (cu_seqlens). Offsets in device memory are not
// validated, so they are clamped: nothing beyond the tokens is read or written.
struct SequenceTokens {
  int first, count;
};
SCOREMOD_FUNCTION SequenceTokens tokens_of(const TensorArgument& tensor, int b) {
  const int first = clamped(tensor.places[b * tensor.place_batch], 0, tensor.count);
  return {first, clamped(tensor.places[(b + 1) * tensor.place_batch], first, tensor.count) - first};
}

// How many queries and keys of a batch have rows in memory.
SCOREMOD_FUNCTION int queries_of(const AttentionArguments& call, int b) {
  return kRaggedQueries ? clamped(tokens_of(call.q, b).count, 0, call.seq_q) : call.seq_q;
}
SCOREMOD_FUNCTION int keys_of(const AttentionArguments& call, int b) {
  if (kRaggedKeys) return clamped(tokens_of(call.k, b).count, 0, call.seq_kv);
  return kPaged ? clamped(call.lengths_kv[b * call.length_step], 0, call.seq_kv) : call.seq_kv;
}

// Whether the page table names a page of the pool for this key. Page tables in device memory are not validated. A key
// of another page is masked, so that no sequence reads rows that its table does not name.
SCOREMOD_FUNCTION bool names_block(const TensorArgument& pool, int b, int kv) {
  const int page = pool.places[b * pool.place_batch + kv / kBlockRows * pool.place_step];
  return page >= 0 && page < pool.count;
}
// A mask asks it first, so that its loads do not wait for the mask's own.
SCOREMOD_FUNCTION bool has_page(const AttentionArguments& call, int b, int kv) {
  if (!kPaged) return true;
  const bool of_k = names_block(call.k, b, kv), of_v = names_block(call.v, b, kv);
  return of_k && of_v;
}

// The place of a query's row in lse and max_logit.
SCOREMOD_FUNCTION long long row_number(const AttentionArguments& call, int b, int h, int q) {
  if (kRaggedQueries) return ((long long)tokens_of(call.q, b).first + q) * call.heads_q + h;
  return ((long long)b * call.heads_q + h) * call.seq_q + q;
}

// The rows of one batch and head of a tensor, by their positions in the sequence.
template <class Of>
struct RowsOf {
  Of* data;  // of position 0, or of the pool's first block
  long long row, dim;
  bool aligned;
  const int* pages;  // null where the rows lie in one piece
  long long page_step, block;
  int blocks;

  // The page of a position. A key of no page is masked, and its copy reads any page.
  SCOREMOD_MEMBER int page_of(int position) const {
    return clamped(pages[position / kBlockRows * page_step], 0, blocks - 1);
  }
  SCOREMOD_MEMBER Of* at(int position, int page) const { return data + page * block + position % kBlockRows * row; }
  SCOREMOD_MEMBER Of* at(int position) const {
    if (kPaged && pages != nullptr) return at(position, page_of(position));
    return data + position * row;
  }
};
using Rows = RowsOf<Element>;

template <class Of = Element>
SCOREMOD_FUNCTION RowsOf<Of> rows_of(const TensorArgument& tensor, int b, int h) {
  RowsOf<Of> rows{(Of*)tensor.data + h * tensor.head, tensor.row, tensor.dim, tensor.aligned != 0};
  if (kPaged && tensor.places != nullptr && (!kRaggedQueries || tensor.place_step != kOffsetsStep)) {
    rows.pages = tensor.places + b * tensor.place_batch;
    rows.page_step = tensor.place_step;
    rows.block = tensor.batch;
    rows.blocks = tensor.count;
  } else if ((kRaggedQueries || kRaggedKeys) && tensor.places != nullptr) {
    rows.data += tokens_of(tensor, b).first * tensor.row;
  } else {
    rows.data += b * tensor.batch;
  }
  return rows;
}
