#include "masks/classify_mask.hpp"

#include <algorithm>
#include <unordered_set>

#include "analysis/dependence.hpp"
#include "ir/builder.hpp"
#include "masks/difference_logic.hpp"
#include "masks/mask_formula.hpp"

namespace scoremod::masks {
namespace {

using Atom = DifferenceLogic::Atom;
using Variable = DifferenceLogic::Variable;

constexpr Variable kQuery = MaskFormula::axis(Axis::kQuery);
constexpr Variable kKey = MaskFormula::axis(Axis::kKey);

/// Dropping each term that the others imply takes a proof per term over all of them; beyond this many the terms stay.
constexpr std::size_t kMaxTermsToCompare = 8;

std::vector<NodeId> and_terms(const Program& program) {
  std::vector<NodeId> terms;
  std::vector<NodeId> pending{program.keep()};
  std::unordered_set<NodeId> seen;
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (!seen.insert(id).second) continue;
    const Node& node = program.nodes()[id];
    if (node.op != Op::kAnd) {
      terms.push_back(id);
      continue;
    }
    pending.push_back(node.args[1]);
    pending.push_back(node.args[0]);
  }
  return terms;
}

class Classifier {
 public:
  Classifier(const Program& program, const MaskContext& context)
      : program_(program),
        context_(context),
        formula_(program, context.index_limit),
        logic_(formula_.logic()),
        dependence_(analysis::dependences(program)),
        terms_(and_terms(program)) {}

  MaskClass run() {
    MaskClass out;
    FormulaRef keep = DifferenceLogic::constant(true);
    for (const NodeId term : terms_) keep = logic_.both(keep, formula_.of(term));
    if (logic_.never(keep)) return of_kind(MaskKind::kEmpty);
    if (logic_.never(!keep)) return of_kind(MaskKind::kFull);
    tighten(logic_.hull(keep, kKey, kQuery));
    for (const NodeId term : terms_) tighten(logic_.hull(formula_.of(term), kKey, kQuery));
    if (!drop_loose_ends()) return of_kind(MaskKind::kEmpty);
    drop_implied_terms();
    for (const NodeId term : terms_) out.terms.push_back(classify_term(term));
    out.band = band();
    out.kind = kind_of(out);
    return out;
  }

  std::int64_t work() const { return logic_.work(); }

 private:
  static MaskClass of_kind(MaskKind kind) {
    MaskClass out;
    out.kind = kind;
    return out;
  }

  void tighten(const std::optional<DifferenceLogic::Hull>& hull) {
    if (!hull) return;
    if (hull->first) first_ = first_ ? std::max(*first_, *hull->first) : *hull->first;
    if (hull->last) last_ = last_ ? std::min(*last_, *hull->last) : *hull->last;
  }

  /// Drops ends that every difference of valid indices satisfies. False when the band keeps nothing.
  bool drop_loose_ends() {
    const std::int64_t largest = context_.index_limit - 1;
    if (first_ && *first_ <= -largest) first_.reset();
    if (last_ && *last_ >= largest) last_.reset();
    return !(first_ && last_ && *first_ > *last_) && !(first_ && *first_ > largest) && !(last_ && *last_ < -largest);
  }

  FormulaRef band_formula() {
    FormulaRef out = DifferenceLogic::constant(true);
    if (last_) out = logic_.both(out, logic_.at_most(kKey, kQuery, *last_));
    if (first_) out = logic_.both(out, logic_.at_most(kQuery, kKey, -*first_));
    return out;
  }

