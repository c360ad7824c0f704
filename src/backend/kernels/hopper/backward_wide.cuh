// hopper_backward_wide: hopper_backward_fused for head dims of q and k from 129 to 192. The accumulators of dk and dv
// leave a thread registers for the scores of half a step. So a warpgroup takes a step in three turns: the scores of its
// first part, those of its second, and dq. Their WGMMAs run beside the other warpgroup's arithmetic.
#pragma once

#include "backend/kernels/hopper/backward_fused.cuh"

// The parts of a step, and the blocks of 64 dims of dq. Each warpgroup has one block, and 32 dims of the one between.
constexpr int kWideParts = kStep / kPart;
constexpr int kHalfBlock = 32;
static_assert(kPart == kStep || (kGroups == 2 && kStep == 64 && kWideParts == 2 && blocks_of(kDimQk) == 3),
              "a group has half of three blocks");

struct WideGroup : FusedGroup {
  Sums<1, kHalfBlock> half_dq;
  unsigned own_k, half_k;  // the columns of k that dq's two WGMMAs read

  SCOREMOD_MEMBER WideGroup(const Arguments& arguments, const KeyTiles& key_tiles) : FusedGroup(arguments, key_tiles) {}

  SCOREMOD_MEMBER void run(int batch, int head_kv, int key_tile) {
    if (!begin_all(batch, head_kv, key_tile)) return;
    own_k = moved_by(all_k, group_number() * 2 * kKeys * 128);
    half_k = moved_by(all_k, kKeys * 128 + group_number() * kHalfBlock * 2);
    scheduler_begin();
    mbarrier_wait(tiles.own_full, 0);
    take_steps();
    end_all();
  }

  // A warpgroup's dq of a step needs the other one's gradients. When the first warpgroup's third turn begins, the
  // second one has stored those of the step before, and not yet all of this step. So dq follows a step later.
  SCOREMOD_MEMBER void take_steps() {
    mbarrier_wait(tiles.full, 0);
    bool has_box = false;
    while (true) {
      take_first_part();
      take_second_part();
      end_step(has_box);
      box = first_box();
      has_box = true;
      if (!steps.next(p.call, b)) break;
      end_heads();
      ring.advance();
      own_tile = next_tile(own_tile);
      mbarrier_wait(tiles.full + ring.stage, ring.phase);
    }
    end_heads();
    block_barrier();
    issue_dq(own_tile);
    wait_for_dq();
    add_dq();
  }

  SCOREMOD_MEMBER void take_first_part() {
    scheduler_wait();
    issue_scores(0);
    issue_products(0);
    scheduler_pass();
    wgmma_wait<0>();
    differentiate_step(0);
    share_gradients(0);
  }
  // Its scores are issued with dv and dk of the first part.
  SCOREMOD_MEMBER void take_second_part() {
    scheduler_wait();
    ask_dv(ring.stage, 0);
    ask_dk(ring.stage, 0);
    issue_scores(1);
    wgmma_wait<1>();
    pin_sums();
    issue_products(1);
    scheduler_pass();
    wgmma_wait<0>();
    differentiate_step(1);
    share_gradients(1);
  }
  // dv and dk of the second part, and dq of the step before. The first step has none before it, and its product is
  // ignored. Registers of the weights and gradients are free before dq's WGMMAs are issued.
  SCOREMOD_MEMBER void end_step(bool has_box) {
    scheduler_wait();
    ask_dv(ring.stage, 1);
    ask_dk(ring.stage, 1);
    wgmma_wait<0>();
    pin_sums();
    consumer_release(tiles.empty + ring.stage);
    issue_dq(next_tile(next_tile(own_tile)));
    scheduler_pass();
    wait_for_dq();
    if (has_box) add_dq();
  }

  // The first of the step's three boxes.
  SCOREMOD_MEMBER int first_box() const { return box_number(p.call, first_rows, steps.h, steps.first_query(), 0); }

  SCOREMOD_MEMBER void issue_dq(int tile) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      const unsigned of_gradients = moved_by(all_gradients, tile * kKeysStorage.gradient_tile.bytes + k * 128);
      Product<64>::of_columns(dq.at[0], of_gradients, moved_by(own_k, k * 128), k != 0);
      Product<kHalfBlock>::of_columns(half_dq.at[0], of_gradients, moved_by(half_k, k * 128), k != 0);
    }
    wgmma_commit();
  }
  SCOREMOD_MEMBER void wait_for_dq() {
    wgmma_wait<0>();
    fence_operand(dq.at[0]);
    fence_operand(half_dq.at[0]);
  }
  SCOREMOD_MEMBER void add_dq() {
    FusedGroup::add_dq(box + own_group() * 2);
    float* const sums = own_sums(p.call, box + 1) + own_group() * (kHalfBlock / 8 * kNextSums);
#pragma unroll
    for (int n = 0; n < kHalfBlock / 8; ++n) add_to_memory(sums + n * kNextSums, half_dq.at[0][n]);
  }
};

/*{kernel hopper_backward_wide}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_wide(SCOREMOD_MAPPED_ARGUMENT all) {
  write_keys<true, true, WideGroup>(all);
}
/*{}*/
