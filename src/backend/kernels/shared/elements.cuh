// Elements of a problem's tensors, as all kernels have them: the constants that are compiled in, instructions, types
// with their conversions, and rows of varlen and paged tensors. The instructions are MMAs of sm_80 (mma.sync),
// asynchronous copies to shared memory (cp.async), shuffles and barriers. shared/products.cuh has the MMAs of each
// type.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"
#include "backend/kernels/shared/memory.cuh"

constexpr bool kBf16 = /*{bf16}*/ true /*{}*/;       // elements of 16 bits are bf16, else f16
constexpr bool kFloats = /*{floats}*/ false /*{}*/;  // q, k and v are f32, else of 16 bits
// The dtype of k and v if it is FP8, which decode kernels take beside a q of 16 bits.
enum KeyKind { kElementKeys, kE4M3Keys, kE5M2Keys };
constexpr KeyKind kKeyKind = /*{key_kind}*/ kElementKeys /*{}*/;
// Whether rows of FP8 keys, or of values, have scales of their own.
constexpr bool kRowScales = /*{row_scales}*/ false /*{}*/;
// Whether q has that dtype too. Weights are then rounded to e4m3, in a forward alone.
constexpr bool kFloat8Queries = /*{float8_queries}*/ false /*{}*/;
// Tiles and MMAs are f32 if q, k and v are, or if d_o must not be rounded to their dtype.
constexpr bool kFloatTiles = /*{float_tiles}*/ false /*{}*/;
constexpr int kDimQk = /*{dim_qk}*/ 64 /*{}*/, kDimV = /*{dim_v}*/ 64 /*{}*/;
// Whether calls say where in a larger problem their indices begin.
constexpr bool kIndexOffsets = /*{index_offsets}*/ true /*{}*/;
// Whether a program's indices of queries, and of keys, are clamped to the problem. They are if operands are read at
// them, or if no mask computes with them, which takes fewer registers. Otherwise a mask's arithmetic is simpler
// without.
constexpr bool kClampsQueries = /*{clamps_queries}*/ true /*{}*/, kClampsKeys = /*{clamps_keys}*/ true /*{}*/;
constexpr int kOperands = /*{operands}*/ 1 /*{}*/;  // at least 1
// kQueries by kKeys is a tile of scores, and kWarps are the consumer warps of a CTA. kRowTiles is the number of 16-row
// tiles of a warp whose rows are queries. kStep is the queries that the dK/dV kernel takes at once, and kKeyStep the
// keys that the dQ kernel takes. kBlocks is how many CTAs should fit on an SM.
constexpr int kQueries = /*{queries}*/ 64 /*{}*/, kKeys = /*{keys}*/ 64 /*{}*/, kWarps = /*{warps}*/ 4 /*{}*/;
constexpr int kRowTiles = /*{row_tiles}*/ 1 /*{}*/, kStep = /*{step}*/ 32 /*{}*/, kKeyStep = /*{key_step}*/ 32 /*{}*/;
constexpr int kPart = /*{part}*/ 32 /*{}*/;  // queries of a step whose scores the backward of keys has at once
constexpr int kBlocks = /*{blocks}*/ 1 /*{}*/;
// Pack-GQA: rows of a tile are the queries of all heads that share a KV head.
constexpr bool kPackGqa = /*{pack_gqa}*/ false /*{}*/;
// Teams of a block's warps that have the same rows and walk over different keys, with tiles that they copy ahead.
constexpr int kTeams = /*{teams}*/ 1 /*{}*/;
// Groups of a CTA's warps that have the same rows and different dims of v, kDimV each; and the dims of all.
constexpr int kValueGroups = /*{value_groups}*/ 1 /*{}*/, kCtaDimV = kValueGroups * kDimV;
// The modified score of a kept key is the score itself.
constexpr bool kScoreIsValue = /*{score_is_value}*/ true /*{}*/;
constexpr bool kSeparateDv = /*{separate_dv}*/ false /*{}*/;
constexpr bool kFused = /*{fused}*/ false /*{}*/;  // dq is added up by the kernel of dk and dv
// Whether the heads that share a KV head take turns at each step of queries, else they come one after the other. With
// turns, a KV head's CTAs at the same queries read q and d_o of all its heads at about one time, so that L2 has them.
// So it is with dq. Sums of operand gradients want a head's steps in a row, and heads' own masks leave other steps.
constexpr bool kHeadsTakeTurns = /*{heads_take_turns}*/ false /*{}*/;
// Delta is recomputed, rowsum(weights * their gradients), or supplied by the call, rowsum(d_o * o).
constexpr bool kRecomputedDelta = /*{recomputed_delta}*/ false /*{}*/;
constexpr bool kGivenDeltas = /*{given_deltas}*/ false /*{}*/;
constexpr bool kSink = /*{has_sink}*/ true /*{}*/;                 // the softmax has a sink, sink_of()
constexpr bool kDropout = /*{dropout}*/ true /*{}*/;               // weights are dropped after the softmax
constexpr bool kDropoutKeys = /*{dropout_keys}*/ true /*{}*/;      // runtime arguments decide which
constexpr bool kDropoutPlaces = /*{dropout_places}*/ true /*{}*/;  // and where its queries and keys are in the whole
constexpr bool kMaxLogit = /*{max_logit}*/ true /*{}*/;            // the largest score of each row is an output
// Varlen packs sequences without padding; a paged KV cache has pages of kBlockRows rows.
constexpr bool kRaggedQueries = /*{ragged_queries}*/ true /*{}*/, kRaggedKeys = /*{ragged_keys}*/ true /*{}*/;
constexpr bool kPaged = /*{paged}*/ false /*{}*/;
// Whether the work tiles of varlen sequences are packed, see first_packed_tile(). Sums of operand gradients have a
// place for each tile of the longest length instead.
constexpr bool kPacksTiles = /*{packs_tiles}*/ true /*{}*/;
constexpr bool kPacksQueries = kPacksTiles && kRaggedQueries, kPacksKeys = kPacksTiles && kRaggedKeys;
constexpr int kBlockRows = /*{block_rows}*/ 1 /*{}*/;
// The dtype of o and d_o: that of q, k and v, the other one of 16 bits, or f32.
enum OutputKind { kHalfOutput, kOtherHalfOutput, kFloatOutput };
constexpr OutputKind kOutput = /*{output}*/ kHalfOutput /*{}*/;
// Facts about the mask: it is a band, it reads the score, or neither. If it reads the score, no tile is known to be
// full. A kernel finds the state of each tile if the mask, or a part of it, reads no score.
enum MaskKnowledge { kBandMask, kScoreMask, kListedMask };
constexpr MaskKnowledge kMask = /*{mask_kind}*/ kBandMask /*{}*/;
constexpr bool kHasStates = /*{has_states}*/ false /*{}*/;
constexpr bool kIsForward = /*{is_forward}*/ false /*{}*/;
constexpr bool kMaskVariesWithBatch = /*{mask_varies_with_batch}*/ false /*{}*/;
constexpr bool kMaskVariesWithHead = /*{mask_varies_with_head}*/ false /*{}*/;
constexpr bool kMaskVariesWithQuery = /*{mask_varies_with_query}*/ true /*{}*/;
// Whether a query keeps all keys that an earlier one of its head keeps.
constexpr bool kMaskGrowsWithQuery = /*{mask_grows_with_query}*/ false /*{}*/;
// Whether that holds, and a query keeps all keys before one that it keeps.
constexpr bool kMaskKeepsPrefix = /*{mask_keeps_prefix}*/ false /*{}*/;
constexpr int kProducers = /*{producers}*/ 0 /*{}*/;  // the producer threads of a Hopper CTA
// The stages of a pipeline; for decode kernels, the tiles that there is room for.
constexpr int kStages = /*{stages}*/ 2 /*{}*/;
constexpr bool kPersistent = /*{persistent}*/ false /*{}*/;  // the main kernel is a persistent one

