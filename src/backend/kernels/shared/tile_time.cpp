#include "backend/kernels/shared/tile_time.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "analysis/dependence.hpp"
#include "analysis/keep_nodes.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/measured_at.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"
#include "masks/tile_mask_analyzer.hpp"
#include "problem/tensor_view.hpp"

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

/// The part of a node's cost that is left if it varies along one of queries and keys. The compiler then evaluates it
/// once for a thread's scores of one row or column.
constexpr double kAlongOneAxis = 0.15;
/// A read of a relative-position entry, which neighbouring scores of a thread share. If there is a table for each head,
/// L1 does not keep it from CTA to CTA. The times are an H200's.
constexpr double kReadDifference = 0.16, kReadDifferenceOfHead = 0.25;

/// A read of a tile that was copied ahead: half an access to shared memory, and a conversion. From the case "bias" of
/// bench/results/hopper_kernels.json.
constexpr double kReadCopied = 0.22;

// From bench/results/attention_kernels.json: what each program there takes longer than none.

double cost_of_read(const Node& node, const OperandDecl& decl) {
  if (node.op == Op::kGather) return 0.6;
  const auto along = [&](Axis axis) { return decl.axes[static_cast<std::size_t>(axis)]; };
  return along(Axis::kQuery) && along(Axis::kKey) ? 1.3 : 1.0;
}

/// A divisor by which a shift or a mask divides.
bool is_shift(const Node& divisor) {
  if (divisor.op != Op::kConstant || divisor.type != Type::kI32) return false;
  const std::int32_t value = ir::constant_i32(divisor);
  return value > 0 && std::has_single_bit(static_cast<std::uint32_t>(value));
}
constexpr double kShift = 0.15;

/// A product of floats is three MMAs of half the width each, beside the instructions that split them.
constexpr double kFloatProducts = 6;
/// Portable tiles of 16 rows a warp read each matrix for half as many products, and so do small Hopper ones.
constexpr double kSmallTiles = 1.15;
/// The time of the kernel that makes the block mask, for all scores: by intervals, and by its elements for a tile that
/// intervals leave undecided. The mask's own statements come on top.
constexpr double kStates = 0.05, kStatesOfElements = 0.9, kStatesLaunch = 0.016;
/// The part of the memory's bandwidth that kernels reach.
constexpr double kReachedBandwidth = 0.7;

double pairs_of(const AttentionProblem& p) {
  return static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv);
}

/// How much longer it takes if the CTAs do not fill the device.
double idle_parts(const AttentionProblem& p, Direction direction, const TileShape& shape, const DeviceRates& rates) {
  const auto ctas = [&](std::int64_t length, std::optional<std::int64_t> tokens, int rows) {
    return work_tiles(p.batch, tiles_of(length, rows), tokens, rows);
  };
  std::int64_t blocks = p.heads_q * ctas(p.seq_q, p.tokens_q, shape.queries);
  if (direction == Direction::kBackward)
    blocks = std::min(blocks, p.heads_kv * ctas(p.seq_kv, p.tokens_kv, shape.keys));
  return std::max(1.0, rates.multiprocessors / static_cast<double>(blocks));
}

double memory_time(const AttentionProblem& p, Direction direction, const DeviceRates& rates) {
  const std::int64_t queries = p.tokens_q.value_or(p.batch * p.seq_q), keys = p.tokens_kv.value_or(p.batch * p.seq_kv);
  const double elements = static_cast<double>((p.heads_q * queries + p.heads_kv * keys) * (p.dim_qk + p.dim_v));
  const double bytes = (direction == Direction::kForward ? 2 : 6) * elements * (p.dtype == DType::kF32 ? 2 : 1);
  return bytes / (kReachedBandwidth * rates.bytes_per_ms);
}

/// The time of the kernel that makes the block mask.
double states_time(const AttentionProblem& p, const MaskKnowledge& mask, const MaskWork& work, const NodeCosts& costs) {
  if (!mask.has_states() || mask.same_in_every_call) return 0;
  double pairs = filled_part(p) * pairs_of(p) / static_cast<double>(p.batch * p.heads_q);
  if (mask.varies_with_batch) pairs *= static_cast<double>(p.batch);
  if (mask.varies_with_head) pairs *= static_cast<double>(p.heads_q);
  return pairs / kMeasuredPairs * (kStates + work.partial * (kStatesOfElements + costs.keep));
}

