#include "masks/difference_logic.hpp"

#include <algorithm>
#include <functional>
#include <limits>

namespace scoremod::masks {
namespace {

/// Steps of all searches together: some tens of milliseconds.
constexpr std::int64_t kAllowance = 20'000'000;
/// Larger questions than these are not tried: masks that people write stay far below.
constexpr std::size_t kMaxVariables = 12;
constexpr std::size_t kMaxLiterals = 24;
constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

/// The tightest bounds of x - y for all pairs of variables, under constraints that are added one by one.
class BoundMatrix {
 public:
  explicit BoundMatrix(std::size_t size) : size_(size), bounds_(size * size, kUnbounded) {
    for (std::size_t i = 0; i < size; ++i) at(i, i) = 0;
  }

  std::int64_t bound(std::size_t x, std::size_t y) const { return bounds_[x * size_ + y]; }

  /// Adds x - y <= bound; false when nothing satisfies all constraints any more.
  bool add(std::size_t x, std::size_t y, std::int64_t bound) {
    if (x == y) return bound >= 0;
    if (at(y, x) != kUnbounded && at(y, x) + bound < 0) return false;
    if (bound >= at(x, y)) return true;
    for (std::size_t i = 0; i < size_; ++i) {
      if (at(i, x) == kUnbounded) continue;
      for (std::size_t j = 0; j < size_; ++j) {
        if (at(y, j) == kUnbounded) continue;
        at(i, j) = std::min(at(i, j), at(i, x) + bound + at(y, j));
      }
    }
    return true;
  }

 private:
  std::int64_t& at(std::size_t x, std::size_t y) { return bounds_[x * size_ + y]; }

  std::size_t size_;
  std::vector<std::int64_t> bounds_;
};

}  // namespace

/// Visits every feasible way to make the literals of one formula true or false.
class DifferenceLogic::Search {
 public:
  /// Told of each way that satisfies the formula; returns false to stop.
  using Visitor = std::function<bool(const BoundMatrix&)>;

  Search(DifferenceLogic& logic, FormulaRef formula, std::span<const Variable> further)
      : logic_(logic), allowance_(logic.allowance_), cone_(logic.cone(formula)), truth_(cone_.size()) {
    add_variable(kZero);
    for (const Variable v : further) add_variable(v);
    for (std::uint32_t at = 0; at < cone_.size(); ++at) {
      const Part& part = part_at(at);
      arguments_.push_back({argument(part.x), argument(part.y)});
      if (part.kind == Kind::kFree) literals_.push_back(at);
      if (part.kind != Kind::kAtom) continue;
      add_variable(part.atom.x);
      add_variable(part.atom.y);
      literals_.push_back(at);
    }
    formula_ = argument(formula);
    // Comparisons first: they prune each other, and each free boolean then only doubles the remaining work.
    std::stable_sort(literals_.begin(), literals_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return part_at(a).kind < part_at(b).kind; });
  }

  std::size_t place(Variable v) const {
    return static_cast<std::size_t>(std::find(variables_.begin(), variables_.end(), v) - variables_.begin());
  }

  /// False when the question is too large or the allowance was spent: the visitor may have missed some.
  bool run(bool use_ranges, const Visitor& visitor) {
    if (cone_.empty() || variables_.size() > kMaxVariables) return false;
    visitor_ = &visitor;
    BoundMatrix bounds(variables_.size());
    if (use_ranges && !add_ranges(bounds)) return true;
    descend(0, bounds);
    return allowance_ > 0;
  }

 private:
  const Part& part_at(std::uint32_t at) const { return logic_.parts_[cone_[at]]; }

  /// A formula of the cone with its place there instead of its number.
  FormulaRef argument(FormulaRef ref) const {
    const auto found = std::lower_bound(cone_.begin(), cone_.end(), ref.bits >> 1);
    return {static_cast<std::uint32_t>(found - cone_.begin()) << 1 | (ref.bits & 1u)};
  }

