#include "verification/sampled_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "analysis/dependence.hpp"

namespace scoremod::verification {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Beyond the LSEs of the row classes (100), with room for the sum over a row's keys.
constexpr double kFarValue = 120;
constexpr std::int64_t kSampledRows = 20;
/// Keys sampled from a row if only its values and not their number matters.
constexpr std::int64_t kSampledKeys = 32;

/// A score for the n-th sampled key of a row.
double spread_score(std::int64_t n) {
  constexpr std::array kSpread{0.0, 3.0, -2.0, 5.0, -4.0, 1.0, -7.0};
  return kSpread[static_cast<std::size_t>(n) % kSpread.size()];
}

/// A bool of a program that indices and data decide, and which of its values were seen.
struct Condition {
  NodeId node;
  analysis::Dependence dependence;
  bool was_true = false, was_false = false;
};

std::vector<Condition> conditions_of(const scoremod::Program& program,
                                     const std::vector<analysis::Dependence>& dependences) {
  std::vector<Condition> found;
  for (NodeId node = 0; node < program.nodes().size(); ++node) {
    const Node& each = program.nodes()[node];
    if (each.type != Type::kBool || each.op == Op::kConstant || dependences[node].score) continue;
    found.push_back({node, dependences[node]});
  }
  return found;
}

}  // namespace

std::int64_t place_of(std::int64_t b, std::int64_t h, std::int64_t i) { return (i + 3 * h + 5 * b) % kCycle; }
bool belongs(Goal goal, std::int64_t place) { return place == kCycle - static_cast<std::int64_t>(goal); }

int Census::count(Goal goal) const {
  switch (goal) {
    case Goal::kEmpty: return empty;
    case Goal::kSingle: return single;
    case Goal::kLow: return low;
    case Goal::kHigh: return high;
  }
  return 0;
}

bool Reach::shows_more_than(const Reach& other) const {
  // Rows that keep keys weigh most, up to a quarter of all: without them nothing is shown at all.
  const auto weight = [](const Reach& reach) { return std::tuple(std::min(4 * reach.kept, reach.rows), reach.sides); };
  return weight(*this) > weight(other);
}

void SampledRows::for_rows(const ProblemInputs& inputs, const std::function<void(Program&, Element)>& visit) const {
  std::vector<const void*> data;
  data.reserve(inputs.operands.size());
  for (const OwnedOperand& operand : inputs.operands) data.push_back(operand.bytes.data());
  const auto views = backend::reference::view_operands(problem_, data);
  Program program(problem_.program, views, offsets_);
  const std::int64_t rows = problem_.batch * problem_.heads_q * problem_.seq_q;
  const std::int64_t sampled = std::min(rows, kSampledRows);
  for (std::int64_t n = 0; n < sampled; ++n) {
    // By the golden ratio: evenly, and at all places of a cycle.
    const double part = static_cast<double>(n) * 0.6180339887498949;
    const auto row = static_cast<std::int64_t>((part - std::floor(part)) * static_cast<double>(rows));
    const std::int64_t i = row % problem_.seq_q, head = row / problem_.seq_q;
    visit(program, {head / problem_.heads_q, head % problem_.heads_q, i, 0});
  }
}

Census SampledRows::take(const ProblemInputs& inputs, std::optional<Goal> shifted, double shift) const {
  const std::int64_t step = shifted ? std::max<std::int64_t>(problem_.seq_kv / kSampledKeys, 1) : 1;
  Census census;
  for_rows(inputs, [&](Program& program, const Element& at) {
    const bool moves = shifted && belongs(*shifted, place_of(at.batch, at.head, at.query));
    count_row(program, at, step, moves ? shift : 0, census);
  });
  return census;
}

void SampledRows::count_row(Program& program, Element at, std::int64_t step, double shift, Census& census) const {
  int kept = 0;
  double most = -kInfinity;
  for (; at.key < problem_.seq_kv; at.key += step) {
    const double score = shift + spread_score(at.key / step);
    program.evaluate(at, score);
    const double value = program.value();
    if (std::isnan(value)) census.move = kInfinity;
    if (!program.keeps()) continue;
    ++kept;
    most = std::max(most, value);
    if (step == 1 && at.key % 8 != 0) continue;
    program.evaluate(at, score * (1 + 0x1p-20));
    const double move = std::abs(program.value() - value);
    census.move = std::isnan(move) ? kInfinity : std::max(census.move, move);
  }
  ++census.rows;
  census.empty += kept == 0 ? 1 : 0;
  census.single += kept == 1 ? 1 : 0;
  census.low += kept > 0 && most < -kFarValue ? 1 : 0;
  census.high += most > kFarValue ? 1 : 0;
  if (std::isfinite(most)) census.farthest = std::max(census.farthest, std::abs(most));
}

Reach SampledRows::reach(const ProblemInputs& inputs) const {
  const std::vector<analysis::Dependence> dependences = analysis::dependences(problem_.program);
  std::vector<Condition> conditions = conditions_of(problem_.program, dependences);
  Reach reach;
  for_rows(inputs, [&](Program& program, Element at) {
    bool keeps = false;
    for (; at.key < problem_.seq_kv; ++at.key) {
      program.evaluate(at, spread_score(at.key));
      keeps |= program.keeps();
      for (Condition& each : conditions) (program.scalar(each.node).b ? each.was_true : each.was_false) = true;
    }
    ++reach.rows;
    reach.kept += keeps ? 1 : 0;
  });
  const auto needs = [&](const analysis::Dependence& dependence) {
    reach.needs_batches |= dependence.on(Axis::kBatch);
    reach.needs_heads |= dependence.on(Axis::kHead);
  };
  for (const Condition& each : conditions) {
    reach.sides += (each.was_true ? 1 : 0) + (each.was_false ? 1 : 0);
    if (!each.was_true || !each.was_false) needs(each.dependence);
  }
  const bool keeps_enough = 4 * reach.kept >= reach.rows;
  if (!keeps_enough) {
    needs(dependences[problem_.program.value()]);
    if (problem_.program.keep() != kNoNode) needs(dependences[problem_.program.keep()]);
  }
  reach.complete = keeps_enough && reach.sides == 2 * static_cast<int>(conditions.size());
  return reach;
}

}  // namespace scoremod::verification
