#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.hpp"
#include "backend/cpu/attention_shape.hpp"
#include "backend/cpu/largest_magnitude.hpp"
#include "backend/cpu/operand_views.hpp"
#include "backend/cpu/scratch.hpp"
#include "backend/cpu/vector_program.hpp"
#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::backend::cpu {

/// For each query row, [batch, heads_q, seq_q]; null where a call needs none.
struct RowTermArrays {
  float* remainders = nullptr;  ///< the rounding errors of the LSE: lse_remainder() of row_terms.hpp
  float* deltas = nullptr;      ///< rowsum(dO * O), of an O that was never rounded
};

/// A pass for rows' terms reads these besides a forward's tensors, and writes these in place of its outputs.
struct RowTermCall {
  const float* lse = nullptr;  ///< as the problem has it
  const void* d_o = nullptr;
  RowTermArrays arrays = {};

  bool any() const { return arrays.remainders != nullptr || arrays.deltas != nullptr; }
};

/// All threads of a call share this; it is read only, except the counter.
struct ForwardCall {
  const compiler::CompiledProblem& compiled;
  const masks::TileMaskAnalyzer& analyzer;
  const AttentionShape& shape;
  const VectorProgram& program;
  const ForwardTensors& tensors;
  const CallParameters& parameters;
  std::span<const OperandView> operands;
  std::size_t queries;  ///< of a unit
  std::size_t keys;     ///< of a tile
  RowTermCall terms = {};
  std::atomic<std::int64_t> next_unit{0};
  LargestMagnitude amax_o{};  ///< of o that is not yet rounded, where the problem wants it
};

/// Bytes of scratch that one worker takes.
std::size_t forward_worker_bytes(ForwardCall& call);

/// Does units until none is left.
void run_forward_worker(ForwardCall& call, Scratch& scratch);

}  // namespace scoremod::backend::cpu
