// The Hopper backward of keys. A producer warpgroup loads queries and their gradients ahead by TMA, and consumer
// warpgroups have 64 keys each. While one turns the scores of a step into weights and gradients, the others' WGMMAs
// run. hopper_backward_keys computes dk, and dv too if the accumulators of both fit into the registers. If not,
// hopper_backward_values computes dv. backward_fused.cuh has the kernel that computes dq too.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/shared/key_gradients.cuh"

constexpr HopperKeysStorage kKeysStorage{
    kDimQk, kDimV, kKeys, kStep, kStages, kFused, kLoadsBias, kDifferenceTargets > 0, kPersistent};

struct KeyTiles {
  Half *k, *v, *q, *d_o;
  Half* gradients;  // FusedGroup's
  Half* copied;     // where kLoadsBias: each group's numbers of a step
  float* terms;
  Barrier *own_full, *full, *empty;
  Barrier *copied_full, *copied_empty;  // of each group
  float* diagonals;                     // FusedGains'
  Barrier* own_empty;                   // these three of the persistent kernel
  GivenKeys* given;
  int* taken;

  static constexpr int kQBytes = kKeysStorage.q_tile.bytes, kDoBytes = kKeysStorage.d_o_tile.bytes,
                       kCopiedBytes = kKeysStorage.copied_tile.bytes;

  SCOREMOD_MEMBER explicit KeyTiles(unsigned char* shared) {
    constexpr HopperKeysStorage kAt = kKeysStorage;
    k = (Half*)(shared + kAt.k);
    v = (Half*)(shared + kAt.v);
    q = (Half*)(shared + kAt.q);
    d_o = (Half*)(shared + kAt.d_o);
    gradients = (Half*)(shared + kAt.gradients);
    copied = (Half*)(shared + kAt.copied);
    terms = (float*)(shared + kAt.terms);
    own_full = (Barrier*)(shared + kAt.own_full);
    full = (Barrier*)(shared + kAt.full);
    empty = (Barrier*)(shared + kAt.empty);
    copied_full = (Barrier*)(shared + kAt.copied_full);
    copied_empty = (Barrier*)(shared + kAt.copied_empty);
    diagonals = (float*)(shared + kAt.diagonals);
    own_empty = (Barrier*)(shared + kAt.own_empty);
    given = (GivenKeys*)(shared + kAt.given);
    taken = (int*)(shared + kAt.taken);
  }
  SCOREMOD_MEMBER void begin() const {
    mbarrier_init(own_full, 2);
    if (kPersistent) mbarrier_init(own_empty, kWarps);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + i, 3);
      mbarrier_init(empty + i, kWarps);
    }
    for (int i = 0; kLoadsBias && i < kGroups; ++i) {
      mbarrier_init(copied_full + i, 1);
      mbarrier_init(copied_empty + i, kWarps / kGroups);
    }
    fence_mbarrier_init();
  }
};

// Loads a step's rows of q and d_o, and their row terms.
SCOREMOD_FUNCTION void produce_step(const MappedArguments& all, const KeyTiles& tiles, const Ring<kStages>& ring, int b,
                                    int h, int first, int queries) {
  const AttentionArguments& call = all.rest.call;
  Barrier* const full = tiles.full + ring.stage;
  mbarrier_wait(tiles.empty + ring.stage, ring.phase ^ 1);
  if (threadIdx.x == kThreads) {
    const int left = rows_pitch(call) - first, bytes = (left < kStep ? left : kStep) * 2 * (int)sizeof(float);
    arrive_and_expect(full, bytes);
    copy_bytes(tiles.terms + ring.stage * kStep * 2, row_terms(call, b, h, first), bytes, full);
  }
  fill_tile<kStep, kDimQk>(tiles.q + ring.stage * (KeyTiles::kQBytes / 2), call.q, all.q, full, b, h, first, queries);
  fill_tile<kStep, kDimV>(tiles.d_o + ring.stage * (KeyTiles::kDoBytes / 2), call.d_o, all.d_o, full, b, h, first,
                          queries);
}

