#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/export.hpp"

namespace scoremod {

/// The types of a program's values.
enum class Type : std::uint8_t { kF32, kI32, kBool };
/// "f32", "i32" or "bool".
SCOREMOD_API const char* to_string(Type type);

/// The axes of the score tensor, in the order of its dimensions.
enum class Axis : std::uint8_t { kBatch, kHead, kQuery, kKey };
inline constexpr int kAxisCount = 4;

/// The operation of a node. One table (src/ir/op_table.cpp, printed in docs/reference/ops.md) says each op's name,
/// types, meaning and edge cases.
enum class Op : std::uint8_t {
  // clang-format off
  // Leaves.
  kScore, kUpstream, kScale, kBatchIdx, kHeadIdx, kQueryIdx, kKeyIdx, kConstant, kOperand, kGather,
  // Arithmetic.
  kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kAtan2, kMin, kMax, kNeg, kAbs, kSign, kFloor, kCeil, kRound,
  // Functions of one f32.
  kExp, kExp2, kExpm1, kLog, kLog1p, kSqrt, kRsqrt, kReciprocal, kSin, kCos, kTan, kAtan, kTanh, kSigmoid, kErf,
  kErfc, kSoftplus, kRelu, kGelu, kGeluTanh, kSilu,
  // Comparisons, booleans, selection, casts.
  kEq, kNe, kLt, kLe, kGt, kGe, kAnd, kOr, kXor, kNot, kSelect, kSurrogate, kToF32, kToI32, kToBool,
  // clang-format on
};
inline constexpr int kOpCount = static_cast<int>(Op::kToBool) + 1;

using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xffffffffu;
inline constexpr int kMaxArgs = 4;
/// The largest rank of a table, hence the largest number of indices of a gather.
inline constexpr int kMaxTableRank = kMaxArgs;

/// One operation. Arguments have smaller ids than the node itself.
struct Node {
  Op op = Op::kScore;
  Type type = Type::kF32;
  std::uint8_t arg_count = 0;
  std::array<NodeId, kMaxArgs> args{kNoNode, kNoNode, kNoNode, kNoNode};
  /// kConstant: the value's bits (an f32's, an i32's, or 0 / 1). kOperand and kGather: the operand's number. Else 0.
  std::uint32_t payload = 0;

  bool operator==(const Node&) const = default;
};

/// A named tensor that the program reads. Broadcast form (table_rank == 0): it has one dimension for each axis in
/// `axes`, in the order b, h, q, kv. It is read at the current element; without axes it is a scalar. Table form
/// (table_rank > 0): read by kGather at computed indices, each clamped to the table's extent.
struct OperandDecl {
  std::string name;
  Type type = Type::kF32;
  std::array<bool, kAxisCount> axes{};
  int table_rank = 0;

  bool is_table() const { return table_rank > 0; }
  /// Number of dimensions of the tensor.
  SCOREMOD_API int rank() const;
  bool operator==(const OperandDecl&) const = default;
};

/// The outputs of a program for each (b, h, q, kv). A user's program has kValue and, if it masks, kKeep; a derivative
/// (see autodiff) has all four.
enum class RootKind : std::uint8_t {
  kValue,           ///< f32: the modified score
  kKeep,            ///< bool: false removes the key; absent means true
  kScoreAdjoint,    ///< f32: d loss / d score, given kUpstream = d loss / d value
  kOperandAdjoint,  ///< f32: a contribution to d loss / d operand, summed over the elements that read the same entry
};

struct Root {
  RootKind kind = RootKind::kValue;
  NodeId node = kNoNode;
  /// kOperandAdjoint only: which operand, and for a table the entry that the contribution goes to.
  std::uint32_t operand = 0;
  std::array<NodeId, kMaxArgs> indices{kNoNode, kNoNode, kNoNode, kNoNode};

  bool operator==(const Root&) const = default;
};

/// An immutable scalar program over the score. It is hash-consed, free of dead nodes and numbered canonically (depth
/// first from the roots), so equal structure means equal vectors. Cheap to copy.
class SCOREMOD_API Program {
 public:
  /// The identity: value = score, nothing masked.
  Program();

  /// Reads the text form. Throws Error(kInvalidArgument) whose message has line, column and a caret.
  static Program parse(std::string_view text);
  /// The text form; parse(p.to_string()) == p.
  std::string to_string() const;

  const std::vector<Node>& nodes() const;
  const std::vector<OperandDecl>& operands() const;
  const std::vector<Root>& roots() const;

  /// The node of the modified score.
  NodeId value() const;
  /// The node of the mask, or kNoNode.
  NodeId keep() const;

  /// A structural hash. Equality compares everything; the hash alone never decides.
  std::uint64_t hash() const;
  bool operator==(const Program& other) const;

  struct Data;
  /// For the builder: wraps canonical data.
  explicit Program(std::shared_ptr<const Data> data);

 private:
  std::shared_ptr<const Data> data_;
};

/// The contents of a Program.
struct Program::Data {
  std::vector<OperandDecl> operands;
  std::vector<Node> nodes;
  std::vector<Root> roots;
  std::uint64_t hash = 0;
};

}  // namespace scoremod