/// A walk over all tiles with two products of each, and what there is to do at each element beside the program.
constexpr double kOperandWalk = 1.9, kOperandElement = 0.5, kOperandRows = 0.1, kOperandLaunches = 0.02;
/// kSharedWalk is the walk for a bias that batches or heads share, in place of kOperandWalk: each tile loads all four
/// tensors. kTableRead is each read of a table, whose sums threads keep to themselves; in large tables they add to
/// exact sums. Both are times of an H200 (bench/NOTES.md); 257 entries without neighbours stand for a large table.
constexpr double kSharedWalk = 5.1, kTableRead = 13, kLargeTableRead = 47;
constexpr std::int64_t kSmallTableOfHead = 64;
/// The additional time of gradient sums beside dq, dk and dv: for all targets, for each, and for one along diagonals,
/// which goes through shared memory.
constexpr double kGainsElement = 0.2, kGain = 0.15, kDiagonals = 0.6, kGainsLaunches = 0.01;

/// The time of an element of a walk over queries, for all tables that are summed in it.
double table_reads_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets) {
  double time = 0;
  for (const OperandTarget& target : targets) {
    if (target.sum != OperandSum::kTable) continue;
    const compiler::OperandReduction& table = reduction_of(problem.backward->reductions, target.operand);
    const bool small = table.entries() <= kSmallTableOfHead * problem.problem.heads_q;
    time += static_cast<double>(table.roots.size()) * (small ? kTableRead : kLargeTableRead);
  }
  return time;
}

}  // namespace

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

const MaskWork& SharedMaskWork::of(const Work& work, ScoreTile tile) const {
  std::call_once(once_, [&] { mask_ = kernels::mask_work(work.problem, work.direction, tile); });
  return mask_;
}

double node_cost(const Node& node, const Program& program) {
  switch (node.op) {
    case Op::kOperand:
    case Op::kGather: return cost_of_read(node, program.operands()[node.payload]);
    case Op::kMod: return is_shift(program.nodes()[node.args[1]]) ? kShift : 0.5;
    case Op::kFloorDiv: return is_shift(program.nodes()[node.args[1]]) ? kShift : 0.8;
    case Op::kToF32: return 0.2;
    case Op::kExp:
    case Op::kExp2: return 0.3;
    case Op::kTanh: return 0.5;
    case Op::kSqrt:
    case Op::kRsqrt: return 0.8;
    case Op::kDiv: return program.nodes()[node.args[1]].op == Op::kConstant ? 0.2 : 1.15;
    case Op::kReciprocal:
    case Op::kLog: return 1.15;
    case Op::kGeluTanh: return 1.3;
    case Op::kExpm1:
    case Op::kLog1p: return 1.5;
    case Op::kSigmoid:
    case Op::kSilu: return 1.0;
    case Op::kSin:
    case Op::kCos:
    case Op::kAtan:
    case Op::kSoftplus: return 3.0;
    case Op::kErf:
    case Op::kErfc:
    case Op::kGelu: return 4.2;
    case Op::kAtan2:
    case Op::kPow: return 5.2;
    case Op::kTan: return 6.0;
    default: return ir::info(node.op).signature == ir::Signature::kLeaf ? 0 : 0.045;
  }
}

NodeCosts node_costs(const Program& program, bool evaluates_all, std::optional<std::uint32_t> loaded_bias) {
  const std::vector<bool> of_keep = analysis::keep_nodes(program);
  const std::vector<analysis::Dependence> dependences = analysis::dependences(program);
  std::vector<bool> of_value(program.nodes().size());
  for (const Root& root : program.roots()) {
    if (root.kind == RootKind::kValue || root.kind == RootKind::kScoreAdjoint) of_value[root.node] = true;
  }
  const PositionTables tables = evaluates_all ? PositionTables{} : position_tables(program);
  NodeCosts costs;
  for (NodeId id = static_cast<NodeId>(program.nodes().size()); id-- > 0;) {
    const Node& node = program.nodes()[id];
    if (of_value[id] && std::ranges::find(tables.nodes, id) != tables.nodes.end()) {
      costs.value += tables.by_head ? kReadDifferenceOfHead : kReadDifference;
      continue;
    }
    if (of_value[id]) {
      for (std::size_t i = 0; i < node.arg_count; ++i) of_value[node.args[i]] = true;
    }
    const analysis::Dependence& on = dependences[id];
    const int axes = on.on(Axis::kQuery) + on.on(Axis::kKey);
    const double evaluations = on.score || axes == 2 ? 1 : axes == 1 ? kAlongOneAxis : 0;
    const bool copied = node.op == Op::kOperand && node.payload == loaded_bias;
    const double cost = evaluations * (copied ? kReadCopied : node_cost(node, program));
    if (of_value[id])
      costs.value += cost;
    else if (of_keep[id])
      costs.keep += cost;
  }
  return costs;
}