// A producer warp loads the operand's numbers for a step and a warpgroup's keys. The buffer holds one step, and is free
// as soon as the warpgroup has read it: the load overlaps the warpgroup's WGMMAs.
SCOREMOD_FUNCTION void produce_copied(const MappedArguments& all, const KeyTiles& tiles, const Ring<1>& ring, int group,
                                      int b, int h, int first_query, int key_tile) {
  const TensorArgument& copied = all.rest.call.copied;
  mbarrier_wait(tiles.copied_empty + group, ring.phase ^ 1);
  fill_tile<kStep, 64, 32>(tiles.copied + group * (KeyTiles::kCopiedBytes / 2), copied, all.copied,
                           tiles.copied_full + group, copied.batch == 0 ? 0 : b, copied.head == 0 ? 0 : h, first_query,
                           all.rest.call.seq_q, key_tile * kKeys + group * 64, all.rest.call.seq_kv);
}

// One thread issues all TMA loads but the operand's, which a warp for each consumer warpgroup issues.
SCOREMOD_FUNCTION bool one_thread_loads(const AttentionArguments& call) {
  return call.q.aligned && call.k.aligned && call.v.aligned && call.d_o.aligned;
}
SCOREMOD_FUNCTION void produce_keys(const MappedArguments& all, const KeyTiles& tiles, const KeyPlace& place) {
  const AttentionArguments& call = all.rest.call;
  const int first = place.key_tile * kKeys, keys = keys_of(call, place.b);
  fill_tile<kKeys, kDimQk>(tiles.k, call.k, all.k, tiles.own_full, place.b, place.head_kv, first, keys);
  fill_tile<kKeys, kDimV>(tiles.v, call.v, all.v, tiles.own_full, place.b, place.head_kv, first, keys);
}

SCOREMOD_FUNCTION void produce_queries(const MappedArguments& all, const KeyTiles& tiles, int b, int head_kv,
                                       int key_tile) {
  const AttentionArguments& call = all.rest.call;
  const bool boxes = one_thread_loads(call);
  const int warp = (threadIdx.x - kThreads) / 32, group = warp - 1;
  const bool copies = kLoadsBias && warp > 0 && group < kGroups, copies_alone = copies && boxes;
  if (boxes && warp > 0 && !copies) return;
  QuerySteps steps;
  steps.begin(call, b, head_kv, key_tile);
  if (!steps.next(call, b)) return;
  const int queries = queries_of(call, b);
  produce_keys(all, tiles, {b, head_kv, key_tile});
  Ring<kStages> ring;
  Ring<1> copied_ring;
  do {
    const int first = steps.first_query();
    if (!copies_alone) produce_step(all, tiles, ring, b, steps.h, first, queries);
    if (copies) produce_copied(all, tiles, copied_ring, group, b, steps.h, first, key_tile);
    ring.advance();
    copied_ring.advance();
  } while (steps.next(call, b));
}

// A warpgroup's tile of the TMA-loaded operand for a step, whose rows are queries. A thread reads each number of its
// scores apart: with ldmatrix, a quarter of the accesses, ptxas serializes the WGMMAs.
struct CopiedKeys {
  static constexpr bool kThere = true;
  Half* own;

  SCOREMOD_MEMBER explicit CopiedKeys(const KeyTiles& tiles)
      : own(tiles.copied + own_group() * (KeyTiles::kCopiedBytes / 2)) {}
  SCOREMOD_MEMBER float at(int n, int e) const {
    const int lane = threadIdx.x % 32, query = n * 8 + lane % 4 * 2 + e % 2,
              keys = threadIdx.x % kGroup / 32 * 16 + e / 2 * 8;
    return float_of(word_of_tile<kStep>(own, query, keys)[lane / 4]);
  }
};

// A consumer warpgroup of 64 keys: its accumulators, and the state of the step that the ring is at. It has the scores
// of kPart queries at once, which are the whole step but in backward_wide.cuh; `part` is their number in the step.
template <bool kDk, bool kDv, class Gains = KeyGains>
struct KeyGroup {
  static_assert(!kLoadsBias || kPart == kStep, "CopiedKeys has the numbers of a whole step");
  const Arguments& p;
  const KeyTiles& tiles;
  int b, first_key;
  unsigned k, v, q, d_o;
  QuerySteps steps;
  Ring<kStages> ring;
  Sums<1, kPart> scores, products;
  unsigned weights[kPart / 16][4], gradients[kPart / 16][4];
  Sums<1, padded(kDimQk)> dk;
  Sums<1, padded(kDimV)> dv;
  Gains gains;

  SCOREMOD_MEMBER KeyGroup(const Arguments& arguments, const KeyTiles& key_tiles) : p(arguments), tiles(key_tiles) {
    dk.clear();
    dv.clear();
  }
  // Walks over the queries; dk and dv are complete then.
  SCOREMOD_MEMBER void run(int batch, int head_kv, int key_tile) {
    if (!begin(batch, head_kv, key_tile)) return;
    scheduler_begin();
    mbarrier_wait(tiles.own_full, 0);
    take_steps();
    pin_sums();
  }

