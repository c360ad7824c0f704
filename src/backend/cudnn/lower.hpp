#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/cudnn/modifier_graph.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

/// What a modifier tensor is bound to at execution.
struct TensorBinding {
  enum class Kind : std::uint8_t { kOperand, kOffset };
  Kind kind = Kind::kOperand;
  std::uint32_t operand = 0;  ///< kOperand: the operand's number
  Axis axis = Axis::kBatch;   ///< kOffset: whose IndexOffsets member

  bool operator==(const TensorBinding&) const = default;
};

/// A program in cuDNN's terms.
struct LoweredModifier {
  ModifierGraph graph;
  std::vector<TensorBinding> bindings;  ///< one for each of graph.tensors
  std::set<std::string> forms;          ///< every form that the graph uses
};

/// Decides whether a form may be used. The backend asks the form table; the explorer allows one candidate after the
/// other.
using FormFilter = std::function<bool(std::string_view form)>;

struct LoweringOptions {
  bool backward = false;      ///< emit the adjoint of the score too
  bool with_offsets = false;  ///< add the call's index offsets to the indices
  FormFilter allowed;
};

/// The outcome: a modifier, or every reason why there is none; each names the op, the rule and what was measured.
struct LoweringResult {
  std::optional<LoweredModifier> lowered;
  std::vector<std::string> reasons;
};

/// Nodes that cuDNN 9.19 was seen to take in one direction before it crashes while building (sm_80, sm_90 and sm_100
/// alike): a chain of 40 built in forward and 41 did not; 31 forward nodes plus one of the derivative built in backward
/// and 32 did not.
inline constexpr int kForwardNodeBudget = 40;
inline constexpr int kBackwardNodeBudget = 32;

/// Rewrites the compiled program into forms that `options.allowed` admits, the fastest first: terms of the mask as a
/// select, then the band nodes last, so that cuDNN skips the tiles outside the band. Counts nodes before cuDNN sees
/// them.
LoweringResult lower(const compiler::CompiledProblem& problem, const LoweringOptions& options);

}  // namespace scoremod::backend::cudnn
