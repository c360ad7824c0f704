// The block mask: which tiles are empty, partial or full. attention_block_mask decides it exactly, one warp for each
// tile. It asks intervals first. If they do not decide, it evaluates the mask at every element until it has seen a kept
// key and a masked one. If a mask reads the score, only its score-free terms classify tiles: a tile can be proven
// empty, never full.
#pragma once

#include "backend/kernels/shared/program.cuh"

// Interval arithmetic on masks: it runs the mask's program once for a box of elements in place of once for each
// element. An operand's interval is its least and greatest value in the box. The intervals of each op are those of
// analysis/interval.hpp, in double, which holds every int and float.

// Values lo..hi, both included; of bools 0 and 1. Of floats, whether NaN is possible beside.
struct Range {
  double lo, hi;
  bool nan;
};
struct Truth {
  bool certain, possible;
};

constexpr double kLeastInt = -2147483648.0, kGreatestInt = 2147483647.0;
SCOREMOD_FUNCTION Range any_float() { return {-(double)infinity(), (double)infinity(), true}; }
SCOREMOD_FUNCTION Range any_int() { return {kLeastInt, kGreatestInt, false}; }
SCOREMOD_FUNCTION Range point_range(double x) { return {x, x, false}; }
SCOREMOD_FUNCTION Range float_point_range(float x) { return is_nan(x) ? any_float() : point_range((double)x); }
SCOREMOD_FUNCTION Range index_range(int first, int last, int offset) {
  return {(double)first + offset, (double)last + offset, false};
}

SCOREMOD_FUNCTION double lesser(double x, double y) { return x < y ? x : y; }
SCOREMOD_FUNCTION double greater(double x, double y) { return x > y ? x : y; }
SCOREMOD_FUNCTION Range hull(Range x, Range y) { return {lesser(x.lo, y.lo), greater(x.hi, y.hi), x.nan || y.nan}; }
SCOREMOD_FUNCTION Range hull_of_corners(double a, double b, double c, double d, bool nan) {
  return {lesser(lesser(a, b), lesser(c, d)), greater(greater(a, b), greater(c, d)), nan};
}
// An int that may wrap is any.
SCOREMOD_FUNCTION Range int_range(Range x) { return x.lo < kLeastInt || x.hi > kGreatestInt ? any_int() : x; }

SCOREMOD_FUNCTION Range int_add(Range x, Range y) { return int_range({x.lo + y.lo, x.hi + y.hi, false}); }
SCOREMOD_FUNCTION Range int_sub(Range x, Range y) { return int_range({x.lo - y.hi, x.hi - y.lo, false}); }
SCOREMOD_FUNCTION Range int_mul(Range x, Range y) {
  return int_range(hull_of_corners(x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi, false));
}
SCOREMOD_FUNCTION double floor_quotient(double x, double y) {
  const long long a = (long long)x, b = (long long)y, quotient = a / b;
  return (double)(a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient);
}
SCOREMOD_OUT_OF_LINE Range int_floor_div(Range x, Range y) {
  if (y.lo <= 0.0 && y.hi >= 0.0) return any_int();
  return int_range(hull_of_corners(floor_quotient(x.lo, y.lo), floor_quotient(x.lo, y.hi), floor_quotient(x.hi, y.lo),
                                   floor_quotient(x.hi, y.hi), false));
}
SCOREMOD_OUT_OF_LINE Range int_mod(Range x, Range y) {
  if (y.lo <= 0.0 && y.hi >= 0.0) return any_int();
  if (y.lo == y.hi) {
    // Within one period the remainder runs with x.
    const double periods = floor_quotient(x.lo, y.lo);
    if (periods == floor_quotient(x.hi, y.lo)) return {x.lo - periods * y.lo, x.hi - periods * y.lo, false};
  }
  if (y.lo > 0.0) return {0.0, y.hi - 1.0, false};
  return {y.lo + 1.0, 0.0, false};
}
SCOREMOD_FUNCTION double sign_of(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0; }
SCOREMOD_FUNCTION Range negated(Range x) { return {-x.hi, -x.lo, x.nan}; }
SCOREMOD_FUNCTION Range int_neg(Range x) { return int_range(negated(x)); }
SCOREMOD_FUNCTION Range float_abs(Range x) {
  return {x.lo > 0.0 ? x.lo : x.hi < 0.0 ? -x.hi : 0.0, greater(-x.lo, x.hi), x.nan};
}
SCOREMOD_FUNCTION Range int_abs(Range x) { return int_range(float_abs(x)); }
SCOREMOD_FUNCTION Range sign_range(Range x) { return {sign_of(x.lo), sign_of(x.hi), x.nan}; }
SCOREMOD_FUNCTION Range min_range(Range x, Range y) { return {lesser(x.lo, y.lo), lesser(x.hi, y.hi), x.nan || y.nan}; }
SCOREMOD_FUNCTION Range max_range(Range x, Range y) {
  return {greater(x.lo, y.lo), greater(x.hi, y.hi), x.nan || y.nan};
}