  // Whether there is a step.
  SCOREMOD_MEMBER bool begin(int batch, int head_kv, int key_tile) {
    steps.begin(p.call, batch, head_kv, key_tile);
    return begin_steps(batch, key_tile);
  }
  // Whether there is a step of `steps`, which are at their beginning.
  SCOREMOD_MEMBER bool begin_steps(int batch, int key_tile) {
    b = batch;
    first_key = key_tile * kKeys + threadIdx.x / 32 * 16;
    gains.begin_head(p, b, steps.h, first_key);
    if (!steps.next(p.call, b)) {
      end_heads();
      return false;
    }
    const int group_bytes = group_number() * 64 * 128;
    k = moved_by(tile_view(tiles.k, kKeys), group_bytes);
    v = moved_by(tile_view(tiles.v, kKeys), group_bytes);
    q = tile_view(tiles.q, kStep);
    d_o = tile_view(tiles.d_o, kStep);
    return true;
  }

  // Main loop over the steps of queries. It issues dV += P^T dO and dK += dS^T Q of the last step with S^T = K Q^T and
  // dP^T = V dO^T of this one.
  SCOREMOD_MEMBER void take_steps() {
    mbarrier_wait(tiles.full, 0);
    issue_scores();
    issue_products();
    wgmma_wait<0>();
    differentiate_step();
    while (steps.next(p.call, b)) {
      end_heads();
      const int last = ring.stage;
      ring.advance();
      mbarrier_wait(tiles.full + ring.stage, ring.phase);
      scheduler_wait();
      ask_dv(last);
      ask_dk(last);
      issue_scores();
      // The registers of the weights and gradients are free before more WGMMAs are issued.
      wgmma_wait<1>();
      pin_sums();
      consumer_release(tiles.empty + last);
      issue_products();
      scheduler_pass();
      wgmma_wait<0>();
      differentiate_step();
    }
    ask_dv(ring.stage);
    ask_dk(ring.stage);
    end_heads();
    wgmma_wait<0>();
  }
  // Closes the sums of heads that the walk has left behind.
  SCOREMOD_MEMBER void end_heads() {
    if (kDk) move_gains_to(gains, p, b, steps.h, first_key);
  }

  // The q and d_o of a part.
  SCOREMOD_MEMBER unsigned q_rows(int stage, int part) const {
    return moved_by(q, stage * KeyTiles::kQBytes + part * kPart * 128);
  }
  SCOREMOD_MEMBER unsigned d_o_rows(int stage, int part) const {
    return moved_by(d_o, stage * KeyTiles::kDoBytes + part * kPart * 128);
  }

  // Issues S^T = K Q^T.
  SCOREMOD_MEMBER void issue_scores(int part = 0) {
    wgmma_fence();
    issue_wgmma_abt<kDimQk, kKeys, kStep>(scores, k, q_rows(ring.stage, part));
    wgmma_commit();
  }
  // Issues dP^T = V dO^T.
  SCOREMOD_MEMBER void issue_products(int part = 0) {
    if (!kDk) return;
    wgmma_fence();
    issue_wgmma_abt<kDimV, kKeys, kStep>(products, v, d_o_rows(ring.stage, part));
    wgmma_commit();
  }
  // Issues dV += P^T dO, with P^T in registers.
  SCOREMOD_MEMBER void ask_dv(int stage, int part = 0) {
    if (!kDv) return;
    fence_operand(weights);
    fence_operand(dv.at[0]);
    wgmma_fence();
    issue_wgmma_ab<kDimV, kPart>(dv, weights, d_o_rows(stage, part));
    wgmma_commit();
  }
  // Issues dK += dS^T Q, with dS^T in registers.
  SCOREMOD_MEMBER void ask_dk(int stage, int part = 0) {
    if (!kDk) return;
    fence_operand(gradients);
    fence_operand(dk.at[0]);
    wgmma_fence();
    issue_wgmma_ab<kDimQk, kPart>(dk, gradients, q_rows(stage, part));
    wgmma_commit();
  }
  SCOREMOD_MEMBER void pin_sums() {
    if (kDv) fence_operand(dv.at[0]);
    if (kDk) fence_operand(dk.at[0]);
  }

