#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/dtype.hpp"

namespace scoremod::backend::cudnn {

/// cuDNN's pointwise modes that a lowering may use, under their own names.
enum class Mode : std::uint8_t {
  kIdentity,
  kGenIndex,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMod,
  kPow,
  kMin,
  kMax,
  kAddSquare,
  kNeg,
  kAbs,
  kFloor,
  kCeil,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSin,
  kCos,
  kTan,
  kTanh,
  kSigmoid,
  kErf,
  kSoftplus,
  kRelu,
  kGelu,
  kGeluTanh,
  kSwish,
  kElu,
  kCmpEq,
  kCmpNeq,
  kCmpLt,
  kCmpLe,
  kCmpGt,
  kCmpGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalNot,
  kBinarySelect,
  /// The frontend's diagonal band node: keeps inputs[0] inside the band and gives -inf outside. See BandNode.
  kBand,
};

/// The name of a mode in texts and in the names of patterns: "add", "cmp_ge", "gen_index".
const char* to_string(Mode mode);

/// The type that a node computes in, and that of its result.
enum class ElementType : std::uint8_t { kFloat, kInt32, kBoolean };

/// "f32", "i32" or "bool".
const char* to_string(ElementType type);

/// The source of a node's input.
struct Ref {
  enum class Kind : std::uint8_t { kNone, kScore, kUpstream, kNode, kTensor, kFloat, kInt32 };
  Kind kind = Kind::kNone;
  std::uint32_t index = 0;  ///< kNode, kTensor
  float float_value = 0;    ///< kFloat: a constant that is part of the graph
  std::int32_t int_value = 0;

  bool operator==(const Ref&) const = default;
};

/// One end of a diagonal band, as the frontend's band node takes it: right keeps kv <= q + bound, left keeps kv > q -
/// bound.
struct BandEnd {
  bool left = false;
  std::int64_t bound = 0;

  bool operator==(const BandEnd&) const = default;
};

struct ModifierNode {
  Mode mode = Mode::kIdentity;
  ElementType compute = ElementType::kFloat;
  ElementType output = ElementType::kFloat;
  std::array<Ref, 3> inputs;
  int axis = 0;                 ///< kGenIndex: 0 to 3 for b, h, q, kv
  std::optional<BandEnd> band;  ///< kBand

  bool operator==(const ModifierNode&) const = default;
};

/// Whether something depends on the score or the upstream gradient, given for each node up to it whether that does.
bool reads_score(const Ref& ref, const std::vector<bool>& nodes);
bool reads_score(const ModifierNode& node, const std::vector<bool>& nodes);

/// A tensor that the modifier reads, in cuDNN's terms: sizes over (b, h, q, kv), 1 where it does not vary.
struct ModifierTensor {
  std::array<std::int64_t, 4> dims{1, 1, 1, 1};
  std::array<std::int64_t, 4> strides{1, 1, 1, 1};
  DType dtype = DType::kF32;
  bool by_value = false;  ///< a host scalar that is bound at each execution

  bool operator==(const ModifierTensor&) const = default;
};

/// The nodes between the scaled product and the softmax, and (backward) on the way back: exactly those that cuDNN will
/// see. nodes[0, forward_count) compute `value` from the score. The rest compute `d_score` from the upstream gradient
/// and may read the forward nodes.
struct ModifierGraph {
  std::vector<ModifierTensor> tensors;
  std::vector<ModifierNode> nodes;
  std::uint32_t forward_count = 0;
  Ref value;
  Ref d_score;  ///< kNone: the gradient passes through

  bool operator==(const ModifierGraph&) const = default;
};

/// The graph as text, a line for each tensor, node and result: for explanations and tests.
std::string to_string(const ModifierGraph& graph);

}  // namespace scoremod::backend::cudnn
