#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scoremod/program.hpp"

#include "backend/cudnn/lowering/lower.hpp"

namespace scoremod::backend::cudnn {

/// A value while lowering: where it is, and its type.
struct Value {
  Ref ref;
  Type type = Type::kF32;

  /// True for values that the graph computes: the score, the upstream gradient, or a node. cuDNN wants such a value as
  /// the first input of every pointwise node.
  bool computed() const {
    return ref.kind == Ref::Kind::kScore || ref.kind == Ref::Kind::kUpstream || ref.kind == Ref::Kind::kNode;
  }
};

/// The patterns of GraphWriter::at_most() and of a product that reads an i32 node as its factor.
inline constexpr const char* kAtMostPattern = "cmp_ge.i32.of_maximum";
inline constexpr const char* kIntegerFactorPattern = "mul.f32.of_i32";

/// Thrown inside the lowering if no allowed pattern fits; caught by lower().
struct NoPattern {
  std::string reason;
};

/// Appends nodes to a modifier graph, one method for each way of writing something. It keeps the rules that hold for
/// all of them: computed first inputs, compute types, sharing of equal nodes, and only allowed patterns.
class GraphWriter {
 public:
  GraphWriter(const PatternFilter& allowed, LoweredModifier& out) : allowed_(allowed), out_(out) {}

  static Value constant(float value) { return {{Ref::Kind::kFloat, 0, value, 0}, Type::kF32}; }
  static Value constant(std::int32_t value) { return {{Ref::Kind::kInt32, 0, 0, value}, Type::kI32}; }

  bool allowed(const std::string& pattern) const { return allowed_(pattern); }
  /// Notes that a pattern is used; throws NoPattern when the filter does not allow it.
  void use(const std::string& pattern);

  Value index(Axis axis);
  Value tensor(const ModifierTensor& tensor, const TensorBinding& binding, Type type);

  Value unary(Mode mode, Value x);
  /// x op y, whichever of the two is computed. For a non-commutative mode that y alone can come first in, says it
  /// another way.
  Value binary(Mode mode, Value x, Value y);
  /// x <= bound of i32, where the bound is the larger of two.
  Value at_most(Value x, Value bound);
  /// x op y. `may_wrap` says that a difference of two i32 need not fit an i32.
  Value compare(Mode mode, Value x, Value y, bool may_wrap = false);
  Value logical(Mode mode, Value x, Value y);
  Value logical_not(Value x);
  Value select(Value condition, Value x, Value y);
  /// Towards zero, as f32.
  Value truncated(Value x);
  Value cast(Value x, Type to);
  Value band(Value x, const BandEnd& end);
  /// The name of a band node's pattern.
  static const char* band_pattern(const BandEnd& end);

  /// The value as something that the graph computes.
  Value lift(Value x);
  /// An i32 or f32 zero as something that the graph computes.
  Value zero(Type type);

 private:
  Value add(const ModifierNode& node, Type type, const std::string& pattern);
  /// Adds a node whose pattern somebody else noted.
  Value add(const ModifierNode& node, Type type);
  bool is_query_index(const Value& x) const;
  bool needs_difference(const Value& x, const Value& y) const;
  Value pointwise(Mode mode, Type compute, Type output, std::initializer_list<Value> inputs);

  const PatternFilter& allowed_;
  LoweredModifier& out_;
  std::vector<bool> reads_score_;  ///< for each node
};

}  // namespace scoremod::backend::cudnn
