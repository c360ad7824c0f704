#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/cudnn/lowering/modifier_graph.hpp"

namespace scoremod::explorer {

/// Sizes, dtype and layout that a pattern is tried with.
struct Setting {
  std::string name;
  std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v;
  DType dtype;
  Layout layout;
};

/// Uneven sizes, several batches and heads, lengths that are no multiple of 128, every layout. Head dims from 8 to 256,
/// a value dim that differs, f16 and bf16. Names that begin with "one_row" have a single query.
const std::vector<Setting>& settings();

/// Changes a lowered modifier into another way to say the same, which the lowering does not use.
using Mutation = std::function<void(backend::cudnn::ModifierGraph&)>;

/// How the operands of a case lie in memory.
enum class OperandLayout : std::uint8_t {
  kDense,
  kStrided,  ///< the last dimension outermost, with gaps between neighbours
};

/// The operands' dtype relative to the problem's in a backward in which cuDNN writes the gradient of the first operand,
/// too.
enum class GradientDtype : std::uint8_t { kNone, kOfProblem, kOtherHalf };

/// One pattern: a program that means something, and the way it is written for cuDNN. Without a mutation that is the
/// lowering's.
struct PatternCase {
  std::string name{};                 ///< the name in the table
  std::string program{};              ///< text; "{shift}" stands for seq_kv - seq_q, "{length}" for seq_kv
  DType operand_dtype = DType::kF32;  ///< of its f32 operands, where their gradients are not asked for
  Mutation mutation{};
  bool as_written = false;            ///< leave out the passes, which would rewrite the program
  std::vector<std::string> denied{};  ///< patterns that the lowering may not use, so that it takes its next candidate
  OperandLayout layout = OperandLayout::kDense;
  /// A whole program, which the lowering writes in patterns that were right by themselves.
  bool in_right_patterns = false;
  GradientDtype operand_gradient = GradientDtype::kNone;  ///< where there is one, in backward alone
  int node_budget = 0;                                    ///< of the lowering; 0 for its own
  IndexOffsets offsets{};                                 ///< of the call; the lowering adds them where one is not 0

  bool has_gradient() const { return operand_gradient != GradientDtype::kNone; }
  /// The dtype of the f32 operands, in a problem of this dtype.
  DType dtype_of_operands(DType problem) const;
};

/// Every candidate pattern: ops, comparisons, booleans, operand shapes and strides, index arithmetic, masks. Patterns
/// that were wrong or crashed on some version are included, which a run must find again.
std::vector<PatternCase> pattern_cases();

/// The patterns that cuDNN 9.19 was measured to get wrong, refuse or crash on, on sm_90: the negative control of an
/// exploration.
struct KnownPattern {
  std::string name;
  bool backward;
  std::string verdict;
};
const std::vector<KnownPattern>& known_bad_patterns();

}  // namespace scoremod::explorer