/*{device shared}*/
#define SCOREMOD_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SCOREMOD_MEMBER __device__ __forceinline__
#define SCOREMOD_OUT_OF_LINE static __device__ __noinline__
#define SCOREMOD_ARGUMENT const __grid_constant__ Arguments
#define SCOREMOD_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

using Half = unsigned short;  // an f16 or a bf16, by kBf16

SCOREMOD_FUNCTION unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// ldmatrix.x4: four 8 x 8 matrices of 16-bit elements. Lane l points to row l % 8 of matrix l / 8. It gets elements 2
// (l % 4) and the next of row l / 4 of each matrix.
SCOREMOD_FUNCTION void load_matrices(unsigned (&out)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}
// ldmatrix.x4.trans: as load_matrices(), but lane l gets elements of column l / 4.
SCOREMOD_FUNCTION void load_matrices_transposed(unsigned (&out)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}

// mma.sync.m16n8k16: sum += a b, 16 x 16 by 16 x 8. Lane l holds of sum rows l / 4 and l / 4 + 8, columns 2 (l % 4) and
// the next.
template <bool kAreBf16 = kBf16>
SCOREMOD_FUNCTION void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (kAreBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// mma.sync.m16n8k8 in TF32, which reads the upper 11 digits of fp32: sum += a b, 16 x 8 by 8 x 8. Lane l has columns l
// % 4 and l % 4 + 4 of a, and these rows of b. Its rows of a are l / 4 and l / 4 + 8, which come first.
SCOREMOD_FUNCTION void multiply_add_upper(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// cp.async: copies `bytes` of kBytes to shared memory and fills the rest with zeros. `from` must be an address of the
// tensor even if nothing is copied.
template <int kBytes>
SCOREMOD_FUNCTION void copy_ahead(void* shared, const void* from, int bytes) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
// cp.async with an L2 prefetch of 128 bytes: copy_ahead<16>() for data that is read once, side by side with the next
// read.
SCOREMOD_FUNCTION void copy_line_ahead(void* shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(bytes)
               : "memory");
}
// cp.async.commit_group: the thread's copies since the last call become a group.
SCOREMOD_FUNCTION void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// cp.async.wait_group: returns when at most kBut groups of the thread are in flight. Other threads see the data after a
// barrier.
template <int kBut>
SCOREMOD_FUNCTION void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBut) : "memory");
}
// cp.async.wait_all: returns when all of the thread's copies are complete. Other threads see the data after a barrier.
SCOREMOD_FUNCTION void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// bar.sync 0 (__syncthreads): all threads of a CTA, producers too, also in kernels whose CTA has another size.
SCOREMOD_FUNCTION void cta_sync() { __syncthreads(); }
// Named barrier 1 (bar.sync) of the CTA's consumers; producers have other things to do. Without producers it is
// __syncthreads().
SCOREMOD_FUNCTION void block_barrier() {
  if (kProducers == 0)
    __syncthreads();
  else
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}
// Named barrier (bar.sync) of the kTeamWarps warps that are the CTA's `team`.
template <int kTeamWarps>
SCOREMOD_FUNCTION void team_barrier(int team) {
  if (kTeamWarps == 1)
    __syncwarp();
  else
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(team + 1), "n"(kTeamWarps * 32) : "memory");
}
// barrier.cta.red.or (bar.red.or): whether the condition holds for any thread that block_barrier() waits for.
SCOREMOD_FUNCTION bool any_of_block(bool condition) {
  if (kProducers == 0) return __syncthreads_or(condition) != 0;
  unsigned any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, 1, %2, p;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"((unsigned)condition), "n"(kWarps * 32)
      : "memory");
  return any != 0;
}
// vote.sync.ballot: a bit for each lane for which the condition holds.
SCOREMOD_FUNCTION unsigned ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }
// shfl.sync.bfly: the value of the lane whose number differs in the bits of `lane_distance`.
SCOREMOD_FUNCTION float exchange(float value, int lane_distance) {
  return __shfl_xor_sync(0xffffffffu, value, lane_distance);
}
SCOREMOD_FUNCTION unsigned exchange_bits(unsigned value, int lane_distance) {
  return __shfl_xor_sync(0xffffffffu, value, lane_distance);
}
// shfl.sync from any lane.
SCOREMOD_FUNCTION int from_lane(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

// Memory fence (__threadfence): writes before it become visible before writes after it, and reads after it are no older
// than those before.
SCOREMOD_FUNCTION void order_memory() { __threadfence(); }
// atomicCAS: makes the word `instead` if it is `expected`; returns its previous value.
SCOREMOD_FUNCTION unsigned long long exchange_word(unsigned long long* word, unsigned long long expected,
                                                   unsigned long long instead) {
  return atomicCAS(word, expected, instead);
}

// atomicAdd: adds 1 to a counter that CTAs or warps share; returns its previous value.
SCOREMOD_FUNCTION int take_number(int* next) { return atomicAdd(next, 1); }

// The number of the bit that is set in a word with one bit.
SCOREMOD_FUNCTION int bit_number(unsigned bit) { return 31 - __clz((int)bit); }

SCOREMOD_FUNCTION unsigned bits_of(float x) { return __float_as_uint(x); }
// ld.global.nc: a number that nobody writes meanwhile, so that the compiler may keep it.
SCOREMOD_FUNCTION float load_constant(const float* from) { return __ldg(from); }
// ex2.approx.ftz.f32.
SCOREMOD_FUNCTION float exp2_of(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
// fma.rn.f32: x y + z, rounded once.
SCOREMOD_FUNCTION float multiply_add(float x, float y, float z) { return __fmaf_rn(x, y, z); }

// cvt.rn.bf16x2.f32 or cvt.rn.f16x2.f32: two floats rounded to 16 bits, the first in the lower bits.
SCOREMOD_FUNCTION unsigned bf16_pair_of(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
SCOREMOD_FUNCTION unsigned f16_pair_of(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
template <bool kAreBf16 = kBf16>
SCOREMOD_FUNCTION unsigned pair_of(float low, float high) {
  return kAreBf16 ? bf16_pair_of(low, high) : f16_pair_of(low, high);
}
// prmt.b32: four bytes of x, numbers 0 to 3, and of y, 4 to 7; the selector's lowest hex digit names the lowest one.
SCOREMOD_FUNCTION unsigned bytes_of(unsigned x, unsigned y, unsigned selector) { return __byte_perm(x, y, selector); }
/*{}*/

// q, k, v and their gradients have one type, o and d_o another, and tiles in shared memory a third.

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
