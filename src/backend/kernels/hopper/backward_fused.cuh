// hopper_backward_fused: hopper_backward_keys that computes dq too. The gradients of a step's scores are left operands
// of dk's WGMMA in registers, and go to shared memory as well. There their product with all keys of the CTA is the
// step's part of dq, which is added to fp32 sums in global memory (red.add). CTAs add in no order: dq differs in its
// last bits from call to call. hopper_write_queries, launched next, turns the sums into dq. Operand gradients are
// summed beside over a tile's keys and in a fixed order, except for those along queries.
#pragma once

#include "backend/kernels/hopper/backward_keys.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

// The fp32 workspace in which hopper_backward_fused adds dq up, in boxes of 64 queries by 64 dims, of whole tiles of
// queries. A box has a warpgroup's accumulators in the order of its threads, so that neighbouring threads add to
// neighbouring 16 bytes. Column 8 n of a thread is its nth four floats.
constexpr int kBoxSums = 64 * 64;

// The first 64 rows of a sequence in the sums of its first head, and from one head to the next.
SCOREMOD_FUNCTION int first_sum_rows(const AttentionArguments& call, int b) {
  const int tile = kPacksQueries ? first_packed_tile(call.q, b, kQueries) : b * call.heads_q * call.query_tiles;
  return tile * (kQueries / 64);
}
SCOREMOD_FUNCTION int sum_rows_pitch(const AttentionArguments& call) {
  return (kPacksQueries ? call.query_work_tiles : call.query_tiles) * (kQueries / 64);
}
// The number of the box of 64 dims from 64 * block on, and of 64 queries from q on. `first` is where the sums of the
// head's sequence begin.
SCOREMOD_FUNCTION int box_number(const AttentionArguments& call, int first, int h, int q, int block) {
  return (first + h * sum_rows_pitch(call) + q / 64) * blocks_of(kDimQk) + block;
}
// The thread's first sums of a box; those of 8 columns further are kNextSums on.
constexpr int kNextSums = kGroup * 4;
SCOREMOD_FUNCTION float* own_sums(const AttentionArguments& call, int box) {
  return call.query_sums + (long long)box * kBoxSums + threadIdx.x % kGroup * 4;
}

// Each warpgroup computes half of a step's dq: half of the dims, or half of the queries. backward_wide.cuh has its own
// halves.
constexpr bool kSharesDims = kStep == 64;
static_assert(!kFused || kPart < kStep || (kGroups == 2 && kStep * blocks_of(kDimQk) == 128),
              "a group's half is 64 rows by 64 columns");

// KeyGains with the gradients that hopper_backward_queries sums elsewhere. A gradient that varies along neither queries
// nor keys is a warp's sum over its 16 keys and a head's queries. A row's delta is the one from the rounded o, as dq,
// dk and diagonals have it.
struct FusedGains : KeyGains {
  static constexpr bool kAny = kTargets > 0;
  static_assert(!kFused || kRowTargets == 0 || row_target_is_total(kRowTargets - 1), "none along queries");
  static constexpr int kColumns = kDiagonalStep / 8;
  float totals[kMaxRowTargets];
  float* words;  // of shared memory, for diagonals
  DiagonalGains diagonals;

  SCOREMOD_MEMBER void begin_head(const Arguments& p, int b, int head, int first_key) {
    KeyGains::begin_head(p, b, head, first_key);
#pragma unroll
    for (int t = 0; t < kRowTargets; ++t) totals[t] = 0.0f;
    diagonals.begin(words);
  }
  SCOREMOD_MEMBER void begin_columns(int n) {
    if (kDifferenceTargets > 0 && n % kColumns == 0) warpgroup_sync();  // nobody reads the last diagonals any more
  }
  SCOREMOD_MEMBER void add(const Arguments& p, const Differentiated& element, int n, int e, int b, int q, int kv) {
#pragma unroll
    for (int t = 0; t < kKeyTargets; ++t) add_in_order(at[e / 2][t], element.gains[kRowTargets + t], 1.0f);
#pragma unroll
    for (int t = 0; t < kRowTargets; ++t) add_in_order(totals[t], element.gains[t], element.centred);
    if (kDifferenceTargets > 0) diagonals.add(element.gains[kRowTargets + kKeyTargets], n % kColumns, e);
    if (kElementTargets > 0) store_element_gains(p, element_gains(element), b, h, q, kv);
  }
  SCOREMOD_MEMBER void end_columns(const Arguments& p, int n, int b, int first_query, int first_key) {
    if (kDifferenceTargets == 0 || n % kColumns != kColumns - 1) return;
    warpgroup_sync();
    diagonals.add_step(own_diagonal_sums(p, b, h, first_key / kKeys), first_query + (n + 1) * 8 - kDiagonalStep);
  }
  SCOREMOD_MEMBER void end_head(const Arguments& p, int b, int first_key) {
    KeyGains::end_head(p, b, first_key);
#pragma unroll
    for (int t = 0; t < kRowTargets; ++t) {
      const float total = sum_of_warp(totals[t]);
      const long long head = (long long)b * p.call.heads_q + h;
      if (threadIdx.x % 32 == 0) row_target_sums(p, t)[head * totals_of_head(p.call) + first_key / 16] = total;
    }
    if (kDifferenceTargets > 0) diagonals.finish(own_diagonal_sums(p, b, h, first_key / kKeys), p.call);
  }
};

