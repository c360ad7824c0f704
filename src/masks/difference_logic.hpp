#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace scoremod::masks {

/// A formula: true, false, or a part of a DifferenceLogic with or without a negation. Made and read by DifferenceLogic
/// only.
struct FormulaRef {
  std::uint32_t bits = 0;
  FormulaRef operator!() const { return {bits ^ 1u}; }
  auto operator<=>(const FormulaRef&) const = default;
};

/// Boolean formulas over comparisons x - y <= c of integer variables and over free booleans, with an exact decision
/// procedure.
///
/// Each assignment of truth values to the comparisons is a set of difference constraints: the negation of x - y <= c is
/// y - x <= -c - 1. Shortest paths give its feasibility and tightest bounds over the integers. The procedure visits
/// feasible assignments one by one, so k comparisons of one pair cost k + 1 cells, not 2^k. Work is bounded: questions
/// with more than a few dozen comparisons and booleans, or after the allowance is spent, are answered "not proven".
class DifferenceLogic {
 public:
  using Variable = std::uint32_t;
  static constexpr Variable kZero = 0;  ///< the constant 0

  /// x - y <= bound.
  struct Atom {
    Variable x = kZero;
    Variable y = kZero;
    std::int64_t bound = 0;
    auto operator<=>(const Atom&) const = default;
  };

  /// The values that x - y can take lie in first..last; absent ends are unbounded.
  struct Hull {
    bool empty = false;
    std::optional<std::int64_t> first;
    std::optional<std::int64_t> last;
  };

  DifferenceLogic();

  /// A variable with values in first..last (absent: unbounded).
  Variable variable(std::optional<std::int64_t> first, std::optional<std::int64_t> last);

  static FormulaRef constant(bool value) { return {value ? 1u : 0u}; }
  /// x - y <= bound.
  FormulaRef at_most(Variable x, Variable y, std::int64_t bound);
  /// An unknown boolean; the same key gives the same boolean.
  FormulaRef free(std::uint32_t key);
  FormulaRef both(FormulaRef x, FormulaRef y);
  FormulaRef either(FormulaRef x, FormulaRef y) { return !both(!x, !y); }
  FormulaRef differ(FormulaRef x, FormulaRef y);
  FormulaRef choose(FormulaRef condition, FormulaRef x, FormulaRef y);

  /// The comparisons of the formula, each also as its negation; none if it has more than a question may be about.
  std::vector<Atom> atoms(FormulaRef formula);

  /// True when it is proven that no values in the variables' ranges satisfy the formula.
  bool never(FormulaRef formula);
  /// The tightest bounds of x - y where the formula holds, whatever the variables' ranges; empty when there is no
  /// proof.
  std::optional<Hull> hull(FormulaRef formula, Variable x, Variable y);

  /// Steps that all questions so far took.
  std::int64_t work() const;

 private:
  enum class Kind : std::uint8_t { kConstant, kAtom, kFree, kBoth, kDiffer };
  struct Part {
    Kind kind = Kind::kConstant;
    FormulaRef x, y;
    Atom atom;
    std::uint32_t key = 0;
    auto operator<=>(const Part&) const = default;
  };
  struct Range {
    std::optional<std::int64_t> first, last;
  };
  class Search;

  FormulaRef intern(const Part& part);
  const Part& part(FormulaRef ref) const { return parts_[ref.bits >> 1]; }
  /// The numbers of the formula's parts, arguments first. Empty if they are too many to be searched: the walk ends as
  /// soon as that is known, so a large formula costs little.
  std::vector<std::uint32_t> cone(FormulaRef formula);

  std::vector<Part> parts_;
  std::map<Part, std::uint32_t> numbers_;
  std::vector<Range> ranges_;
  std::int64_t allowance_;
};

}  // namespace scoremod::masks