  SCOREMOD_MEMBER bool partial() const { return steps.walk.partial || steps.first_query() + kStep > p.call.seq_q; }
  SCOREMOD_MEMBER const float* terms() const { return tiles.terms + ring.stage * kStep * 2; }
  SCOREMOD_MEMBER void round() {
    if (kDv) round_to_16bit<kPart>(weights, scores);
    if (kDk) round_to_16bit<kPart>(gradients, products);
  }
  SCOREMOD_MEMBER void differentiate_step(int part = 0) {
    fence_operand(scores.at[0]);
    if (kDk) fence_operand(products.at[0]);
    if (kLoadsBias) mbarrier_wait(tiles.copied_full + own_group(), step_phase());
    // Fewer registers meet after both ways where these are halves already.
    if (partial()) {
      differentiate_own<true>(part);
      round();
    } else {
      differentiate_own<false>(part);
      round();
    }
  }
  template <bool kMasked>
  SCOREMOD_MEMBER void differentiate_own(int part) {
    const int first_query = steps.first_query() + part * kPart;
    if constexpr (kLoadsBias) {
      differentiate_part<kMasked>(p, scores, products, terms(), gains, b, steps.h, first_query, first_key,
                                  CopiedKeys(tiles));
      consumer_release(tiles.copied_empty + own_group());
    } else {
      differentiate_part<kMasked>(p, scores, products, terms() + part * kPart * 2, gains, b, steps.h, first_query,
                                  first_key);
    }
  }
  // Whether the number of steps before this one is odd, where that of stages is.
  SCOREMOD_MEMBER int step_phase() const {
    static_assert(!kLoadsBias || kStages % 2 == 1, "a step's phase follows from its stage");
    return (ring.phase ^ ring.stage) & 1;
  }
};

// Whether a packed tile has no keys.
SCOREMOD_FUNCTION bool has_no_keys(const AttentionArguments& call, const KeyPlace& place) {
  return kPacksKeys && place.key_tile * kKeys >= keys_of(call, place.b);
}

// Writes dk and dv, through tiles that no WGMMA reads any more. Rows that are not finite are computed again.
template <bool kDk, bool kDv, class Group>
SCOREMOD_FUNCTION void store_keys(const Arguments& p, const Group& keys, const KeyPlace& place, Half* dk_tile,
                                  Half* dv_tile, float* scratch) {
  const AttentionArguments& call = p.call;
  const int first_key = place.key_tile * kKeys + threadIdx.x / 32 * 16, keys_end = keys_of(call, place.b);
  const float of_dk = sum_factor(call), dk_factors[1][2] = {{of_dk, of_dk}}, ones[1][2] = {{1.0f, 1.0f}};
  if (kDk) {
    store_through_tile<kDimQk, kDimQk>(keys.dk, dk_factors, rows_of(call.dk, place.b, place.head_kv), dk_tile,
                                       first_key, keys_end);
  }
  if (kDv) {
    store_through_tile<kDimV, kDimV>(keys.dv, ones, rows_of(call.dv, place.b, place.head_kv), dv_tile, first_key,
                                     keys_end);
  }
  mend_keys<kDk, kDv>(p, keys.dk, keys.dv, scratch, place.b, place.head_kv, place.key_tile);
}

// The kernel body of a CTA whose consumers are KeyGroup, or a class that does more.
template <bool kDk, bool kDv, class Group>
SCOREMOD_FUNCTION void write_keys(const MappedArguments& all) {
  SCOREMOD_SHARED(unaligned);
  const KeyTiles tiles(aligned_tiles(unaligned));
  const AttentionArguments& call = all.rest.call;
  if (kPacksKeys && has_no_keys(call, key_place(call, block_number()))) return;
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    const KeyPlace place = key_place(call, block_number());
    produce_queries(all, tiles, place.b, place.head_kv, place.key_tile);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    Group keys(all.rest, tiles);
    {
      const KeyPlace place = key_place(call, block_number());
      keys.run(place.b, place.head_kv, place.key_tile);
    }
    store_keys<kDk, kDv>(all.rest, keys, key_place(call, block_number()), tiles.k, tiles.v, (float*)unaligned);
  }
}

/*{kernel hopper_backward_keys}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_keys(SCOREMOD_MAPPED_ARGUMENT all) {
  write_keys<true, !kSeparateDv, KeyGroup<true, !kSeparateDv>>(all);
}
/*{}*/

/*{kernel hopper_backward_values}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_values(SCOREMOD_MAPPED_ARGUMENT all) {
  if (kSeparateDv) write_keys<false, kSeparateDv, KeyGroup<false, kSeparateDv>>(all);
}
/*{}*/