SCOREMOD_FUNCTION bool is_exact_int(double x) { return x >= -16777216.0 && x <= 16777216.0 && floor(x) == x; }
SCOREMOD_FUNCTION bool has_exact_ends(Range x) { return is_exact_int(x.lo) && is_exact_int(x.hi); }
SCOREMOD_FUNCTION bool is_bounded(Range x) { return x.lo - x.lo == 0.0 && x.hi - x.hi == 0.0; }
// The interval of a float whose exact value lies in x. It is wider by more than one rounding, flush to zero included,
// unless the ends are whole numbers that floats hold.
SCOREMOD_OUT_OF_LINE Range rounded_range(Range x, bool whole) {
  if (whole && has_exact_ends(x)) return x;
  constexpr double kRelative = 0x1p-22, kLeastNormal = 0x1p-126, kGreatest = 0x1.fffffep127;
  const double lo = x.lo - ((x.lo < 0.0 ? -x.lo : x.lo) * kRelative + kLeastNormal);
  const double hi = x.hi + ((x.hi < 0.0 ? -x.hi : x.hi) * kRelative + kLeastNormal);
  return {lo < -kGreatest ? -(double)infinity() : lesser(lo, kGreatest),
          hi > kGreatest ? (double)infinity() : greater(hi, -kGreatest), x.nan};
}
SCOREMOD_FUNCTION Range float_add(Range x, Range y) {
  if (!is_bounded(x) || !is_bounded(y)) return any_float();
  return rounded_range({x.lo + y.lo, x.hi + y.hi, x.nan || y.nan}, has_exact_ends(x) && has_exact_ends(y));
}
SCOREMOD_FUNCTION Range float_sub(Range x, Range y) { return float_add(x, negated(y)); }
SCOREMOD_OUT_OF_LINE Range float_mul(Range x, Range y) {
  if (!is_bounded(x) || !is_bounded(y)) return any_float();
  return rounded_range(hull_of_corners(x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi, x.nan || y.nan),
                       has_exact_ends(x) && has_exact_ends(y));
}
SCOREMOD_OUT_OF_LINE Range float_div(Range x, Range y) {
  // A divisor that may be flushed to zero counts as zero.
  const bool by_zero = y.lo <= 0x1p-126 && y.hi >= -0x1p-126;
  if (!is_bounded(x) || !is_bounded(y) || by_zero) return any_float();
  return rounded_range(hull_of_corners(x.lo / y.lo, x.lo / y.hi, x.hi / y.lo, x.hi / y.hi, x.nan || y.nan), false);
}
SCOREMOD_FUNCTION Range float_floor(Range x) { return {floor(x.lo), floor(x.hi), x.nan}; }
SCOREMOD_FUNCTION Range float_ceil(Range x) { return {ceil(x.lo), ceil(x.hi), x.nan}; }
SCOREMOD_FUNCTION Range float_round(Range x) { return {nearbyint(x.lo), nearbyint(x.hi), x.nan}; }
SCOREMOD_FUNCTION Range float_relu(Range x) { return {greater(x.lo, 0.0), greater(x.hi, 0.0), x.nan}; }
SCOREMOD_FUNCTION Range float_within(Range x, double lo, double hi) { return {lo, hi, x.nan}; }