  void add_variable(Variable v) {
    if (place(v) == variables_.size()) variables_.push_back(v);
  }

  bool add_ranges(BoundMatrix& bounds) const {
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      const Range& range = logic_.ranges_[variables_[i]];
      if (range.last && !bounds.add(i, place(kZero), *range.last)) return false;
      if (range.first && !bounds.add(place(kZero), i, -*range.first)) return false;
    }
    return true;
  }

  /// Returns false to stop the whole search.
  bool descend(std::size_t depth, const BoundMatrix& bounds) {
    allowance_ -= static_cast<std::int64_t>(variables_.size() * variables_.size()) + 8;
    if (allowance_ <= 0) return false;
    if (depth == literals_.size()) {
      allowance_ -= static_cast<std::int64_t>(cone_.size());
      return !holds() || (*visitor_)(bounds);
    }
    const std::uint32_t literal = literals_[depth];
    const Part& part = part_at(literal);
    for (const bool value : {true, false}) {
      truth_[literal] = value;
      BoundMatrix next = bounds;
      if (part.kind == Kind::kAtom) {
        const std::size_t x = place(part.atom.x);
        const std::size_t y = place(part.atom.y);
        if (!(value ? next.add(x, y, part.atom.bound) : next.add(y, x, -part.atom.bound - 1))) continue;
      }
      if (!descend(depth + 1, next)) return false;
    }
    return true;
  }

  bool value(FormulaRef ref) const { return truth_[ref.bits >> 1] != ((ref.bits & 1u) != 0); }

  bool holds() {
    for (std::uint32_t at = 0; at < cone_.size(); ++at) {
      const Kind kind = part_at(at).kind;
      const auto [x, y] = arguments_[at];
      if (kind == Kind::kBoth) truth_[at] = value(x) && value(y);
      if (kind == Kind::kDiffer) truth_[at] = value(x) != value(y);
    }
    return value(formula_);
  }

  // Parts are numbered by their place in the cone, so that a search costs as much as the cone, however many parts there
  // are.
  const DifferenceLogic& logic_;
  std::int64_t& allowance_;
  std::vector<std::uint32_t> cone_;
  FormulaRef formula_;
  std::vector<std::array<FormulaRef, 2>> arguments_;  // of kBoth and kDiffer
  std::vector<bool> truth_;                           // the constant's is false
  std::vector<Variable> variables_;
  std::vector<std::uint32_t> literals_;
  const Visitor* visitor_ = nullptr;
};

DifferenceLogic::DifferenceLogic() : allowance_(kAllowance) {
  intern(Part{});             // number 0: false, and negated true
  ranges_.push_back({0, 0});  // kZero
}

DifferenceLogic::Variable DifferenceLogic::variable(std::optional<std::int64_t> first,
                                                    std::optional<std::int64_t> last) {
  ranges_.push_back({first, last});
  return static_cast<Variable>(ranges_.size() - 1);
}

FormulaRef DifferenceLogic::intern(const Part& part) {
  const auto [place, is_new] = numbers_.try_emplace(part, static_cast<std::uint32_t>(parts_.size()));
  if (is_new) parts_.push_back(part);
  return {place->second << 1};
}

FormulaRef DifferenceLogic::at_most(Variable x, Variable y, std::int64_t bound) {
  if (x == y) return constant(bound >= 0);
  // One of the two directions, so that a comparison and its negation are one part.
  if (x > y) return !at_most(y, x, -bound - 1);
  Part part;
  part.kind = Kind::kAtom;
  part.atom = {x, y, bound};
  return intern(part);
}

FormulaRef DifferenceLogic::free(std::uint32_t key) {
  Part part;
  part.kind = Kind::kFree;
  part.key = key;
  return intern(part);
}

