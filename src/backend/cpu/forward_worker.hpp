#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.hpp"
#include "backend/cpu/attention_shape.hpp"
#include "backend/cpu/operand_views.hpp"
#include "backend/cpu/scratch.hpp"
#include "backend/cpu/vector_program.hpp"
#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::backend::cpu {

/// What all threads of a call share; read only but for the counter. With `remainders` no output is made and no V read:
/// it is given what the row's rounded LSE leaves out (lse_remainders.hpp).
struct ForwardCall {
  const compiler::CompiledProblem& compiled;
  const masks::TileMaskAnalyzer& analyzer;
  const AttentionShape& shape;
  const VectorProgram& program;
  const ForwardTensors& tensors;
  const CallParameters& parameters;
  std::span<const OperandView> operands;
  std::size_t queries;          ///< of a unit
  std::size_t keys;             ///< of a tile
  const float* lse = nullptr;   ///< as the problem has it, read with `remainders`
  float* remainders = nullptr;  ///< [batch, heads_q, seq_q]
  std::atomic<std::int64_t> next_unit{0};
  /// The bits of the largest magnitude in o, which are in the order of the magnitudes, and those of NaN above all.
  std::atomic<std::uint32_t> amax_o{0};
};

/// Bytes of scratch that one worker takes.
std::size_t forward_worker_bytes(ForwardCall& call);

/// Does units until none is left.
void run_forward_worker(ForwardCall& call, Scratch& scratch);

}  // namespace scoremod::backend::cpu
