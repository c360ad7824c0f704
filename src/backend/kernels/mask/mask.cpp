#include "backend/kernels/mask/mask.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "analysis/dependence.hpp"
#include "analysis/keep_nodes.hpp"
#include "backend/of_structure.hpp"
#include "masks/tile_mask_analyzer.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::kernels {
namespace {

using masks::MaskKind;
using masks::TileMask;

/// Rows of tiles that are looked at, and the finest boxes of keys in each.
constexpr std::int64_t kRows = 8, kBoxes = 128;
/// A row of tiles that runs more than this times the mean has others wait for it.
constexpr double kEven = 1.25;
/// Rows that run more than this times the mean are few: under a causal mask the longest runs twice as much.
constexpr double kMostEven = 2.5;

constexpr std::int64_t kDecodeQueries = 64;

/// Assumptions about tiles that only the contents of operands can decide: the part that usually runs, and the part of
/// that which runs in full.
struct Usual {
  double run = 0.5, full = 0;
};
Usual usual(MaskKind kind) {
  switch (kind) {
    case MaskKind::kDocuments: return {0.25, 0.6};
    case MaskKind::kPadding: return {0.75, 0.95};
    case MaskKind::kPrefix: return {0.5, 0.9};
    default: return {};
  }
}

/// The part of the tiles of varlen sequences in which none ends.
constexpr double kWithinSequences = 0.9;

/// Counts the tiles of one head.
class TileCount {
 public:
  TileCount(const compiler::CompiledProblem& compiled, const Program& program, ScoreTile tile)
      : p_(compiled.problem), tile_(tile), analyzer_(program), scratch_(analyzer_.make_scratch()) {}

  /// For the row of tiles with this query: the parts of its keys that run whole, and that were not decided.
  struct Row {
    double full = 0, mixed = 0;
  };
  Row row(std::int64_t first_query) {
    first_query_ = first_query;
    last_query_ = std::min(first_query + tile_.queries, p_.seq_q) - 1;
    const std::int64_t tiles = (p_.seq_kv + tile_.keys - 1) / tile_.keys;
    least_ = std::max<std::int64_t>(1, (tiles + kBoxes - 1) / kBoxes);
    found_ = {};
    look(0, tiles);
    found_.full /= static_cast<double>(tiles);
    found_.mixed /= static_cast<double>(tiles);
    return found_;
  }

 private:
  /// The tiles of keys from `first` up to `end`, in halves until they are decided.
  void look(std::int64_t first, std::int64_t end) {
    const analysis::IndexBox box{{{0, p_.batch - 1},
                                  {0, p_.heads_q - 1},
                                  {first_query_, last_query_},
                                  {first * tile_.keys, std::min(end * tile_.keys, p_.seq_kv) - 1}}};
    const TileMask mask = analyzer_.analyze(box, nothing_known_, scratch_);
    if (mask == TileMask::kEmpty) return;
    const auto count = static_cast<double>(end - first);
    if (mask == TileMask::kFull) {
      found_.full += count;
    } else if (end - first <= least_) {
      found_.mixed += count;
    } else {
      const std::int64_t middle = first + (end - first) / 2;
      look(first, middle);
      look(middle, end);
    }
  }