Prediction operand_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                        const TileShape& shape, const MaskWork& mask, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  bool queries = false, keys = false;
  double shared = 0;  // walks
  for (const OperandTarget& target : targets) {
    queries = queries || target.sum == OperandSum::kTotal || target.sum == OperandSum::kQueries ||
              target.sum == OperandSum::kElement || target.sum == OperandSum::kTable;
    keys = keys || target.sum == OperandSum::kKeys;
    shared += target.sum == OperandSum::kShared;
  }
  const NodeCosts costs = node_costs(problem.backward->program, true);
  const double pairs = pairs_of(p) / kMeasuredPairs, dims = static_cast<double>(p.dim_qk + p.dim_v) / kMeasuredDims;
  const double of_floats = shape.holds_floats() ? kFloatProducts : 1;
  const auto walk = [&](double products) {
    return mask.run * (products * of_floats * dims + kOperandElement + costs.value) + mask.partial * costs.keep;
  };
  double compute = walk(kOperandWalk) * (queries + keys) + walk(kSharedWalk) * shared;
  compute += mask.run * table_reads_time(problem, targets);
  compute *= pairs * idle_parts(p, Direction::kBackward, shape, rates);
  compute += states_time(p, mask_knowledge(problem, Direction::kBackward), mask, costs);
  compute += kOperandRows * static_cast<double>(p.batch * p.heads_q * p.seq_q) / kMeasuredRows;
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  return {kOperandLaunches + compute, "estimated from measured kernels"};
}

double gains_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                  const TileShape& shape, const MaskWork& mask, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  double sums = 0, element = 0, written = 0;
  for (const OperandTarget& target : targets) {
    if (target.sum == OperandSum::kDifference)
      element += kDiagonals;
    else
      sums += target.sum == OperandSum::kSink ? 0 : 1;
    // Zeros too.
    if (target.sum == OperandSum::kElement)
      written += static_cast<double>(problem::bytes_of(problem::spec_of(p, target.operand)));
  }
  if (sums > 0) element += kGainsElement + sums * kGain;
  double compute = pairs_of(p) / kMeasuredPairs * mask.run * element;
  compute *= idle_parts(p, Direction::kBackward, shape, rates);
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  return kGainsLaunches + compute + written / (kReachedBandwidth * rates.bytes_per_ms);
}

Prediction tiled_time(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                      const MaskWork& mask, const DeviceRates& rates, const TiledTimes& direct, bool small,
                      std::optional<std::uint32_t> loaded_bias) {
  const AttentionProblem& p = problem.problem;
  const NodeCosts costs = node_costs(program_of(problem, direction), false, loaded_bias);
  const MaskKnowledge knowledge = mask_knowledge(problem, direction);
  // Whole tiles are run, whatever part of them there is.
  const std::int64_t tiles = tiles_of(p.seq_q, shape.queries);
  const std::int64_t work = work_tiles(p.batch, tiles, p.tokens_q, shape.queries);
  const double tile_rows = static_cast<double>(p.heads_q * shape.queries);
  const double rows = static_cast<double>(work) * tile_rows;
  const double pairs = static_cast<double>(p.batch * tiles) * tile_rows *
                       static_cast<double>(tiles_of(p.seq_kv, shape.keys) * shape.keys);
  double products = direct.tiles * mask.run * pairs / kMeasuredPairs + direct.rows * rows / kMeasuredRows;
  const int parts = shape.value_parts;
  const auto dims = static_cast<double>(p.dim_qk + value_dims(shape, p.dim_v));
  products *= parts * (direct.dimless + (1 - direct.dimless) * dims / kMeasuredDims);
  if (small) products *= kSmallTiles;
  if (shape.holds_floats()) products *= kFloatProducts;
  if (std::max(p.dim_qk, p.dim_v) > 128) products *= direct.wide_heads;
  const double program =
      parts * direct.evaluations * (costs.value * mask.run + costs.keep * mask.partial) * pairs / kMeasuredPairs;
  double compute = (products + program) * (mask.uneven ? direct.uneven : 1) * idle_parts(p, direction, shape, rates);
  compute += states_time(p, knowledge, mask, costs);
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  double launches = direct.launches;
  if (knowledge.has_states() && !knowledge.same_in_every_call) launches += kStatesLaunch;
  std::string source = "scaled from measured kernels";
  if (rates != kMeasuredOn) source += "; scaled to this device's multiprocessors, clock and memory";
  const double milliseconds = launches + std::max(compute, memory_time(p, direction, rates));
  return {milliseconds, std::move(source)};
}

}  // namespace scoremod::backend::kernels
