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

// The owner of a row, of a warp. One beyond the last sequence's last tile has no head.
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

// Writes the terms of a query's row, by a warp.
SCOREMOD_FUNCTION void write_row_terms(const AttentionArguments& call, int b, int h, int q) {
  const int lane = threadIdx.x % 32;
  float* const at = call.rows + row_place(call, b, h, q);
  if (kRaggedQueries && q >= queries_of(call, b)) {
    if (lane != 0) return;
    at[0] = infinity();
    at[1] = 0.0f;
    return;
  }
  const RowsOf<Output> o = rows_of<Output>(call.o, b, h), d_o = rows_of<Output>(call.d_o, b, h);
  float sum = 0.0f;
  if (kSameType<Output, Half> && o.aligned && d_o.aligned) {
    // Sixteen bytes of each.
    if (lane < kDimV / 8) {
      alignas(16) Half o_word[8], d_o_word[8];
      copy_word(o_word, o.at(q) + lane * 8);
      copy_word(d_o_word, d_o.at(q) + lane * 8);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = multiply_add(float_of(o_word[i]), float_of(d_o_word[i]), sum);
    }
  } else {
    // Products take d_o as tiles hold it. Where one key has all weight, a delta of another d_o would be left over.
    for (int d = lane; d < kDimV; d += 32)
      sum = multiply_add(float_of(o.at(q)[d * o.dim]), in_tile(d_o.at(q)[d * d_o.dim]), sum);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += exchange(sum, distance);
  if (lane != 0) return;
  const float lse = call.lse[row_number(call, b, h, q)];
  at[0] = lse == -infinity() ? infinity() : kFloatTiles ? lse : lse * kLog2E;
  at[1] = sum;
}

// The rows of a warp: several where it looks for their sequence first.
constexpr int kRowsOfWarp = kPacksQueries ? kPackedRowsOfWarp : 1;
static_assert(kQueries % kRowsOfWarp == 0, "a warp's rows are one sequence's");

/*{kernel attention_backward_rows}*/
// The terms of each query's row, by one warp. Where kFused it begins dq's sums, of the rows of all tiles.
SCOREMOD_KERNEL(128, 1) attention_backward_rows(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  const long long first = ((long long)blockIdx.x * 4 + threadIdx.x / 32) * kRowsOfWarp;
  const RowPlace place = place_of_row(call, first);
  if (kPacksQueries && place.h < 0) return;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
#pragma unroll
    for (int column = lane * 4; kFused && column < kSumColumns; column += 32 * 4) {
      alignas(16) const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      copy_word(call.query_sums + (first + i) * kSumColumns + column, zeros);
    }
    if (place.h >= 0) write_row_terms(call, place.b, place.h, place.q + i);
  }
}
/*{}*/