  const AttentionProblem& p_;
  const ScoreTile tile_;
  const masks::TileMaskAnalyzer analyzer_;
  const masks::OperandRanges nothing_known_;
  masks::TileMaskAnalyzer::Scratch scratch_;
  std::int64_t first_query_ = 0, last_query_ = 0, least_ = 1;
  Row found_;
};

/// Whether the term is the end of a varlen sequence, as problem::with_lengths_in_mask() writes it. Kernels know that
/// end from the offsets, so that no kernel has to find it for each tile.
bool ends_sequence(const AttentionProblem& p, const Program& program, const masks::MaskTerm& term) {
  const bool of_queries = term.axis == Axis::kQuery;
  if (!(of_queries ? p.tokens_q : p.tokens_kv) || p.index_offsets) return false;
  if (term.kind != MaskKind::kPadding || term.from_start || term.bound.node == kNoNode || term.bound.offset != 0)
    return false;
  const auto operand =
      problem::operand_number(program, of_queries ? problem::kOffsetsOfQueries : problem::kOffsetsOfKeys);
  const auto node = [&](NodeId id) -> const Node& { return program.nodes()[id]; };
  const auto reads_offsets = [&](const Node& read) { return read.op == Op::kGather && read.payload == operand; };
  const Node& length = node(term.bound.node);
  if (length.op != Op::kSub) return false;
  const Node &end = node(length.args[0]), &first = node(length.args[1]);
  if (!reads_offsets(end) || !reads_offsets(first) || node(first.args[0]).op != Op::kBatchIdx) return false;
  const Node& next = node(end.args[0]);
  const auto is_one = [&](const Node& x) { return x.op == Op::kConstant && x.type == Type::kI32 && x.payload == 1; };
  const auto adds = [&](NodeId x, NodeId y) { return node(x).op == Op::kBatchIdx && is_one(node(y)); };
  return next.op == Op::kAdd && (adds(next.args[0], next.args[1]) || adds(next.args[1], next.args[0]));
}

/// The conditions that a mask joins by AND.
void collect_conditions(const Program& program, NodeId id, std::vector<NodeId>& conditions) {
  const Node& node = program.nodes()[id];
  if (node.op != Op::kAnd) return conditions.push_back(id);
  collect_conditions(program, node.args[0], conditions);
  collect_conditions(program, node.args[1], conditions);
}

/// Whether an integer is a query's index plus something that does not vary with it. Modulo 2^32 it then grows by one
/// from query to query, and wraps at most once among a tile's.
bool follows_query(const Program& program, const std::vector<analysis::Dependence>& on, NodeId id) {
  const Node& node = program.nodes()[id];
  if (node.op == Op::kQueryIdx) return true;
  const auto is_constant = [&](NodeId x) { return !on[x].on(Axis::kQuery) && !on[x].score; };
  if (node.type != Type::kI32 || (node.op != Op::kAdd && node.op != Op::kSub)) return false;
  const auto [x, y] = std::pair(node.args[0], node.args[1]);
  if (is_constant(y)) return follows_query(program, on, x);
  return node.op == Op::kAdd && is_constant(x) && follows_query(program, on, y);
}

/// The bound of a condition that keeps the keys up to it, or below it. The other side is the key's index itself, which
/// is far from where integers wrap.
std::optional<NodeId> bound_of_keys(const Program& program, NodeId id) {
  const Node& node = program.nodes()[id];
  const bool is_upper = node.op == Op::kLe || node.op == Op::kLt, is_lower = node.op == Op::kGe || node.op == Op::kGt;
  if (!is_upper && !is_lower) return std::nullopt;
  const NodeId key = node.args[is_upper ? 0 : 1], bound = node.args[is_upper ? 1 : 0];
  if (program.nodes()[key].op != Op::kKeyIdx) return std::nullopt;
  return bound;
}

/// Whether all conditions are of a key and its batch and head alone, or keep keys up to a diagonal.
bool grows_with_query(const Program& program, const std::vector<analysis::Dependence>& on,
                      std::span<const NodeId> conditions) {
  return std::ranges::all_of(conditions, [&](NodeId id) {
    if (!on[id].on(Axis::kQuery)) return !on[id].score;
    const auto bound = bound_of_keys(program, id);
    return bound && follows_query(program, on, *bound);
  });
}

/// Whether all conditions of a mask that grows_with_query() keep keys up to something that does not vary with them.
bool keeps_prefix(const Program& program, const std::vector<analysis::Dependence>& on,
                  std::span<const NodeId> conditions) {
  return std::ranges::all_of(conditions, [&](NodeId id) {
    const auto bound = bound_of_keys(program, id);
    return bound && !on[*bound].on(Axis::kKey);
  });
}

/// The knowledge of a direction that has a mask.
MaskKnowledge find_knowledge(const compiler::CompiledProblem& problem, Direction direction) {
  const Program& program = program_of(problem, direction);
  const masks::MaskClass& mask = direction == Direction::kForward ? problem.forward.mask : problem.backward->mask;
  MaskKnowledge knowledge;
  const auto is_end = [&](const masks::MaskTerm& term) { return ends_sequence(problem.problem, program, term); };
  if (std::ranges::all_of(mask.terms, is_end)) return knowledge;
  const std::vector<analysis::Dependence> on = analysis::dependences(program);
  knowledge.kind = on[program.keep()].score ? MaskKnowledge::Kind::kScore : MaskKnowledge::Kind::kList;
  if (knowledge.kind == MaskKnowledge::Kind::kList) {
    knowledge.terms = {program.keep()};
    std::vector<NodeId> conditions;
    collect_conditions(program, program.keep(), conditions);
    // Kernels that ask leave out queries beyond a varlen sequence's last.
    std::erase_if(conditions, [&](NodeId id) {
      return std::ranges::any_of(mask.terms, [&](const masks::MaskTerm& term) {
        return term.node == id && term.axis == Axis::kQuery && is_end(term);
      });
    });
    knowledge.grows_with_query = grows_with_query(program, on, conditions);
    knowledge.keeps_prefix = knowledge.grows_with_query && keeps_prefix(program, on, conditions);
  } else {
    for (const masks::MaskTerm& term : mask.terms)
      if (!on[term.node].score) knowledge.terms.push_back(term.node);
  }
  for (const NodeId term : knowledge.terms) {
    knowledge.varies_with_batch = knowledge.varies_with_batch || on[term].on(Axis::kBatch);
    knowledge.varies_with_head = knowledge.varies_with_head || on[term].on(Axis::kHead);
    knowledge.varies_with_query = knowledge.varies_with_query || on[term].on(Axis::kQuery);
  }
  knowledge.same_in_every_call = !problem.problem.index_offsets && !analysis::keep_reads_operands(program);
  return knowledge;
}

}  // namespace

