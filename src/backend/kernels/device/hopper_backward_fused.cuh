// hopper_backward_fused: hopper_backward_keys that makes dq too. The gradients of a step's scores are left factors of
// dk in registers; they go to shared memory as well, and times all of the block's keys they are what the step's queries
// gain, which is added to sums in the device's memory. Blocks add in no order: dq differs in its last bits from call to
// call. hopper_write_queries, launched next, makes dq of the sums.
#pragma once

#include "backend/kernels/device/hopper_backward_keys.cuh"
#include "backend/kernels/device/hopper_query_sums.cuh"

// Each group makes half of what a step's queries gain: half of the dims, or half of the queries.
constexpr bool kSharesDims = kStep == 64;
static_assert(!kFused || (kGroups == 2 && kStep * blocks_of(kDimQk) == 128), "a group's half is 64 rows by 64 columns");

// The first group asks for its products of a step before the second one has left the gradients of the step before, so
// what queries gain is made two steps later; the second group's turn of that step is over before the first one writes
// the gradients of the third step.
struct FusedGroup : KeyGroup<true, true> {
  Sums<1, 64> dq;
  unsigned all_gradients, all_k;
  int last_box, box;  // where dq goes of the last step, and of the one before
  int own_tile;       // of the gradients of the step that the ring is at

  SCOREMOD_MEMBER FusedGroup(const Arguments& arguments, const KeyTiles& key_tiles)
      : KeyGroup<true, true>(arguments, key_tiles) {}

  SCOREMOD_MEMBER void run(int batch, int head_kv, int key_tile) {
    if (!begin(batch, head_kv, key_tile)) return;
    all_gradients = tile_view(tiles.gradients, kKeys);
    all_k = tile_view(tiles.k, kKeys);
    const int own_half = group_number() * kKeys * 128;
    if (kSharesDims)
      all_k = moved_by(all_k, own_half);
    else
      all_gradients = moved_by(all_gradients, own_half);
    own_tile = 0;
    take_steps();
    pin_sums();
    // Both read all keys, whose rows are written over next.
    block_barrier();
  }

  SCOREMOD_MEMBER void take_steps() {
    begin_turns();
    wait_for(tiles.full, 0);
    ask_scores();
    ask_products();
    wait_for_products<0>();
    differentiate_step();
    share_gradients();
    bool has_box = false;
    while (last_box = own_box(), steps.next(p.call, b)) {
      const int last = ring.stage;
      ring.advance();
      wait_for(tiles.full + ring.stage, ring.phase);
      await_turn();
      ask_dv(last);
      ask_dk(last);
      // Of the first step there is none before, and the product is left where it is.
      ask_dq(next_tile(next_tile(own_tile)));
      // Registers of the weights and gradients, then those of dq, are free before more products are asked for; the next
      // one is under way meanwhile.
      wait_for_products<1>();
      pin_sums();
      leave(tiles.empty + last);
      ask_scores();
      wait_for_products<1>();
      pin(dq.at[0]);
      if (has_box) add_dq(box);
      ask_products();
      pass_turn();
      box = last_box;
      has_box = true;
      wait_for_products<0>();
      own_tile = next_tile(own_tile);
      differentiate_step();
      share_gradients();
    }
    ask_dv(ring.stage);
    ask_dk(ring.stage);
    block_barrier();
    if (has_box) finish_dq(next_tile(next_tile(own_tile)), box);
    finish_dq(own_tile, last_box);
  }

  SCOREMOD_MEMBER static int next_tile(int tile) { return tile == kGradientTiles - 1 ? 0 : tile + 1; }
  SCOREMOD_MEMBER int own_box() const {
    const int group = group_number();
    return kSharesDims ? box_number(p.call, b, steps.h, steps.first_query(), group)
                       : box_number(p.call, b, steps.h, steps.first_query() + group * 64, 0);
  }

  // Writes the group's rows of the gradients to their tile, for both groups' products.
  SCOREMOD_MEMBER void share_gradients() {
    const int lane = threadIdx.x % 32;
    Half* const own = tiles.gradients + own_tile * (tile_bytes(kKeys, kStep) / 2) + threadIdx.x / 32 * 16 * 64;
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, row = i % 2 * 8 + lane / 4, word = n % 8 ^ lane / 4;
        *(unsigned*)(own + n / 8 * kKeys * 64 + row * 64 + word * 8 + lane % 4 * 2) = gradients[k][i];
      }
    publish_writes();
  }

  SCOREMOD_MEMBER void ask_dq(int tile) {
    begin_products();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16)
      Product<64>::of_columns(dq.at[0], moved_by(all_gradients, tile * tile_bytes(kKeys, kStep) + k * 128),
                              moved_by(all_k, k * 128), k != 0);
    end_products();
  }
  SCOREMOD_MEMBER void add_dq(int to) {
    float* const sums = own_sums(p.call, to);
#pragma unroll
    for (int n = 0; n < 8; ++n) add_to_memory(sums + n * kNextSums, dq.at[0][n]);
  }
  SCOREMOD_MEMBER void finish_dq(int tile, int to) {
    ask_dq(tile);
    wait_for_products<0>();
    pin(dq.at[0]);
    add_dq(to);
  }
};

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_fused(SCOREMOD_MAPPED_ARGUMENT all) {
  write_keys<true, true, FusedGroup>(all);
}
