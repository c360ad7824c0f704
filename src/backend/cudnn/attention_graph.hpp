#pragma once

#include <array>
#include <cstdint>

#include "backend/backend.hpp"
#include "backend/cudnn/modifier_graph.hpp"

namespace scoremod::backend::cudnn {

/// A tensor as cuDNN takes it: sizes and strides over (batch, head, sequence, dim), in elements.
struct AttentionTensor {
  std::array<std::int64_t, 4> dims{};
  std::array<std::int64_t, 4> strides{};

  bool operator==(const AttentionTensor&) const = default;
};

/// The graph builder's only argument: everything that decides which plan is built, and nothing else. Pointers, the
/// scale, scalars and offsets are bound at execution.
struct AttentionGraph {
  Direction direction = Direction::kForward;
  DType dtype = DType::kBF16;  ///< of q, k, v, o and their gradients
  AttentionTensor q, k, v, o;  ///< each gradient lies as its tensor does
  bool stats = true;           ///< forward: write the LSE, f32 [b, h, q, 1] dense
  bool deterministic = false;  ///< backward
  ModifierGraph modifier;

  bool operator==(const AttentionGraph&) const = default;
};

/// The graph of one direction of a problem.
AttentionGraph attention_graph(const AttentionProblem& problem, Direction direction, ModifierGraph modifier);

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
  kUidScale = 10,
  kUidModifierTensor = 1000,  ///< plus the tensor's number
};

}  // namespace scoremod::backend::cudnn
