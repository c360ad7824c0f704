#pragma once

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/cudnn/lowering/modifier_graph.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

/// The memory that a modifier tensor is bound to at execution.
struct TensorBinding {
  enum class Kind : std::uint8_t {
    kOperand,   ///< an operand of the program, in device memory
    kComputed,  ///< a ComputedOperand
    kOffset,    ///< an index offset of the call, by value
  };
  Kind kind = Kind::kOperand;
  std::uint32_t operand = 0;  ///< kOperand: the operand's number; kComputed: its number in LoweredModifier::computed
  Axis axis = Axis::kBatch;   ///< kOffset: whose IndexOffsets member

  bool operator==(const TensorBinding&) const = default;
};

/// A node that depends neither on the score nor on the upstream gradient, computed by our own kernel before cuDNN runs.
/// Its dense tensor has the problem's sizes along `axes` (in the order b, h, q, kv) and 1 along the others. f32 for
/// Type::kF32, i32 for kI32, and i32 0 or 1 for kBool. The call's index offsets are added to the node's indices.
struct ComputedOperand {
  NodeId node = kNoNode;  ///< of the program that was lowered: CompiledForward's or CompiledBackward's
  std::array<bool, kAxisCount>
      axes{};  ///< all that the node varies along; more where only a larger shape has a pattern
  Type type = Type::kF32;

  bool operator==(const ComputedOperand&) const = default;
};

/// A program in cuDNN's terms.
struct LoweredModifier {
  ModifierGraph graph;
  std::vector<TensorBinding> bindings;  ///< one for each of graph.tensors
  std::vector<ComputedOperand> computed;
  std::set<std::string> patterns;  ///< every pattern that the graph uses
};

/// Decides whether a pattern may be used. The backend asks the pattern table; the explorer allows one candidate after
/// the other.
using PatternFilter = std::function<bool(std::string_view pattern)>;

struct LoweringOptions {
  bool backward = false;      ///< emit the adjoint of the score too
  bool with_offsets = false;  ///< add the call's index offsets to the indices
  PatternFilter allowed;
  int node_budget = 0;  ///< the most nodes that the graph may have; 0 for a graph's own limit
};

/// The outcome: a modifier, or every reason why there is none. Each reason names the op, the rule and the measurement.
struct LoweringResult {
  std::optional<LoweredModifier> lowered;
  std::vector<std::string> reasons;
};

/// Rewrites the compiled program into allowed patterns (`options.allowed`), the fastest first. Terms of the mask become
/// a select. The band nodes come last, so that cuDNN skips the tiles outside the band. A node without such a pattern,
/// or beyond the node budget, becomes a computed operand if it does not depend on the score. Nodes are counted before
/// cuDNN sees them.
LoweringResult lower(const compiler::CompiledProblem& problem, const LoweringOptions& options);

}  // namespace scoremod::backend::cudnn
