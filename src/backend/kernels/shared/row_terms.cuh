// The terms of each query's row that the backward reads, as attention_backward_rows leaves them: the LSE and delta. The
// LSE is in the form of weight_of(), and +inf if no key was kept or the sequence has ended. Delta is the sum of o d_o.
// An element by plain sums is here too.
#pragma once

#include "backend/kernels/shared/program.cuh"

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
