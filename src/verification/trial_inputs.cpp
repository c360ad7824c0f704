#include "verification/trial_inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "problem/implied_operands.hpp"
#include "problem/stored_unit.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::verification {
namespace {

using backend::reference::Element;
using backend::reference::Interpreter;
using problem::StridedTensor;
using problem::TensorRole;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The kinds of rows that are wanted. The numbers are places in a cycle of rows.
enum class Goal : std::uint8_t { kEmpty = 1, kSingle = 2, kLow = 3, kHigh = 4 };
constexpr std::array kGoals{Goal::kEmpty, Goal::kSingle, Goal::kLow, Goal::kHigh};

/// Rows of a cycle; the goals have one each, so that at least half of the rows are unchanged.
constexpr std::int64_t kCycle = 8;
/// Beyond the LSEs of the row classes (100), with room for the sum over a row's keys.
constexpr double kFarValue = 120;
constexpr std::array kFarScores{-8.0, 8.0, -16.0, 16.0, -32.0, 32.0, -64.0, 64.0, -125.0, 125.0, -250.0, 250.0};
/// A change is not taken if rounding the score then moves values by more than this, and by more than before. Nor is one
/// after which float32 rounds a row's largest value, and so its LSE, by more. Weights computed from such an LSE are
/// wrong by as much in every implementation.
constexpr double kExactEnough = 1e-3;
constexpr double kFarthestValue = kExactEnough * 0x1p24;
/// The deviation of a row's query and of all keys along one dimension, so that their product moves the row's scores.
constexpr double kKeyDeviations = 4;
constexpr std::int64_t kSampledRows = 20;
/// Keys sampled from a row if only its values and not their number matters.
constexpr std::int64_t kSampledKeys = 32;

/// A row's place in the cycle, different from head to head.
std::int64_t place_of(std::int64_t b, std::int64_t h, std::int64_t i) { return (i + 3 * h + 5 * b) % kCycle; }
bool belongs(Goal goal, std::int64_t place) { return place == kCycle - static_cast<std::int64_t>(goal); }

/// How many of the sampled rows are of each kind.
struct Census {
  int rows = 0;
  int empty = 0, single = 0, low = 0, high = 0;
  double move = 0;      ///< the most that rounding the score moves a value; infinite where one is NaN or infinite
  double farthest = 0;  ///< the largest magnitude of a row's largest value

  int count(Goal goal) const {
    switch (goal) {
      case Goal::kEmpty: return empty;
      case Goal::kSingle: return single;
      case Goal::kLow: return low;
      case Goal::kHigh: return high;
    }
    return 0;
  }
};

/// Evaluates the program on sampled rows, with scores that only look like the real ones.
class Sample {
 public:
  Sample(const AttentionProblem& problem, const backend::CallParameters& parameters)
      : problem_(problem), offsets_(parameters.offsets) {}

  /// `shift` is added to the scores of the rows at `shifted`.
  Census take(const ProblemInputs& inputs, std::optional<Goal> shifted = {}, double shift = 0) const {
    const std::int64_t step = shifted ? std::max<std::int64_t>(problem_.seq_kv / kSampledKeys, 1) : 1;
    std::vector<const void*> data;
    for (const OwnedOperand& operand : inputs.operands) data.push_back(operand.bytes.data());
    const auto views = backend::reference::view_operands(problem_, data);
    Interpreter<double> program(problem_.program, views, offsets_);
    const std::int64_t rows = problem_.batch * problem_.heads_q * problem_.seq_q;
    const std::int64_t sampled = std::min(rows, kSampledRows);
    Census census;
    for (std::int64_t n = 0; n < sampled; ++n) {
      // By the golden ratio: evenly, and at all places of a cycle.
      const double part = static_cast<double>(n) * 0.6180339887498949;
      const auto row = static_cast<std::int64_t>((part - std::floor(part)) * static_cast<double>(rows));
      const std::int64_t i = row % problem_.seq_q, head = row / problem_.seq_q;
      const std::int64_t b = head / problem_.heads_q, h = head % problem_.heads_q;
      const bool moves = shifted && belongs(*shifted, place_of(b, h, i));
      count_row(program, {b, h, i, 0}, step, moves ? shift : 0, census);
    }
    return census;
  }