// Rounding and cutting off are monotonic: the ends become the ends.
SCOREMOD_FUNCTION Range float_of_int(Range x) { return {(double)(float)x.lo, (double)(float)x.hi, false}; }
SCOREMOD_FUNCTION double whole_part(double x) { return (double)(long long)x; }
SCOREMOD_FUNCTION Range int_of_float(Range x) {
  const double lo = greater(lesser(x.lo, kGreatestInt), kLeastInt), hi = greater(lesser(x.hi, kGreatestInt), kLeastInt);
  const Range whole{whole_part(lo), whole_part(hi), false};
  return x.nan ? hull(whole, point_range(0.0)) : whole;
}
SCOREMOD_FUNCTION Range range_of_truth(Truth x) { return {x.certain ? 1.0 : 0.0, x.possible ? 1.0 : 0.0, false}; }
SCOREMOD_FUNCTION Truth truth_of(Range x) {
  return {!(x.lo <= 0.0 && x.hi >= 0.0), x.lo != 0.0 || x.hi != 0.0 || x.nan};
}

SCOREMOD_FUNCTION Truth truth_point(bool x) { return {x, x}; }
SCOREMOD_FUNCTION Truth any_truth() { return {false, true}; }
SCOREMOD_FUNCTION Truth truth_not(Truth x) { return {!x.possible, !x.certain}; }
SCOREMOD_FUNCTION Truth truth_and(Truth x, Truth y) { return {x.certain && y.certain, x.possible && y.possible}; }
SCOREMOD_FUNCTION Truth truth_or(Truth x, Truth y) { return {x.certain || y.certain, x.possible || y.possible}; }
SCOREMOD_FUNCTION bool is_decided(Truth x) { return x.certain == x.possible; }
SCOREMOD_FUNCTION Truth truth_xor(Truth x, Truth y) {
  return is_decided(x) && is_decided(y) ? truth_point(x.certain != y.certain) : any_truth();
}
SCOREMOD_FUNCTION Truth truth_eq(Range x, Range y) {
  const bool nan = x.nan || y.nan;
  return {!nan && x.lo == x.hi && y.lo == y.hi && x.lo == y.lo, x.lo <= y.hi && y.lo <= x.hi};
}
SCOREMOD_FUNCTION Truth truth_ne(Range x, Range y) { return truth_not(truth_eq(x, y)); }
SCOREMOD_FUNCTION Truth truth_lt(Range x, Range y) { return {!x.nan && !y.nan && x.hi < y.lo, x.lo < y.hi}; }
SCOREMOD_FUNCTION Truth truth_le(Range x, Range y) { return {!x.nan && !y.nan && x.hi <= y.lo, x.lo <= y.hi}; }
SCOREMOD_FUNCTION Truth truth_gt(Range x, Range y) { return truth_lt(y, x); }
SCOREMOD_FUNCTION Truth truth_ge(Range x, Range y) { return truth_le(y, x); }
SCOREMOD_FUNCTION Range range_select(Truth which, Range x, Range y) {
  return which.certain ? x : which.possible ? hull(x, y) : y;
}
SCOREMOD_FUNCTION Truth truth_select(Truth which, Truth x, Truth y) {
  if (is_decided(which)) return which.certain ? x : y;
  return {x.certain && y.certain, x.possible || y.possible};
}

// The entries of an operand that the box reads: `first` and the count in each dimension.
struct Entries {
  int first[4], count[4];
};
// More than these, and evaluating the mask itself is not much more work.
constexpr int kMaxEntries = 1024;

SCOREMOD_FUNCTION void read_along(Entries& entries, const OperandArgument& operand, int dimension, int first,
                                  int last) {
  const bool one = operand.extent[dimension] == 1;
  entries.first[dimension] = one ? 0 : first;
  entries.count[dimension] = one ? 1 : last - first + 1;
}
// A table's indices are clamped to its extent.
SCOREMOD_FUNCTION void read_at(Entries& entries, const OperandArgument& operand, int dimension, Range index) {
  const int extent = operand.extent[dimension];
  read_along(entries, operand, dimension, clamp_index((int)index.lo, extent), clamp_index((int)index.hi, extent));
}

SCOREMOD_FUNCTION float exchanged(float x, int distance) { return exchange(x, distance); }
SCOREMOD_FUNCTION int exchanged(int x, int distance) { return (int)exchange_bits((unsigned)x, distance); }

