// Constants of Hopper kernels beside shared/settings.cuh.
#pragma once

constexpr int kBoxRows = /*{box_rows}*/ 64 /*{}*/;         // the rows of each TMA load
constexpr int kQueryStages = /*{query_stages}*/ 1 /*{}*/;  // the forward's stages of q tiles
constexpr int kKeyStages = /*{key_stages}*/ 2 /*{}*/;      // the dQ kernel's stages of k and v tiles
// Whether TMA loads an operand that varies along queries and keys, a tile for each tile of scores, as it does k and v.
constexpr bool kLoadsBias = /*{loads_bias}*/ false /*{}*/;
// Orders of dq's work if kFused. fence.proxy.async lets MMAs read a step's gradients, and waits for reductions to
// global memory in flight. The fence or the reductions come early or late.
enum DqOrder { kFenceAtOnce, kLateFence, kEarlyAdditions };
constexpr DqOrder kDqOrder = /*{dq_order}*/ kFenceAtOnce /*{}*/;