const Program& program_of(const compiler::CompiledProblem& problem, Direction direction) {
  return direction == Direction::kForward ? problem.forward.program : problem.backward->program;
}

MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction) {
  if (program_of(problem, direction).keep() == kNoNode) return {};
  return *of_structure<MaskKnowledge>(problem, direction, [&] { return find_knowledge(problem, direction); });
}

double filled_part(const AttentionProblem& p) {
  const auto part = [&](const std::optional<std::int64_t>& tokens, std::int64_t length) {
    if (!tokens) return 1.0;
    return std::min(1.0, static_cast<double>(*tokens) / (static_cast<double>(p.batch) * static_cast<double>(length)));
  };
  return part(p.tokens_q, p.seq_q) * part(p.tokens_kv, p.seq_kv);
}

MaskWork mask_work(const compiler::CompiledProblem& compiled, Direction direction, ScoreTile tile) {
  const bool forward = direction == Direction::kForward;
  const Program& program = program_of(compiled, direction);
  const MaskKind kind = forward ? compiled.forward.mask.kind : compiled.backward->mask.kind;
  if (program.keep() == kNoNode) return {};
  if (kind == MaskKind::kEmpty) return {0, 0};
  TileCount count(compiled, program, tile);
  const std::int64_t rows = (compiled.problem.seq_q + tile.queries - 1) / tile.queries;
  const std::int64_t looked_at = std::min(rows, kRows);
  double full = 0, mixed = 0, most = 0;
  for (std::int64_t i = 0; i < looked_at; ++i) {
    // The middle of each stretch of rows, rounded down and up in turn.
    const std::int64_t middle = ((2 * i + 1) * rows - (i % 2 == 0 ? looked_at : 0)) / (2 * looked_at);
    const TileCount::Row row = count.row(middle * tile.queries);
    full += row.full / static_cast<double>(looked_at);
    mixed += row.mixed / static_cast<double>(looked_at);
    most = std::max(most, row.full + row.mixed);
  }
  const bool uneven = most > kEven * (full + mixed);
  // Few enough to be missed between those that are looked at.
  for (const std::int64_t end : {std::int64_t{0}, rows - 1}) {
    if (kind != MaskKind::kGeneral) break;
    const TileCount::Row row = count.row(end * tile.queries);
    most = std::max(most, row.full + row.mixed);
  }
  const bool few_longest = most > kMostEven * (full + mixed);
  if (!analysis::keep_reads_operands(program)) return {full + mixed, mixed, uneven, few_longest};
  // Decode queries, which stand at their keys' end, see most of them.
  const bool is_decode =
      compiled.problem.seq_q <= kDecodeQueries && mask_knowledge(compiled, direction).grows_with_query;
  Usual of_kind = usual(is_decode ? MaskKind::kPadding : kind);
  if (const double filled = filled_part(compiled.problem); filled < 1) of_kind = {filled, kWithinSequences};
  return {full + mixed * of_kind.run, mixed * of_kind.run * (1 - of_kind.full), uneven, few_longest};
}

}  // namespace scoremod::backend::kernels