FormulaRef DifferenceLogic::both(FormulaRef x, FormulaRef y) {
  if (x == constant(false) || y == constant(false) || x == !y) return constant(false);
  if (x == constant(true) || x == y) return y;
  if (y == constant(true)) return x;
  Part part;
  part.kind = Kind::kBoth;
  part.x = std::min(x, y);
  part.y = std::max(x, y);
  return intern(part);
}

FormulaRef DifferenceLogic::differ(FormulaRef x, FormulaRef y) {
  if (x == y || x == !y) return constant(x != y);
  if (x == constant(false) || x == constant(true)) return x == constant(true) ? !y : y;
  if (y == constant(false) || y == constant(true)) return y == constant(true) ? !x : x;
  Part part;
  part.kind = Kind::kDiffer;
  part.x = std::min(x, y);
  part.y = std::max(x, y);
  return intern(part);
}

FormulaRef DifferenceLogic::choose(FormulaRef condition, FormulaRef x, FormulaRef y) {
  return either(both(condition, x), both(!condition, y));
}

std::vector<std::uint32_t> DifferenceLogic::cone(FormulaRef formula) {
  // Arguments have smaller numbers: taken by descending number, every part is met once all that need it have been.
  std::vector<std::uint32_t> pending{formula.bits >> 1};
  std::vector<std::uint32_t> out;
  std::size_t literals = 0;
  while (!pending.empty()) {
    std::pop_heap(pending.begin(), pending.end());
    const std::uint32_t number = pending.back();
    pending.pop_back();
    if (!out.empty() && out.back() == number) continue;
    if (--allowance_ <= 0) return {};
    out.push_back(number);
    const Part& part = parts_[number];
    if (part.kind == Kind::kAtom || part.kind == Kind::kFree) {
      if (++literals > kMaxLiterals) return {};
      continue;
    }
    if (part.kind == Kind::kConstant) continue;
    for (const FormulaRef argument : {part.x, part.y}) {
      pending.push_back(argument.bits >> 1);
      std::push_heap(pending.begin(), pending.end());
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::int64_t DifferenceLogic::work() const { return kAllowance - allowance_; }

std::vector<DifferenceLogic::Atom> DifferenceLogic::atoms(FormulaRef formula) {
  std::vector<Atom> out;
  for (const std::uint32_t number : cone(formula)) {
    const Part& part = parts_[number];
    if (part.kind != Kind::kAtom) continue;
    out.push_back(part.atom);
    out.push_back({part.atom.y, part.atom.x, -part.atom.bound - 1});
  }
  return out;
}

bool DifferenceLogic::never(FormulaRef formula) {
  if (formula == constant(false)) return true;
  bool found = false;
  Search search(*this, formula, {});
  const bool complete = search.run(true, [&found](const BoundMatrix&) {
    found = true;
    return false;
  });
  return complete && !found;
}

std::optional<DifferenceLogic::Hull> DifferenceLogic::hull(FormulaRef formula, Variable x, Variable y) {
  std::int64_t highest = std::numeric_limits<std::int64_t>::min();  // of x - y
  std::int64_t deepest = std::numeric_limits<std::int64_t>::min();  // of y - x
  const std::array<Variable, 2> ends{x, y};
  Search search(*this, formula, ends);
  const std::size_t at_x = search.place(x);
  const std::size_t at_y = search.place(y);
  const bool complete = search.run(false, [&](const BoundMatrix& bounds) {
    highest = std::max(highest, bounds.bound(at_x, at_y));
    deepest = std::max(deepest, bounds.bound(at_y, at_x));
    return highest != kUnbounded || deepest != kUnbounded;
  });
  if (!complete) return std::nullopt;
  Hull hull;
  hull.empty = highest == std::numeric_limits<std::int64_t>::min();
  if (!hull.empty && highest != kUnbounded) hull.last = highest;
  if (!hull.empty && deepest != kUnbounded) hull.first = -deepest;
  return hull;
}

}  // namespace scoremod::masks