 private:
  void count_row(Interpreter<double>& program, Element at, std::int64_t step, double shift, Census& census) const {
    constexpr std::array kSpread{0.0, 3.0, -2.0, 5.0, -4.0, 1.0, -7.0};
    int kept = 0;
    double most = -kInfinity;
    for (; at.key < problem_.seq_kv; at.key += step) {
      const double score = shift + kSpread[static_cast<std::size_t>(at.key / step) % kSpread.size()];
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

  const AttentionProblem& problem_;
  const IndexOffsets offsets_;
};

/// Whether a change has made rows for a goal, and left the most as they were.
bool reaches(Goal goal, const Census& before, const Census& after) {
  const int made = after.count(goal) - before.count(goal);
  return after.move <= std::max(before.move, kExactEnough) &&
         after.farthest <= std::max(before.farthest, kFarthestValue) && made > 0 && made <= after.rows / 2;
}

/// Changes to inputs that may reach a goal, each tried on the sample and kept if it does.
class Search {
 public:
  Search(const AttentionProblem& problem, const backend::CallParameters& parameters, ProblemInputs& inputs)
      : problem_(problem),
        sample_(problem, parameters),
        scale_(static_cast<double>(parameters.scale)),
        inputs_(inputs) {}

  void run() {
    census_ = sample_.take(inputs_);
    if (!std::isfinite(census_.move)) return;
    for (const Goal goal : kGoals) {
      // Some rows that are so by themselves will do.
      if (census_.count(goal) > 0 && census_.count(goal) <= census_.rows / 2) continue;
      const bool by_scores = goal == Goal::kLow || goal == Goal::kHigh;
      if (by_scores && move_scores(goal)) continue;
      for (std::uint32_t operand = 0; operand < inputs_.operands.size(); ++operand) {
        if (!has_a_meaning(operand) && change_operand(goal, operand)) break;
      }
    }
  }

 private:
  /// Whether an operand is read unchecked: a random number would be an address outside the tensors, or no scale of one.
  bool has_a_meaning(std::uint32_t operand) const {
    const std::string& name = problem_.program.operands()[operand].name;
    return !problem::implied_table_shape(problem_, name).empty() || problem::is_tensor_scale(problem_, name);
  }

  /// The scale of stored q and k, in which all numbers here are.
  double stored_scale() const {
    std::vector<const void*> operands;
    for (const OwnedOperand& operand : inputs_.operands) operands.push_back(operand.bytes.data());
    return scale_ * problem::StoredUnit(problem_, TensorRole::kQ).of(operands) *
           problem::StoredUnit(problem_, TensorRole::kK).of(operands);
  }

  bool move_scores(Goal goal) {
    const double deviation = default_fill(problem_, "k").high;
    const double key = kKeyDeviations * deviation;
    const Census before = sample_.take(inputs_, goal);
    for (const double shift : kFarScores) {
      const Census after = sample_.take(inputs_, goal, shift);
      if (!reaches(goal, before, after)) continue;
      const double query = shift / (stored_scale() * key);
      const double largest = saturate(problem_.dtype, problem_.dtype == DType::kF16 ? 6e4 : 1e6);
      if (!(std::abs(query) < largest)) return false;
      set_first_dimension(goal, key, query, deviation);
      return true;
    }
    return false;
  }

  void set_first_dimension(Goal goal, double key, double query, double deviation) {
    std::vector<const void*> operands;
    for (const OwnedOperand& operand : inputs_.operands) operands.push_back(operand.bytes.data());
    const StridedTensor k = placed_tensor(problem_, TensorRole::kK, operands);
    const StridedTensor q = placed_tensor(problem_, TensorRole::kQ, operands);
    const StridedTensor d_o = placed_tensor(problem_, TensorRole::kDO, operands);
    k.for_each_offset([&](std::int64_t number, std::int64_t offset) {
      if (number % problem_.dim_qk == 0) store_element(inputs_.k.data(), k.dtype, offset, key);
    });
    const auto is_far = [&](std::int64_t row) {
      const std::int64_t head = row / problem_.seq_q;
      return belongs(goal, place_of(head / problem_.heads_q, head % problem_.heads_q, row % problem_.seq_q));
    };
    q.for_each_offset([&](std::int64_t number, std::int64_t offset) {
      if (number % problem_.dim_qk != 0 || !is_far(number / problem_.dim_qk)) return;
      store_element(inputs_.q.data(), q.dtype, offset, query);
    });
    const double row_size = deviation * std::sqrt(static_cast<double>(problem_.dim_qk));
    const double factor = std::min(1.0, row_size / std::abs(query));
    if (inputs_.d_o.empty()) return;
    d_o.for_each_offset([&](std::int64_t number, std::int64_t offset) {
      if (!is_far(number / problem_.dim_v)) return;
      const auto value = load_element<double>(inputs_.d_o.data(), d_o.dtype, offset);
      store_element(inputs_.d_o.data(), d_o.dtype, offset, factor * value);
    });
  }

  /// Numbers that an operand may hold for a goal.
  static std::span<const double> candidates(Goal goal, DType dtype) {
    static constexpr std::array kBools{0.0, 1.0};
    static constexpr std::array kIntegers{0.0, 1.0, -1.0, 1e9, -1e9};
    static constexpr std::array kMasking{-kInfinity};
    static constexpr std::array kFar{-250.0, 250.0};
    static constexpr std::array kFarIntegers{0.0, 1.0, -1.0, 250.0, -250.0, 1000.0, -1000.0};
    const bool far = goal == Goal::kLow || goal == Goal::kHigh;
    if (dtype == DType::kBool) return kBools;
    if (dtype == DType::kI32) return far ? std::span<const double>(kFarIntegers) : kIntegers;
    return far ? std::span<const double>(kFar) : kMasking;
  }

  bool change_operand(Goal goal, std::uint32_t operand) {
    const OperandSpec& spec = problem::spec_of(problem_, operand);
    const OperandDecl& decl = problem_.program.operands()[operand];
    const StridedTensor tensor = problem::tensor_of(spec.name, spec);
    std::vector<std::byte>& bytes = inputs_.operands[operand].bytes;
    const std::vector<std::byte> before = bytes;
    for (const std::int64_t group : groups(decl, tensor)) {
      for (const double candidate : candidates(goal, spec.dtype)) {
        if (!write(goal, tensor, group, candidate, bytes)) break;
        const Census after = sample_.take(inputs_);
        if (reaches(goal, census_, after)) {
          census_ = after;
          return true;
        }
        bytes = before;
      }
    }
    return false;
  }

  /// How many entries of an operand may stand for one row: those along the keys; or a table's single ones, and those of
  /// one index of its first dimension.
  std::vector<std::int64_t> groups(const OperandDecl& decl, const StridedTensor& tensor) const {
    if (decl.is_table()) return {1, tensor.elements() / tensor.shape.front()};
    return {decl.axes[static_cast<std::size_t>(Axis::kKey)] ? problem_.seq_kv : 1};
  }

  /// Fills the groups of the goal's place in a cycle; for a single key all but one entry of a group. False where the
  /// operand has too few groups to leave others alone.
  static bool write(Goal goal, const StridedTensor& tensor, std::int64_t group, double number,
                    std::vector<std::byte>& bytes) {
    const std::int64_t cycle = std::min(tensor.elements() / group, kCycle);
    const std::int64_t place = cycle - static_cast<std::int64_t>(goal);
    if (place < 1) return false;
    const std::int64_t spared = goal == Goal::kSingle && group > 1 ? group / 2 : -1;
    const double other = tensor.dtype == DType::kBool ? 1 - number : 0;
    tensor.for_each_offset([&](std::int64_t at, std::int64_t offset) {
      if (at / group % cycle != place) return;
      store_element(bytes.data(), tensor.dtype, offset, at % group == spared ? other : number);
    });
    return true;
  }

  const AttentionProblem& problem_;
  const Sample sample_;
  const double scale_;
  ProblemInputs& inputs_;
  Census census_;
};

}  // namespace

ProblemInputs trial_inputs(const AttentionProblem& trial, const backend::CallParameters& parameters) {
  AttentionProblem drawn = trial;
  // A compiled problem's mask has the lengths; a paged KV cache must still declare some.
  drawn.lengths.kv = drawn.lengths.kv || drawn.paged.has_value();
  ProblemInputs inputs = random_inputs(drawn);
  Search(trial, parameters, inputs).run();
  return inputs;
}

}  // namespace scoremod::verification
