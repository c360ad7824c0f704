#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.hpp"
#include "backend/cpu/attention_shape.hpp"
#include "backend/cpu/forward_worker.hpp"
#include "backend/cpu/largest_magnitude.hpp"
#include "backend/cpu/operand_gradients.hpp"
#include "backend/cpu/operand_views.hpp"
#include "backend/cpu/scratch.hpp"
#include "backend/cpu/turns.hpp"
#include "backend/cpu/vector_program.hpp"
#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::backend::cpu {

/// State that all threads of a call share. A unit of work is one tile of keys of one (batch, KV head), which owns its
/// part of dk and dv. Units are taken in order and run through the blocks of queries in order. A unit adds to dq (and
/// to operand gradients with a query axis) block by block, after the unit before it has passed that block. So sums are
/// always made in one order, whatever the number of threads. As earlier units are taken earlier, none waits for one
/// that has no thread.
struct BackwardCall {
  const compiler::CompiledProblem& compiled;
  const masks::TileMaskAnalyzer& analyzer;
  const AttentionShape& shape;
  const VectorProgram& program;
  const BackwardTensors& tensors;
  const CallParameters& parameters;
  std::span<const OperandView> operands;
  const OperandGradients& operand_gradients;
  std::size_t keys;        ///< of a unit
  std::int64_t tiles;      ///< units of one (batch, KV head)
  bool heads_share_rows;   ///< the first unit of a head must wait for the last of the head before
  float* dq_sums;          ///< [batch, heads_q, seq_q, padded_qk], or null where dq itself holds the sums
  RowTermArrays terms;     ///< remainders that are null are all 0, deltas that are null those of the call's O
  bool makes_deltas;       ///< a unit has all keys of its rows, whose deltas it makes
  std::span<Turn> passed;  ///< for each unit, the number of blocks that it has added
  Turn finished{};         ///< the number of units that have ended
  std::atomic<std::int64_t> next_unit{0};
  std::atomic<bool> cancelled{false};
  /// The largest magnitudes of gradients that are not yet rounded, where the problem wants them.
  LargestMagnitude amax_dq{}, amax_dk{}, amax_dv{};
};

/// Bytes of scratch that one worker takes.
std::size_t backward_worker_bytes(BackwardCall& call);

/// Does units until none is left or the call is cancelled.
void run_backward_worker(BackwardCall& call, Scratch& scratch);

}  // namespace scoremod::backend::cpu