// The least and greatest entry. The threads of a warp, which all ask for the same, look for them together. `known` is
// false if there are too many entries, or NaNs alone. `load` is the prelude's of the dtype.
template <class Value>
struct Extremes {
  Value least, greatest;
  bool nan, known;
};
template <class Value, class Load>
SCOREMOD_FUNCTION Extremes<Value> extremes_of(const OperandArgument& operand, const Entries& entries, Value above,
                                              Value below, Load load) {
  Extremes<Value> found{above, below, false, false};
  long long all = 1;
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    all *= entries.count[d];
    if (all > kMaxEntries) return found;
  }
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < (int)all; i += 32) {
    long long place = 0;
    unsigned left = (unsigned)i;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      place += (entries.first[d] + (int)(left % (unsigned)entries.count[d])) * operand.stride[d];
      left /= (unsigned)entries.count[d];
    }
    const Value x = (Value)load(operand.data, place);
    found.nan = found.nan || x != x;
    found.least = x < found.least ? x : found.least;
    found.greatest = x > found.greatest ? x : found.greatest;
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Value least = exchanged(found.least, distance), greatest = exchanged(found.greatest, distance);
    found.least = least < found.least ? least : found.least;
    found.greatest = greatest > found.greatest ? greatest : found.greatest;
  }
  found.nan = ballot(found.nan) != 0;
  found.known = !(found.least > found.greatest);
  return found;
}
template <class Load>
SCOREMOD_FUNCTION Range float_entries(const OperandArgument& operand, const Entries& entries, Load load) {
  const Extremes<float> found = extremes_of<float>(operand, entries, infinity(), -infinity(), load);
  return found.known ? Range{(double)found.least, (double)found.greatest, found.nan} : any_float();
}
template <class Load>
SCOREMOD_FUNCTION Range int_entries(const OperandArgument& operand, const Entries& entries, Load load) {
  const Extremes<int> found = extremes_of<int>(operand, entries, 2147483647, -2147483647 - 1, load);
  return found.known ? Range{(double)found.least, (double)found.greatest, false} : any_int();
}
template <class Load>
SCOREMOD_FUNCTION Truth truth_entries(const OperandArgument& operand, const Entries& entries, Load load) {
  const Extremes<int> found = extremes_of<int>(operand, entries, 1, 0, load);
  return found.known ? Truth{found.least != 0, found.greatest != 0} : any_truth();
}

/*{mask_over}*/
// The kind of a box of one batch and head, as far as intervals decide it. The ends of the box are among the
// elements.
SCOREMOD_FUNCTION TileKind mask_over(const Arguments& p, int b, int h, int first_q, int last_q, int first_kv,
                                     int last_kv) {
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  /*{statements}*/ const Truth keep =
      truth_le(index_range(first_kv, last_kv, offset_kv), index_range(first_q, last_q, offset_q)); /*{}*/
  const Truth found = /*{keep}*/ keep /*{}*/;
  return !found.possible ? kEmptyTile : found.certain ? kFullTile : kPartialTile;
}
/*{}*/

// By all elements of the tile.
SCOREMOD_FUNCTION TileKind state_by_elements(const Arguments& p, int b, int h, int first_q, int end_q, int first_kv) {
  const int lane = threadIdx.x % 32, seq_kv = p.call.seq_kv;
  bool kept = false, masked = kMask == kScoreMask;
  // A thread stays with a key: what the mask reads of keys is read once, and what it reads of queries is the same for
  // all threads.
  bool decided = false;
  for (int any_kv = first_kv + lane; any_kv < first_kv + kKeys && !decided; any_kv += 32) {
    const bool is_key = any_kv < seq_kv;
    const int kv = is_key ? any_kv : seq_kv - 1;
    for (int begin = first_q; begin < end_q && !decided; begin += 32) {
      const int end = begin + 32 < end_q ? begin + 32 : end_q;
#pragma unroll 8
      for (int q = begin; q < end; ++q) {
        const bool keep = keeps(p, b, h, q, kv) && is_key;
        kept = kept || keep;
        masked = masked || !keep;
      }
      decided = ballot(kept) != 0 && ballot(masked) != 0;
    }
  }
  const bool some = ballot(kept) != 0, all = ballot(masked) == 0;
  return !some ? kEmptyTile : all ? kFullTile : kPartialTile;
}

// Whether all keys have a block; by a warp.
SCOREMOD_FUNCTION bool keys_have_blocks(const AttentionArguments& call, int b, int first_kv, int end_kv) {
  bool all = true;
  for (int kv = first_kv + threadIdx.x % 32; kv < end_kv; kv += 32) all = all && has_page(call, b, kv);
  return ballot(!all) == 0;
}

