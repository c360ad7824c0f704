// The program's derivative at one element, with the gradients of its operands there, and the terms of the element's row
// that it reads. attention_backward_rows leaves them: the LSE and delta. The LSE is in the form of weight_of(), and
// +inf if no key was kept or the sequence has ended. Delta is the sum of o d_o.
#pragma once

#include "backend/kernels/shared/program.cuh"

// Counts of operand gradients that are summed here, by kind and in this order. The kinds are: those that do not vary
// along keys, those that do, relative-position tables, and reads of other tables. Then come biases that batches or
// heads share, and all.
constexpr int kRowTargets = /*{row_targets}*/ 1 /*{}*/, kKeyTargets = /*{key_targets}*/ 1 /*{}*/;
constexpr int kDifferenceTargets = /*{difference_targets}*/ 0 /*{}*/;
constexpr int kTableReads = /*{table_reads}*/ 1 /*{}*/, kSharedTargets = /*{shared_targets}*/ 1 /*{}*/;
constexpr int kTargets = /*{targets}*/ 5 /*{}*/;
// Facts about the program: whether it computes with indices, beside reading operands at them, and has operands.
constexpr bool kComputesWithIndices = /*{computes_with_indices}*/ true /*{}*/;
constexpr bool kReadsOperands = /*{reads_operands}*/ true /*{}*/;
// These booleans leave a backward's accumulators enough registers. There is no rule behind them: masks and programs of
// each kind were tried with ptxas 13.0. The trials had head dims 64 and 128, f16 and bf16. kComparesClamped checks an
// index by comparing it with its clamped form, otherwise with the length.
constexpr bool kComparesClamped = kPart <= 64 ? !kFused || kTargets == 0 || !kComputesWithIndices : !kHasStates;
// Whether a step's keys take four of its rows' terms at once.
constexpr bool kReadsFourTerms = !kFused      ? kPart <= 64 && kTargets == 0
                                 : kPart > 64 ? !kScoreIsValue && !kClampsKeys && kTargets == 0 && kReadsOperands
                                              : kScoreIsValue || kClampsKeys || kTargets > 0;

// Operands whose gradients are summed by tiles of scores, and the places of their partial sums. Targets of rows and of
// keys have them in `sums` of each operand. There is one for each batch, query head, and query, key or tile of queries
// (if kFused, a warp's keys). operand_gradients/totals.cuh adds them up.

// No array has no elements.
constexpr int kMaxRowTargets = kRowTargets > 0 ? kRowTargets : 1, kMaxKeyTargets = kKeyTargets > 0 ? kKeyTargets : 1;
constexpr int kMaxTargets = kTargets > 0 ? kTargets : 1;
// Targets that are written once come last, and have no sums.
constexpr int kFirstTableRead = kRowTargets + kKeyTargets + kDifferenceTargets;
constexpr int kFirstSharedTarget = kFirstTableRead + kTableReads;
constexpr int kFirstElementTarget = kFirstSharedTarget + kSharedTargets;
constexpr int kElementTargets = kTargets - kFirstElementTarget;

struct Contributions {
  float of[kMaxTargets];
};

// Sums of a target of rows; of one that does not vary along queries they are of tiles.
SCOREMOD_FUNCTION float* row_target_sums(const Arguments& p, int target) {
  constexpr int kNumbers[] = {/*{row_operands}*/ 0 /*{}*/};
  return p.operands[kNumbers[target]].sums;
}
SCOREMOD_FUNCTION constexpr bool row_target_is_total(int target) {
  return (/*{row_totals}*/ 1ull /*{}*/ >> target & 1ull) != 0;
}
// How many of these there are for each batch and head.
SCOREMOD_FUNCTION int totals_of_head(const AttentionArguments& call) {
  return kFused ? call.key_tiles * kWarps : call.query_tiles;
}
SCOREMOD_FUNCTION float* key_target_sums(const Arguments& p, int target) {
  constexpr int kNumbers[] = {/*{key_operands}*/ 0 /*{}*/};
  return p.operands[kNumbers[target]].sums;
}

SCOREMOD_FUNCTION long long entries_of(const OperandArgument& operand, int rank) {
  long long entries = 1;
  for (int d = 0; d < rank; ++d) entries *= operand.extent[d];
  return entries;
}
// The partial sums of a relative-position table, which lie behind the exact sums of its entries.
SCOREMOD_FUNCTION float* difference_target_sums(const Arguments& p) {
  const OperandArgument& operand = p.operands[/*{difference_operand}*/ 0 /*{}*/];
  constexpr int kExactSumFloats = 26;  // 13 words
  return operand.sums + entries_of(operand, /*{difference_rank}*/ 1 /*{}*/) * kExactSumFloats;
}