  /// Keeps the terms that say more than the band and the other kept terms.
  void drop_implied_terms() {
    const FormulaRef band = band_formula();
    std::erase_if(terms_, [&](NodeId term) { return logic_.never(logic_.both(band, !formula_.of(term))); });
    if (terms_.size() > kMaxTermsToCompare) return;
    for (std::size_t i = terms_.size(); i-- > 0;) {
      FormulaRef others = band;
      for (std::size_t j = 0; j < terms_.size(); ++j) {
        if (j != i) others = logic_.both(others, formula_.of(terms_[j]));
      }
      if (logic_.never(logic_.both(others, !formula_.of(terms_[i])))) {
        terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }

  std::optional<Band> band() const {
    if (!first_ && !last_) return std::nullopt;
    Band out;
    if (first_) out.left = -*first_;
    out.right = last_;
    return anchored(out, context_.seq_q, context_.seq_kv);
  }

  /// True when the term and the candidate are the same wherever the band keeps.
  bool is_equivalent(NodeId term, FormulaRef candidate) {
    return logic_.never(logic_.both(band_formula(), logic_.differ(formula_.of(term), candidate)));
  }

  MaskTerm classify_term(NodeId node) {
    MaskTerm out;
    out.node = node;
    if (match_documents(node, out)) return out;
    const std::vector<Atom> atoms = logic_.atoms(formula_.of(node));
    for (const Atom& atom : atoms) {
      if (match_padding(node, atom, out) || match_prefix(node, atom, out)) return out;
    }
    return out;
  }

  /// True when the variable is one number for all (q, kv) of a (b, h).
  bool is_bound(Variable v) const {
    if (v == DifferenceLogic::kZero) return true;
    const NodeId node = formula_.node_of(v);
    return node != kNoNode && !depends(node, Axis::kQuery) && !depends(node, Axis::kKey) && !dependence_[node].score;
  }

  bool depends(NodeId node, Axis axis) const { return dependence_[node].on(axis); }

  MaskBound bound(Variable v, std::int64_t offset) const { return {formula_.node_of(v), offset}; }

  FormulaRef of(const Atom& atom) { return logic_.at_most(atom.x, atom.y, atom.bound); }

  bool match_padding(NodeId node, const Atom& atom, MaskTerm& out) {
    const auto is_index = [](Variable v) { return v == kQuery || v == kKey; };
    // index - bound <= c, or bound - index <= c.
    const bool from_start = is_index(atom.y);
    const Variable index = from_start ? atom.y : atom.x;
    const Variable other = from_start ? atom.x : atom.y;
    if (!is_index(index) || !is_bound(other) || !is_equivalent(node, of(atom))) return false;
    out.kind = MaskKind::kPadding;
    out.axis = index == kQuery ? Axis::kQuery : Axis::kKey;
    out.from_start = from_start;
    out.bound = bound(other, from_start ? -atom.bound : atom.bound + 1);
    return true;
  }

  bool match_prefix(NodeId node, const Atom& atom, MaskTerm& out) {
    if (atom.x != kKey || !is_bound(atom.y)) return false;
    if (!is_equivalent(node, logic_.either(of(atom), logic_.at_most(kKey, kQuery, 0)))) return false;
    out.kind = MaskKind::kPrefix;
    out.bound = bound(atom.y, atom.bound + 1);
    return true;
  }

  bool is_query_side(NodeId node) const {
    return depends(node, Axis::kQuery) && !depends(node, Axis::kKey) && !dependence_[node].score;
  }
  bool is_key_side(NodeId node) const {
    return depends(node, Axis::kKey) && !depends(node, Axis::kQuery) && !dependence_[node].score;
  }

  bool set_documents(NodeId x, NodeId y, MaskTerm& out) const {
    if (is_key_side(x)) std::swap(x, y);
    if (!is_query_side(x) || !is_key_side(y)) return false;
    out.kind = MaskKind::kDocuments;
    out.query_id = x;
    out.key_id = y;
    return true;
  }

  bool match_documents(NodeId term, MaskTerm& out) {
    const Node& node = program_.nodes()[term];
    // Ids of any type, where the comparison is spelled out.
    if (node.op == Op::kEq && set_documents(node.args[0], node.args[1], out)) return true;
    for (const Atom& atom : logic_.atoms(formula_.of(term))) {
      const NodeId x = formula_.node_of(atom.x);
      const NodeId y = formula_.node_of(atom.y);
      if (x == kNoNode || y == kNoNode) continue;
      const FormulaRef equal = logic_.both(logic_.at_most(atom.x, atom.y, 0), logic_.at_most(atom.y, atom.x, 0));
      MaskTerm found = out;
      if (!set_documents(x, y, found) || !is_equivalent(term, equal)) continue;
      out = found;
      return true;
    }
    return false;
  }

  static MaskKind kind_of(const MaskClass& mask) {
    if (mask.terms.empty()) return mask.band ? MaskKind::kBand : MaskKind::kFull;
    const MaskKind kind = mask.terms.front().kind;
    const auto is_same = [kind](const MaskTerm& term) { return term.kind == kind; };
    return std::all_of(mask.terms.begin(), mask.terms.end(), is_same) ? kind : MaskKind::kGeneral;
  }

  const Program& program_;
  const MaskContext& context_;
  MaskFormula formula_;
  DifferenceLogic& logic_;
  std::vector<analysis::Dependence> dependence_;
  std::vector<NodeId> terms_;
  std::optional<std::int64_t> first_;  ///< the least kv - q that may be kept
  std::optional<std::int64_t> last_;   ///< the largest
};

}  // namespace

MaskClass classify_mask(const Program& program, const MaskContext& context, std::int64_t* work) {
  if (work != nullptr) *work = 0;
  if (program.keep() == kNoNode) return MaskClass{};
  Classifier classifier(program, context);
  MaskClass mask = classifier.run();
  if (work != nullptr) *work = classifier.work();
  return mask;
}

}  // namespace scoremod::masks