// Whether states are found for packed work tiles alone, which are those of sequences' own rows.
constexpr bool kPacksStates = kPacksQueries && kMaskVariesWithBatch;
// The tile of a warp. One of no sequence is beyond the last tile of queries.
struct StatePlace {
  int b, h, query_tile, key_tile;
};
SCOREMOD_FUNCTION StatePlace place_of_state(const AttentionArguments& call, long long number) {
  const int heads = kMaskVariesWithHead ? call.heads_q : 1, key_tile = (int)(number % call.key_tiles);
  const long long row = number / call.key_tiles;
  if (kPacksStates) {
    const int h = (int)(row / call.query_work_tiles), packed_tile = (int)(row % call.query_work_tiles);
    const PackedPlace place = packed_place(call.q, call.batch, packed_tile, kQueries);
    return {place.b, h, h < heads ? place.tile : call.query_tiles, key_tile};
  }
  const int plane = (int)(row / call.query_tiles), batches = kMaskVariesWithBatch ? call.batch : 1;
  return {plane / heads, plane % heads, plane < heads * batches ? (int)(row % call.query_tiles) : call.query_tiles,
          key_tile};
}

SCOREMOD_KERNEL(128, 1) attention_block_mask(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const long long number = (long long)blockIdx.x * 4 + threadIdx.x / 32;
  // A persistent kernel's counter of taken work tiles starts at 0 here, if every call finds these states.
  if (kPersistent && number == 0 && threadIdx.x == 0 && call.taken != nullptr) *call.taken = 0;
  const StatePlace place = place_of_state(call, number);
  const int b = place.b, h = place.h, query_tile = place.query_tile, key_tile = place.key_tile;
  if (query_tile >= call.query_tiles) return;
  const int first_q = query_tile * kQueries, first_kv = key_tile * kKeys;
  const int end_q = first_q + kQueries < call.seq_q ? first_q + kQueries : call.seq_q;
  const int end_kv = first_kv + kKeys < call.seq_kv ? first_kv + kKeys : call.seq_kv;
  TileKind state = kEmptyTile;
  const bool there = first_q < queries_of(call, b) && first_kv < keys_of(call, b);
  if (there && band_state(call, b, query_tile, key_tile) != kEmptyTile) {
    state = mask_over(p, b, h, first_q, end_q - 1, first_kv, end_kv - 1);
    if (kPaged && state == kFullTile && !keys_have_blocks(call, b, first_kv, end_kv)) state = kPartialTile;
    if (state == kPartialTile) state = state_by_elements(p, b, h, first_q, end_q, first_kv);
    // Keys beyond the last are masked.
    if (state == kFullTile && (kMask == kScoreMask || first_kv + kKeys > call.seq_kv)) state = kPartialTile;
  }
  if (threadIdx.x % 32 == 0) call.states[state_place(call, b, h, query_tile, key_tile)] = (unsigned char)state;
}

// attention_tile_order sorts the rows of tiles of each plane of states (if kFused, the columns), the longest first.
// Those of equal length stay in the order that they have without it.
constexpr int kFullTileTime = 2, kPartialTileTime = 3;

constexpr int kOrderThreads = 512;

SCOREMOD_KERNEL(kOrderThreads, 1) attention_tile_order(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  int* const times = (int*)shared;
  const int tiles = kFused ? call.key_tiles : call.query_tiles, others = kFused ? call.query_tiles : call.key_tiles;
  const int next = kFused ? 1 : call.key_tiles, next_other = kFused ? call.key_tiles : 1;
  const unsigned char* const states = call.states + (long long)blockIdx.x * tiles * others;
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles; i += kOrderThreads) {
    int time = 0;
#pragma unroll 8
    for (int j = 0; j < others; ++j) {
      const unsigned char state = states[(long long)i * next + (long long)j * next_other];
      time += state == kFullTile ? kFullTileTime : state == kPartialTile ? kPartialTileTime : 0;
    }
    times[i] = time;
  }
  cta_sync();
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles; i += kOrderThreads) {
    int before = 0;
#pragma unroll 8
    for (int j = 0; j < tiles; ++j) {
      const bool is_first = kFused ? j < i : j > i;
      before += times[j] > times[i] || (times[j] == times[i] && is_first) ? 1 : 0;
    }
    call.order[(long long)blockIdx.x * tiles + before] = i;
  }
}