SCOREMOD_FUNCTION void store_f32(void* data, long long i, float value) { ((float*)data)[i] = value; }
SCOREMOD_FUNCTION void store_f16(void* data, long long i, float value) {
  ((unsigned short*)data)[i] = (unsigned short)f16_pair_of(value, 0.0f);
}
SCOREMOD_FUNCTION void store_bf16(void* data, long long i, float value) {
  ((unsigned short*)data)[i] = (unsigned short)bf16_pair_of(value, 0.0f);
}

// The gradients of one element whose operands vary along queries and keys.
struct ElementGains {
  float of[kElementTargets > 0 ? kElementTargets : 1];
};
SCOREMOD_FUNCTION void store_element_gains(const Arguments& p, const ElementGains& gains, int b, int h, int q, int kv) {
  if (q >= p.call.seq_q || kv >= p.call.seq_kv) return;
  /*{stores}*/
  if (p.operands[/*{operand}*/ 0 /*{}*/].gradient != nullptr)
    /*{store}*/ store_f32 /*{}*/ (p.operands[/*{operand}*/ 0 /*{}*/].gradient, /*{offset}*/ 0 /*{}*/,
                                  gains.of[/*{number}*/ 0 /*{}*/]);
  /*{}*/
}
// They are zero where nobody walks: in a row's tile of keys that is empty. By all of a block's threads but producers.
SCOREMOD_FUNCTION void clear_tile_gains(const Arguments& p, int b, int h, int query_tile, int key_tile) {
  if ((int)threadIdx.x >= kThreads) return;
  for (int i = threadIdx.x; i < kQueries * kKeys; i += kThreads)
    store_element_gains(p, ElementGains{}, b, h, query_tile * kQueries + i / kKeys, key_tile * kKeys + i % kKeys);
}
SCOREMOD_FUNCTION void clear_empty_tiles(const Arguments& p, int b, int h, int query_tile) {
  if (kElementTargets == 0) return;
  for (int tile = 0; tile < p.call.key_tiles; ++tile)
    if (state_of(p.call, b, h, query_tile, tile) == kEmptyTile) clear_tile_gains(p, b, h, query_tile, tile);
}
// clear_empty_tiles() for a column of tiles.
SCOREMOD_FUNCTION void clear_empty_tiles_of_keys(const Arguments& p, int b, int h, int key_tile) {
  if (kElementTargets == 0) return;
  for (int tile = 0; tile < p.call.query_tiles; ++tile)
    if (state_of(p.call, b, h, tile, key_tile) == kEmptyTile) clear_tile_gains(p, b, h, tile, key_tile);
}

// Adds a warp's sums of one kind over its threads.
SCOREMOD_FUNCTION float sum_of_warp(float x) {
  for (int distance = 1; distance < 32; distance *= 2) x += exchange(x, distance);
  return x;
}

/*{backward}*/
// exp(x factor - lse), where `exponent` is row_terms()'s form of the LSE. With 16-bit tiles it is an exponent of 2,
// which saves one product. With fp32 tiles it is the LSE, because only the rounding of the difference is small enough.
SCOREMOD_FUNCTION float weight_of(float x, float factor, float exponent) {
  return kFloatTiles ? exp2_of(multiply_add(x, factor, -exponent) * kLog2E)
                     : exp2_of(multiply_add(x, factor * kLog2E, -exponent));
}

// Factors of the gradients of scores as they are made, and of sums over them. The scale belongs to one of the two. Sums
// are fewer, but unscaled gradients might exceed f16's range.
constexpr bool kScaledGradients = !kFloatTiles && !kBf16;
SCOREMOD_FUNCTION float gradient_factor(const AttentionArguments& call) { return kScaledGradients ? call.scale : 1.0f; }
SCOREMOD_FUNCTION float sum_factor(const AttentionArguments& call) { return kScaledGradients ? 1.0f : call.scale; }