// The first warpgroup issues a step's WGMMAs before the second has stored the gradients of the step before. Hence dq
// follows two steps later. The second warpgroup's turn of that step ends before the first one stores the gradients of
// the third step.
struct FusedGroup : KeyGroup<true, true, FusedGains> {
  Sums<1, 64> dq;
  unsigned all_gradients, all_k;
  int last_box, box;  // where dq goes of the last step, and of the one before
  int own_tile;       // of the gradients of the step that the ring is at
  int first_rows;     // of the sequence's dq in the sums

  SCOREMOD_MEMBER FusedGroup(const Arguments& arguments, const KeyTiles& key_tiles)
      : KeyGroup<true, true, FusedGains>(arguments, key_tiles) {
    gains.words = key_tiles.diagonals;
  }

  SCOREMOD_MEMBER void run(int batch, int head_kv, int key_tile) {
    if (!begin_all(batch, head_kv, key_tile)) return;
    take_half();
    scheduler_begin();
    mbarrier_wait(tiles.own_full, 0);
    take_steps();
    end_all();
  }

  // begin(), and begin_sums() if there is a step.
  SCOREMOD_MEMBER bool begin_all(int batch, int head_kv, int key_tile) {
    for (int h = head_kv * p.call.group; kElementTargets > 0 && h < (head_kv + 1) * p.call.group; ++h)
      clear_empty_tiles_of_keys(p, batch, h, key_tile);
    if (!begin(batch, head_kv, key_tile)) return false;
    begin_sums();
    return true;
  }
  // The tiles that both warpgroups read whole, and where dq goes.
  SCOREMOD_MEMBER void begin_sums() {
    all_gradients = tile_view(tiles.gradients, kKeys);
    all_k = tile_view(tiles.k, kKeys);
    own_tile = 0;
    first_rows = first_sum_rows(p.call, b);
  }
  // The warpgroup's half of dq.
  SCOREMOD_MEMBER void take_half() {
    const int own_half = group_number() * kKeys * 128;
    if (kSharesDims)
      all_k = moved_by(all_k, own_half);
    else
      all_gradients = moved_by(all_gradients, own_half);
  }
  SCOREMOD_MEMBER void end_all() {
    pin_sums();
    // Both read all keys, whose rows are written over next.
    block_barrier();
  }

  SCOREMOD_MEMBER void take_steps() {
    mbarrier_wait(tiles.full + ring.stage, ring.phase);
    issue_scores();
    issue_products();
    wgmma_wait<0>();
    differentiate_step();
    share_gradients();
    bool has_box = false;
    while (last_box = own_box(), steps.next(p.call, b)) {
      end_heads();
      const int last = ring.stage;
      ring.advance();
      mbarrier_wait(tiles.full + ring.stage, ring.phase);
      scheduler_wait();
      if (kDqOrder == kEarlyAdditions)
        issue_dq_first(last, has_box);
      else
        issue_dq_last(last, has_box);
      issue_products();
      scheduler_pass();
      box = last_box;
      has_box = true;
      wgmma_wait<0>();
      own_tile = next_tile(own_tile);
      differentiate_step();
      share_gradients();
    }
    ask_dv(ring.stage);
    ask_dk(ring.stage);
    end_heads();
    block_barrier();
    if (kDqOrder == kLateFence) fence_proxy_async();
    if (has_box) finish_dq(next_tile(next_tile(own_tile)), box);
    finish_dq(own_tile, last_box);
  }

  // Issues the rest of the last step, and the scores of the next one. Registers of the weights and gradients, then
  // those of dq, are free before more WGMMAs are issued; the next one runs meanwhile. The first step has no step before
  // it, and its product is ignored.
  SCOREMOD_MEMBER void issue_dq_last(int last, bool has_box) {
    ask_dv(last);
    ask_dk(last);
    if (kDqOrder == kLateFence) fence_proxy_async();  // waits beside these products
    issue_dq(next_tile(next_tile(own_tile)));
    wgmma_wait<1>();
    pin_sums();
    consumer_release(tiles.empty + last);
    issue_scores();
    wgmma_wait<1>();
    fence_operand(dq.at[0]);
    if (has_box) add_dq(box);
  }
  // The additions begin beside the other WGMMAs, and have more time until the next fence. But scores begin later,
  // because there are no registers for them before these WGMMAs end.
  SCOREMOD_MEMBER void issue_dq_first(int last, bool has_box) {
    issue_dq(next_tile(next_tile(own_tile)));
    ask_dv(last);
    ask_dk(last);
    wgmma_wait<2>();
    fence_operand(dq.at[0]);
    if (has_box) add_dq(box);
    wgmma_wait<0>();
    pin_sums();
    consumer_release(tiles.empty + last);
    issue_scores();
  }

