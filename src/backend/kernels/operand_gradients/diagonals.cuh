// The gradient of a relative-position table, whose indices follow from kv_idx - q_idx. Contributions are summed along
// diagonals, in a fixed order and without atomics. A group of four warps has 64 rows of scores and walks over the
// columns. Rows are queries and columns keys; if kFused, rows are keys. A group leaves one sum for each diagonal of its
// rows; attention_operand_diagonals_I adds those of all groups.
#pragma once

#include "backend/kernels/operand_gradients/storage.cuh"
#include "backend/kernels/shared/row_terms.cuh"

constexpr int kDiagonalGroups = (kFused ? kKeys : kQueries) / kDiagonalRows;  // of a CTA
// Columns that a group takes at once.
constexpr int kDiagonalStep = kFused ? kFusedDiagonalStep : kKeyStep;
static_assert(kDifferenceTargets <= 1, "one table");
static_assert(kDifferenceTargets == 0 || kDiagonalRows + kDiagonalStep <= kDiagonalThreads,
              "a thread has one of a step's diagonals");

// Sums of a group: place y is that of (a column) - (its first row) = y - 63.
SCOREMOD_FUNCTION int diagonal_pitch(const AttentionArguments& call) {
  return (kFused ? call.query_tiles * kQueries : call.key_tiles * kKeys) + kDiagonalThreads;
}
// The number of groups for each batch and head.
SCOREMOD_FUNCTION int diagonal_groups(const AttentionArguments& call) {
  return (kFused ? call.key_tiles : call.query_tiles) * kDiagonalGroups;
}
SCOREMOD_FUNCTION float* diagonal_sums(const Arguments& p, int b, int h, int group) {
  const long long head = (long long)b * p.call.heads_q + h;
  return difference_target_sums(p) + (head * diagonal_groups(p.call) + group) * diagonal_pitch(p.call);
}
// The sums of the calling thread's group, in a CTA that has this tile.
SCOREMOD_FUNCTION float* own_diagonal_sums(const Arguments& p, int b, int h, int tile) {
  return diagonal_sums(p, b, h, tile * kDiagonalGroups + threadIdx.x / kDiagonalThreads);
}
// The place of a group's sum for kv - q = difference. A place below 0, or not below diagonal_pitch(), has no sum.
SCOREMOD_FUNCTION int diagonal_place(int difference, int group) {
  return (kFused ? -difference : difference) + group * kDiagonalRows + kDiagonalRows - 1;
}

constexpr DiagonalStorage kDiagonalStorage{kFused ? kKeys : kQueries, kDiagonalStep};
constexpr int kDiagonalsOfColumn = kDiagonalStorage.diagonals_of_column, kColumnPitch = kDiagonalStorage.column_pitch;
constexpr int kDiagonalWords = kDiagonalStorage.warp_words;

// Each thread sums its part of a warp's 16 rows of a step along diagonals.
struct DiagonalGains {
  float *words, *own;  // of the group's warps, and where the thread's begin
  float above[2];      // of the rows' upper half, whose diagonals go on in the lower half
  float carried[2];
  float sum;  // of the diagonal at `place`
  int place;

  // `shared` has kDiagonalStorage.bytes.
  SCOREMOD_MEMBER void begin(float* shared) {
    if (kDifferenceTargets == 0) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / kDiagonalThreads;
    words = shared + group * 4 * kDiagonalWords;
    own = shared + warp * kDiagonalWords + lane % 4 * 2 * kColumnPitch + 7 - lane / 4;
    sum = 0.0f;
    place = threadIdx.x % kDiagonalThreads;
  }
  // Element e of the columns 8 n and on, as Sums have them, in this order. Between a meeting of the group before the
  // first and one after the last.
  SCOREMOD_MEMBER void add(float gain, int n, int e) {
    const int i = e % 2;
    if (e < 2) {
      above[i] = gain;
      if (n == 0) carried[i] = 0.0f;
    } else {
      own[i * kColumnPitch + 8 * n] = carried[i] + gain;
      carried[i] = above[i];
      if (n == kDiagonalStep / 8 - 1) own[i * kColumnPitch + kDiagonalStep] = above[i];
    }
  }
  // Writes the diagonals before one that lies as far or farther to the group's diagonal_sums(): none is come back to.
  SCOREMOD_MEMBER void move_to(float* sums, int to) {
    for (; place < to; place += kDiagonalThreads) {
      sums[place] = sum;
      sum = 0.0f;
    }
  }
  // After a meeting of the group: the thread's diagonal of the step that begins at this column.
  SCOREMOD_MEMBER void add_step(float* sums, int first_column) {
    const int thread = threadIdx.x % kDiagonalThreads;
    const int ahead = (thread - first_column) & (kDiagonalThreads - 1);
    move_to(sums, first_column + ahead);
    float of_step = 0.0f;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp)
#pragma unroll
      for (int column = 0; column < 8; ++column) {
        const int at = ahead - (kDiagonalRows - 1) + warp * 16 - column + 7 + 8;
        if ((unsigned)at < (unsigned)kDiagonalsOfColumn)
          of_step += words[warp * kDiagonalWords + column * kColumnPitch + at];
      }
    sum += of_step;
  }
  // No step comes after this.
  SCOREMOD_MEMBER void finish(float* sums, const AttentionArguments& call) { move_to(sums, diagonal_pitch(call)); }
};