struct Differentiated {
  float weight, gradient;  // exp(value - lse), before dropout; of the score, times gradient_factor()
  bool kept;
  // Operand gradients of one element, if they are summed here; all are 0 if it is not kept. `counted` is the weight,
  // `centred` its gradient less the row's delta, and `upstream` their product. The first kRowTargets gains are those of
  // rows and come from the weight alone, to be multiplied by `centred`.
  float counted, centred, upstream, gains[kMaxTargets];
};

// Differentiates one element from the products of q and k, and of d_o and v, its dropout bit, and row_terms(). If not
// kMasked and the score is the value, an element with a value of -inf yields nothing or a NaN. A NaN makes its row or
// key be summed again. `copied` is as in value_of().
template <bool kMasked, bool kCopied = false>
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ Differentiated differentiate(const Arguments& p, float q_k, float product,
                                                                    bool stays, float exponent, float delta, int b,
                                                                    int h, int any_q, int any_kv, float copied = 0.0f) {
  product = dropped(p.call, product, stays);
  const float score = q_k * p.call.scale;
  const int q = program_query(p.call, any_q), kv = kMasked ? program_key(p.call, any_kv) : any_kv;
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  /*{forward_statements}*/ const float value = score; /*{}*/
  constexpr bool kSameQuery = kClampsQueries && kComparesClamped, kSameKey = kClampsKeys && kComparesClamped;
  const bool kept = !kMasked || ((kScoreIsValue || /*{value}*/ value /*{}*/ != -infinity()) && exponent != infinity() &&
                                 (kSameQuery ? q == any_q : any_q < p.call.seq_q) &&
                                 (kSameKey ? kv == any_kv : any_kv < p.call.seq_kv) && /*{keep}*/ kv <= q /*{}*/);
  if (kScoreIsValue) {
    const float weight = weight_of(q_k, p.call.scale, exponent);
    return {kept ? weight : 0.0f, kept ? weight * (product - delta) * gradient_factor(p.call) : 0.0f, kept};
  }
  const float weight = kept ? weight_of(/*{value}*/ value /*{}*/, 1.0f, exponent) : 0.0f;
  const float upstream = kept ? weight * (product - delta) : 0.0f;
  /*{statements}*/ const float d_score = upstream; /*{}*/
  Differentiated element{weight, kept ? /*{d_score}*/ d_score /*{}*/ * gradient_factor(p.call) : 0.0f, kept};
  /*{gains}*/
  const bool counts = kMasked ? kept : /*{value}*/ value /*{}*/ != -infinity() && exponent != infinity();
  const auto contributions = [&](float upstream) {
    /*{gains_statements}*/ const float n1 = upstream * score; /*{}*/
    return Contributions{{/*{contributions}*/ n1, n1, n1, n1, n1 /*{}*/}};
  };
  const Contributions of_weight = contributions(weight), of_upstream = contributions(upstream);
  element.counted = weight;
  element.centred = counts ? product - delta : 0.0f;
  element.upstream = counts ? upstream : 0.0f;
#pragma unroll
  for (int t = 0; t < kTargets; ++t)
    element.gains[t] = counts ? (t < kRowTargets ? of_weight : of_upstream).of[t] : 0.0f;
  /*{}*/
  return element;
}
/*{}*/

// Rows of a sequence and head in `rows`: an even number, so that two rows are 16 bytes that may be copied at once.
SCOREMOD_FUNCTION int rows_pitch(const AttentionArguments& call) {
  return kPacksQueries ? call.query_tiles * kQueries : (call.seq_q + 1) / 2 * 2;
}
// The first row of a sequence and head where work tiles are packed.
SCOREMOD_FUNCTION long long first_packed_row(const AttentionArguments& call, int b, int h) {
  return ((long long)h * call.query_work_tiles + first_packed_tile(call.q, b, kQueries)) * kQueries;
}
SCOREMOD_FUNCTION long long row_place(const AttentionArguments& call, int b, int h, int q) {
  if (kPacksQueries) return 2 * (first_packed_row(call, b, h) + q);
  return 2 * (((long long)b * call.heads_q + h) * rows_pitch(call) + q);
}

// A sink's weight_of(); one of +inf has all weight.
SCOREMOD_FUNCTION float weight_of_sink(float sink, float exponent) {
  return sink == infinity() ? 1.0f : weight_of(sink, 1.0f, exponent);
}

// The columns of a row of `query_sums`, whose blocks have 64.
constexpr int kSumColumns = (kDimQk + 63) / 64 * 64;

// The terms of a query's row in `rows`.
SCOREMOD_FUNCTION const float* row_terms(const AttentionArguments& call, int b, int h, int q) {
  return call.rows + row_place(call, b, h, q);
}