  SCOREMOD_MEMBER static int next_tile(int tile) { return tile == kKeysStorage.gradient_tiles - 1 ? 0 : tile + 1; }
  SCOREMOD_MEMBER int own_box() const {
    const int group = own_group();
    return kSharesDims ? box_number(p.call, first_rows, steps.h, steps.first_query(), group)
                       : box_number(p.call, first_rows, steps.h, steps.first_query() + group * 64, 0);
  }

  // Stores the warpgroup's rows of a part's gradients to their tile, which both warpgroups' WGMMAs read.
  SCOREMOD_MEMBER void share_gradients(int part = 0) {
    const int lane = threadIdx.x % 32;
    Half* const own = tiles.gradients + own_tile * (kKeysStorage.gradient_tile.bytes / 2) + threadIdx.x / 32 * 16 * 64;
    const int row = lane % 16;  // of the lane's matrix, of which two are beside each other
#pragma unroll
    for (int k = 0; k < kPart / 16; ++k) {
      const int first = part * (kPart / 8) + 2 * k, n = first + lane / 16;
      store_matrices(own + first / 8 * kKeys * 64 + row * 64 + (n % 8 ^ row % 8) * 8, gradients[k]);
    }
    if (kDqOrder != kLateFence) fence_proxy_async();
  }

  SCOREMOD_MEMBER void issue_dq(int tile) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16)
      Product<64>::of_columns(dq.at[0], moved_by(all_gradients, tile * kKeysStorage.gradient_tile.bytes + k * 128),
                              moved_by(all_k, k * 128), k != 0);
    wgmma_commit();
  }
  SCOREMOD_MEMBER void add_dq(int to) {
    float* const sums = own_sums(p.call, to);
#pragma unroll
    for (int n = 0; n < 8; ++n) add_to_memory(sums + n * kNextSums, dq.at[0][n]);
  }
  SCOREMOD_MEMBER void finish_dq(int tile, int to) {
    issue_dq(tile);
    wgmma_wait<0>();
    fence_operand(dq.at[0]);
    add_dq(to);
  }
};

/*{kernel hopper_backward_fused}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_fused(SCOREMOD_MAPPED_ARGUMENT all) {
  write_keys<true, true, FusedGroup>(all);
}
/*{}*/

// The sums of a warp's 16 queries from first_query on, as it has them after a product.
SCOREMOD_FUNCTION void read_query_sums(const AttentionArguments& call, Sums<1, padded(kDimQk)>& dq, int b, int h,
                                       int first_query) {
#pragma unroll
  for (int block = 0; block < blocks_of(kDimQk); ++block) {
    const float* const sums = own_sums(call, box_number(call, first_sum_rows(call, b), h, first_query, block));
#pragma unroll
    for (int n = 0; n < 8 && block * 8 + n < padded(kDimQk) / 8; ++n) {
      alignas(16) float four[4];
      copy_word(four, sums + n * kNextSums);
#pragma unroll
      for (int e = 0; e < 4; ++e) dq.at[0][block * 8 + n][e] = four[e];
    }
  }
}

/*{kernel hopper_write_queries}*/
// Turns the sums into dq, a tile of queries by each CTA. Rows whose sums are not finite are computed again.
SCOREMOD_KERNEL(kThreads, 2) hopper_write_queries(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const QueryPlace place = query_place(call, blockIdx.x);
  const int b = place.b, h = place.h, query_tile = place.query_tile, queries = queries_of(call, b);
  if (query_tile * kQueries >= queries) return;
  const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
  Sums<1, padded(kDimQk)> dq;
  read_query_sums(call, dq, b, h, first_query);
  const float factor = sum_factor(call), factors[1][2] = {{factor, factor}};
  store_through_tile<kDimQk, kDimQk>(dq, factors, rows_of(call.dq, b, h), (Half*)shared, first_query, queries);
  if (!any_of_block(any_not_finite(dq, first_query, queries))) return;
  for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
    backward_query_row(p, (float*)shared, b, h, query_tile * kQueries + i);
}
/*{}*/

