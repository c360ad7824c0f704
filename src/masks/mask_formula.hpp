#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "scoremod/program.hpp"

#include "masks/difference_logic.hpp"

namespace scoremod::masks {

/// The bool nodes that a program's keep root depends on, as formulas over the indices. Numbers are followed through
/// sums, constant multiples, min, max, abs, sign, select and casts. For indices below the limit nothing may wrap (i32)
/// or round (f32). Any other i32 number is an unknown variable, any other bool a free boolean.
class MaskFormula {
 public:
  using Variable = DifferenceLogic::Variable;

  /// index_limit: every index is below it.
  MaskFormula(const Program& program, std::int64_t index_limit);

  DifferenceLogic& logic() { return logic_; }
  /// The formula of a bool node that keep depends on.
  FormulaRef of(NodeId node) const { return truth_[node]; }

  static constexpr Variable axis(Axis a) { return 1 + static_cast<Variable>(a); }
  /// The i32 node that a variable stands for; kNoNode for the constant 0 and the indices.
  NodeId node_of(Variable v) const { return nodes_.at(v); }

 private:
  /// A sum of few variables times factors, and a constant.
  struct Linear {
    struct Addend {
      Variable variable = DifferenceLogic::kZero;
      std::int64_t factor = 0;
    };
    std::vector<Addend> addends;  // by ascending variable, no factor zero
    std::int64_t constant = 0;
  };
  /// The value of a number under a guard. The guards of a number's cases exclude each other and cover everything.
  struct Case {
    FormulaRef guard;
    Linear value;
  };
  using Cases = std::vector<Case>;  // empty: not known
  struct Range {
    std::int64_t first, last;
  };

  void visit(NodeId id);
  FormulaRef truth_of(NodeId id, const Node& node);
  FormulaRef comparison(NodeId id, const Node& node);
  std::optional<FormulaRef> compare(Op op, const Linear& x, const Linear& y);
  /// linear <= 0.
  std::optional<FormulaRef> not_positive(const Linear& linear);

  Cases cases_of(NodeId id, const Node& node);
  Cases arithmetic(const Node& node);
  Cases extremum(const Node& node);
  Cases magnitude(const Node& node);
  Cases sign(const Node& node);
  Cases selection(const Node& node);
  Cases opaque(NodeId id, const Node& node);
  static Cases constant_cases(const Node& node);
  static Cases single(const Linear& value) { return {{DifferenceLogic::constant(true), value}}; }

  static std::optional<Linear> sum(const Linear& x, const Linear& y, std::int64_t factor);
  static std::optional<Linear> scaled(const Linear& x, std::int64_t factor);
  Range range(const Linear& x) const;
  bool is_exact(const Cases& cases, Type type) const;

  const Program& program_;
  DifferenceLogic logic_;
  std::vector<Range> ranges_;  // by variable
  std::vector<NodeId> nodes_;  // by variable
  std::vector<FormulaRef> truth_;
  std::vector<Cases> cases_;
};

}  // namespace scoremod::masks
