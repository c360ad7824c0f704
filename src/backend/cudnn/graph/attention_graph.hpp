#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/backend.hpp"
#include "backend/cudnn/lowering/modifier_graph.hpp"

namespace scoremod::backend::cudnn {

/// A tensor as cuDNN takes it: sizes and strides over (batch, head, sequence, dim), in elements.
struct AttentionTensor {
  std::array<std::int64_t, 4> dims{};
  std::array<std::int64_t, 4> strides{};

  bool operator==(const AttentionTensor&) const = default;
};

/// The gradients that a backward reads and writes.
struct GradientTensors {
  AttentionTensor d_o, dq, dk, dv;

  bool operator==(const GradientTensors&) const = default;
};

/// The gradient of the modifier's additions to the scores, which cuDNN sums over the dimensions of size 1.
struct BiasGradient {
  AttentionTensor tensor;      ///< dims (batch or 1, heads or 1, seq_q, seq_kv)
  DType dtype = DType::kBF16;  ///< f16 or bf16

  bool operator==(const BiasGradient&) const = default;
};

/// How sequences lie that each call places by offsets or page tables. cuDNN reads a length of each beside the places.
struct SequencePlaces {
  bool ragged_q = false;    ///< q, o, the LSE, d_o and dq are varlen: a place says where a batch's rows begin
  bool ragged_kv = false;   ///< k, v, dk and dv are
  std::int64_t pages = 0;   ///< entries of a sequence in page tables; 0 without a paged KV cache
  std::int64_t seq_kv = 0;  ///< with pages: the longest length of a sequence's keys

  bool any() const { return ragged_q || ragged_kv || pages > 0; }
  bool operator==(const SequencePlaces&) const = default;
};

/// The graph builder's only argument: everything that decides which plan is built, and nothing else. Pointers, the
/// scale, scalars and offsets are bound at execution.
struct AttentionGraph {
  Direction direction = Direction::kForward;
  DType dtype = DType::kBF16;  ///< of q, k, v, o and their gradients
  AttentionTensor q, k, v, o;  ///< k and v of all pages where there are some
  SequencePlaces places;
  std::optional<GradientTensors> gradients;   ///< of a backward
  bool sink = false;                          ///< forward: the softmax has a sink, f32 [1, heads, 1, 1]
  bool stats = true;                          ///< forward: write the LSE, f32 [b, h, q, 1] dense
  bool deterministic = false;                 ///< backward
  std::optional<BiasGradient> bias_gradient;  ///< backward: written beside dq, dk and dv
  ModifierGraph modifier;
  std::string engine;  ///< the one to build with, by EnginePlan::engine()'s name; empty: as cuDNN's heuristics choose

  bool operator==(const AttentionGraph&) const = default;
};

/// The part of a problem that one plan computes.
struct PlanTask {
  // NOLINTNEXTLINE(google-explicit-constructor): most tasks are a direction and no more
  PlanTask(Direction of, std::optional<std::uint32_t> gradient = std::nullopt)
      : direction(of), operand_gradient(gradient) {}

  Direction direction = Direction::kForward;
  std::optional<std::uint32_t> operand_gradient;  ///< backward: an operand of fused_gradient.hpp, whose gradient too
  std::string engine;                             ///< AttentionGraph::engine
};

/// The graph of a task.
AttentionGraph attention_graph(const AttentionProblem& problem, const PlanTask& task, ModifierGraph modifier);

/// The uids under which execute() binds pointers.
enum Uid : std::int64_t {
  kUidQ = 1,
  kUidK = 2,
  kUidV = 3,
  kUidO = 4,
  kUidStats = 5,
  kUidDO = 6,
  kUidDQ = 7,
  kUidDK = 8,
  kUidDV = 9,
  kUidDBias = 10,  ///< the last that is a tensor of the call's
  kUidScale = 11,
  kUidSink = 12,
  kUidLengthsQ = 13,  ///< of each batch's sequence, i32 [b, 1, 1, 1]; where places.any()
  kUidLengthsKv = 14,
  kUidPagesK = 15,  ///< page tables, i32 [b, 1, pages, 1]
  kUidPagesV = 16,
  kUidNamesPages = 17,        ///< no tensor of a graph's: the operand of lowering/page_mask.hpp
  kUidPlaces = 100,           ///< plus the Uid of a varlen tensor: its places, i64 [b + 1, 1, 1, 1]
  kUidModifierTensor = 1000,  ///< plus the tensor's number
};

}  // namespace scoremod::backend::cudnn