/*{kernel hopper_persistent_backward}*/
// hopper_backward_fused as a persistent kernel, whose CTAs take tiles of keys one after the other. While the consumers
// store dk and dv of one tile, the producers load the first queries of the next one, and its keys. What a tile's place
// is found by, and the beginning of its walk, the producers find ahead too.

static_assert(!kPersistent || (kPart == kStep && !kLoadsBias && kTargets == 0 && !kHeadsTakeTurns),
              "other backwards have a CTA for each tile of keys");
// dk and dv go to memory through the tiles of gradients, since the next keys are loaded to those of k and v.
static_assert(!kPersistent || kKeysStorage.gradient_tiles * kKeysStorage.gradient_tile.bytes >=
                                  (kDimQk > kDimV ? kKeysStorage.k_tile.bytes : kKeysStorage.v_tile.bytes),
              "the accumulators of a tile fit");

// Loads a work tile: its first queries as soon as the ring has room, its keys as soon as the last tile's are free.
SCOREMOD_FUNCTION void produce_key_item(const MappedArguments& all, const KeyTiles& tiles, Ring<kStages>& ring,
                                        const KeyPlace& place, int count) {
  const AttentionArguments& call = all.rest.call;
  QuerySteps steps;
  unsigned some = 0, full = 0;
  bool any = false;
  const int queries = queries_of(call, place.b);
  const auto produce = [&] {
    produce_step(all, tiles, ring, place.b, steps.h, steps.first_query(), queries);
    ring.advance();
  };
  if (place.key_tile >= 0) {
    steps.begin(call, place.b, place.head_kv, place.key_tile);
    some = steps.walk.some;
    full = steps.walk.full;
    any = steps.next(call, place.b);
    if (any) produce();
  }
  mbarrier_wait(tiles.own_empty, (count & 1) ^ 1);
  if (threadIdx.x == kThreads) tiles.given[count & 1] = {place, some, full};
  if (any) {
    produce_keys(all, tiles, place);
    while (steps.next(call, place.b)) produce();
  } else if (threadIdx.x == kThreads) {
    // There is nothing to load: zeros are to be written, or the kernel ends.
    arrive(tiles.own_full);
    arrive(tiles.own_full);
  }
}

SCOREMOD_FUNCTION void produce_key_items(const MappedArguments& all, const KeyTiles& tiles) {
  const AttentionArguments& call = all.rest.call;
  const bool alone = one_thread_loads(call);
  if (alone && threadIdx.x >= kThreads + 32) return;
  const int items = call.key_work_tiles * (call.heads_q / call.group);
  Ring<kStages> ring;
  int count = 0;
  for (int number = block_number(); number < items; number = take_item(call, tiles.taken, alone)) {
    const KeyPlace place = key_place(call, number);
    if (!has_no_keys(call, place)) produce_key_item(all, tiles, ring, place, count++);
  }
  produce_key_item(all, tiles, ring, {0, 0, -1}, count);
}

// Reads a work tile that every consumer has, from shared memory at each use, so that it takes no registers between.
SCOREMOD_FUNCTION KeyPlace item_at(const volatile KeyPlace& item) {
  return {uniform(item.b), uniform(item.head_kv), uniform(item.key_tile)};
}

struct PersistentGroup : FusedGroup {
  SCOREMOD_MEMBER PersistentGroup(const Arguments& arguments, const KeyTiles& key_tiles)
      : FusedGroup(arguments, key_tiles) {}

  // Walks over the queries of a work tile, whose keys are there.
  SCOREMOD_MEMBER void run(const GivenKeys& given) {
    const KeyPlace place = item_at(given.place);
    steps.begin_with(p.call, place, uniform(given.some), uniform(given.full));
    if (begin_steps(place.b, place.key_tile)) {
      begin_sums();
      take_half();
      take_steps();
      consumer_release(tiles.empty + ring.stage);
      ring.advance();
    }
    consumer_release(tiles.own_empty);
    end_all();
  }
};

SCOREMOD_FUNCTION void consume_key_items(const Arguments& p, const KeyTiles& tiles) {
  scheduler_begin();
  Ring<kStages> ring;
  for (int count = 0;; ++count) {
    const GivenKeys& given = tiles.given[count & 1];
    mbarrier_wait(tiles.own_full, count & 1);
    if (uniform(given.place.key_tile) < 0) return;
    PersistentGroup keys(p, tiles);
    keys.ring = ring;
    keys.run(given);
    ring = keys.ring;
    store_keys<true, true>(p, keys, item_at(given.place), tiles.gradients, tiles.gradients, (float*)tiles.gradients);
  }
}

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_persistent_backward(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const KeyTiles tiles(aligned_tiles(unaligned));
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce_key_items(all, tiles);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume_key_items(all.rest, tiles);
  }
}
/*{}*/