// Reads the terms of a thread's rows of kTiles tiles of 16 queries, from first_query on. A row beyond the last has the
// last one's.
template <int kTiles>
SCOREMOD_FUNCTION void read_row_terms(float (&terms)[kTiles][2][2], const AttentionArguments& call, int b, int h,
                                      int first_query) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_query + m * 16 + half * 8 + threadIdx.x % 32 / 4;
      const float* const at = row_terms(call, b, h, row < call.seq_q ? row : call.seq_q - 1);
      terms[m][half][0] = at[0];
      terms[m][half][1] = at[1];
    }
}

// The gradients of one element whose operands vary along queries and keys.
SCOREMOD_FUNCTION ElementGains element_gains(const Differentiated& element) {
  ElementGains gains{};
#pragma unroll
  for (int t = 0; t < kElementTargets; ++t) gains.of[t] = element.gains[kFirstElementTarget + t];
  return gains;
}

// The products of one element by plain sums.
template <class Of>
SCOREMOD_FUNCTION float dot(const RowsOf<Of>& x, int x_row, const Rows& y, int y_row, int dims) {
  float sum = 0.0f;
#pragma unroll 1
  for (int d = 0; d < dims; ++d)
    sum = multiply_add(in_tile(x.at(x_row)[d * x.dim]), float_of(y.at(y_row)[d * y.dim]), sum);
  return sum;
}

// The weight of one key for one query and the gradient of their score, times gradient_factor().
SCOREMOD_FUNCTION Differentiated element_by_sums(const Arguments& p, int b, int h, int q, int kv) {
  const AttentionArguments& call = p.call;
  const float q_k = dot(rows_of(call.q, b, h), q, rows_of(call.k, b, h / call.group), kv, kDimQk);
  const float product = dot(rows_of<Output>(call.d_o, b, h), q, rows_of(call.v, b, h / call.group), kv, kDimV);
  const float* const terms = row_terms(call, b, h, q);
  if (kScoreIsValue && q_k * call.scale == -infinity()) return {};
  return differentiate<true>(p, q_k, product, weight_stays(call, b, h, q, kv), terms[0], terms[1], b, h, q, kv);
}

// The owner of a row. One beyond the last sequence's last tile has no head.
struct RowPlace {
  int b, h, q;
};
SCOREMOD_FUNCTION RowPlace place_of_row(const AttentionArguments& call, long long row) {
  if (kPacksQueries) {
    const int tile = (int)(row / kQueries), h = tile / call.query_work_tiles;
    if (h >= call.heads_q) return {0, -1, 0};
    const PackedPlace place = packed_place(call.q, call.batch, tile - h * call.query_work_tiles, kQueries);
    if (place.tile * kQueries >= queries_of(call, place.b)) return {0, -1, 0};
    return {place.b, h, place.tile * kQueries + (int)(row % kQueries)};
  }
  if (row >= (long long)call.batch * call.heads_q * call.seq_q) return {0, -1, 0};
  const int head = (int)(row / call.seq_q);
  return {head / call.heads_q, head % call.heads_q, (int)(row % call.seq_q)};
}
// The owner of the row that is `rows` after one that has an owner. Rows of a work tile are one sequence's.
SCOREMOD_FUNCTION RowPlace place_after(const AttentionArguments& call, RowPlace place, int rows) {
  place.q += rows;
  while (!kPacksQueries && place.q >= call.seq_q) {
    place.q -= call.seq_q;
    if (++place.h < call.heads_q) continue;
    place.h = 0;
    ++place.b;
  }
  if (!kPacksQueries && place.b >= call.batch) place.h = -1;
  return place;
}

static_assert(kQueries % kRowsOfWarp == 0, "a warp's rows of a work tile are one sequence's");
// The lanes that share a row, of which each loads 16 bytes at once. A warp loads kRowsAtOnce rows with one access, and
// all its rows before it sums any: the kernel waits for memory alone.
constexpr int kRowWords = (kDimV + 7) / 8;
constexpr int kRowLanes = kRowWords <= 8 ? 8 : kRowWords <= 16 ? 16 : 32;
constexpr int kRowsAtOnce = 32 / kRowLanes, kRowSets = kRowsOfWarp / kRowsAtOnce;
constexpr int kLaneWords = (kRowWords + kRowLanes - 1) / kRowLanes;

// A lane's words of a row of o and of d_o, and the row's LSE.
struct RowWords {
  alignas(16) Half o[kLaneWords][8], d_o[kLaneWords][8];
  float lse;
};
SCOREMOD_FUNCTION bool rows_are_words(const AttentionArguments& call) {
  return kSameType<Output, Half> && call.o.aligned && call.d_o.aligned;
}
SCOREMOD_FUNCTION void load_row(RowWords& row, const AttentionArguments& call, const RowPlace& place) {
  row.lse = call.lse[row_number(call, place.b, place.h, place.q)];
  if (!rows_are_words(call)) return;
  const RowsOf<Output> o = rows_of<Output>(call.o, place.b, place.h), d_o = rows_of<Output>(call.d_o, place.b, place.h);
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
    const int word = i * kRowLanes + threadIdx.x % kRowLanes;
    if (word >= kRowWords) continue;
    copy_word(row.o[i], o.at(place.q) + word * 8);
    copy_word(row.d_o[i], d_o.at(place.q) + word * 8);
  }
}
// A lane's part of delta.
SCOREMOD_FUNCTION float delta_of_words(const RowWords& row) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
    if (i * kRowLanes + (int)threadIdx.x % kRowLanes >= kRowWords) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = multiply_add(float_of(row.o[i][j]), float_of(row.d_o[i][j]), sum);
  }
  return sum;
}
// A lane's part of delta where elements are not loaded as words. Products take d_o as tiles hold it: where one key has
// all weight, a delta of another d_o would be left over.
SCOREMOD_FUNCTION float delta_of_elements(const AttentionArguments& call, const RowPlace& place) {
  const RowsOf<Output> o = rows_of<Output>(call.o, place.b, place.h), d_o = rows_of<Output>(call.d_o, place.b, place.h);
  float sum = 0.0f;
  for (int d = threadIdx.x % kRowLanes; d < kDimV; d += kRowLanes)
    sum = multiply_add(float_of(o.at(place.q)[d * o.dim]), in_tile(d_o.at(place.q)[d * d_o.dim]), sum);
  return sum;
}

// Writes a row's terms, by the lanes that share it. All lanes of the warp call it.
SCOREMOD_FUNCTION void write_row_terms(const AttentionArguments& call, const RowPlace& place, const RowWords& row,
                                       bool has_terms) {
  float delta = 0.0f;
  if (has_terms) delta = rows_are_words(call) ? delta_of_words(row) : delta_of_elements(call, place);
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2) delta += exchange(delta, distance);
  if (place.h < 0 || threadIdx.x % kRowLanes != 0) return;
  float* const at = call.rows + row_place(call, place.b, place.h, place.q);
  at[0] = !has_terms || row.lse == -infinity() ? infinity() : kFloatTiles ? row.lse : row.lse * kLog2E;
  at[1] = delta;
}

/*{kernel attention_backward_rows}*/
// The terms of each query's row, kRowsOfWarp rows by each warp. Where kFused it begins dq's sums, of the rows of all
// tiles, and the count of work tiles that a persistent kernel takes.
SCOREMOD_KERNEL(128, 1) attention_backward_rows(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  if (kPersistent && blockIdx.x == 0 && threadIdx.x == 0) *call.taken = 0;
  const long long first = ((long long)blockIdx.x * 4 + threadIdx.x / 32) * kRowsOfWarp;
  const RowPlace place = place_of_row(call, first);
  if (kPacksQueries && place.h < 0) return;
  RowWords rows[kRowSets];
  RowPlace places[kRowSets];
  bool has_terms[kRowSets];
#pragma unroll
  for (int set = 0; set < kRowSets; ++set) {
    const int row = set * kRowsAtOnce + lane / kRowLanes;
    places[set] = place.h < 0 ? place : place_after(call, place, row);
    has_terms[set] = places[set].h >= 0 && (!kRaggedQueries || places[set].q < queries_of(call, places[set].b));
    if (has_terms[set]) load_row(rows[set], call, places[set]);
  }
#pragma unroll
  for (int word = lane * 4; kFused && word < kRowsOfWarp * kSumColumns; word += 32 * 4) {
    alignas(16) const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    copy_word(call.query_sums + first * kSumColumns + word, zeros);
  }
#pragma unroll
  for (int set = 0; set < kRowSets; ++set) write_row_terms(call, places[set], rows[set], has_terms[set]);
}
/*{}*/
