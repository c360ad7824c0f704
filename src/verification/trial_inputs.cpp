#include "verification/trial_inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/element.hpp"
#include "problem/implied_operands.hpp"
#include "problem/stored_unit.hpp"
#include "problem/strided_tensor.hpp"
#include "verification/sampled_rows.hpp"

namespace scoremod::verification {
namespace {

using problem::StridedTensor;
using problem::TensorRole;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::array kGoals{Goal::kEmpty, Goal::kSingle, Goal::kLow, Goal::kHigh};

constexpr std::array kFarScores{-8.0, 8.0, -16.0, 16.0, -32.0, 32.0, -64.0, 64.0, -125.0, 125.0, -250.0, 250.0};
/// A change is not taken if rounding the score then moves values by more than this, and by more than before. Nor is one
/// after which float32 rounds a row's largest value, and so its LSE, by more. Weights computed from such an LSE are
/// wrong by as much in every implementation.
constexpr double kExactEnough = 1e-3;
constexpr double kFarthestValue = kExactEnough * 0x1p24;
/// The deviation of a row's query and of all keys along one dimension, so that their product moves the row's scores.
constexpr double kKeyDeviations = 4;

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
        sample_(problem, parameters.offsets),
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

  std::vector<const void*> operand_data() const {
    std::vector<const void*> data(inputs_.operands.size());
    std::ranges::transform(inputs_.operands, data.begin(), [](const OwnedOperand& each) { return each.bytes.data(); });
    return data;
  }

  /// The scale of stored q and k of a query head, in which all numbers here are.
  double stored_scale(std::int64_t head) const {
    const std::vector<const void*> operands = operand_data();
    const std::int64_t head_kv = head / (problem_.heads_q / problem_.heads_kv);
    return scale_ * problem::StoredUnit(problem_, TensorRole::kQ).of(operands, head) *
           problem::StoredUnit(problem_, TensorRole::kK).of(operands, head_kv);
  }

  bool move_scores(Goal goal) {
    if (problem::has_block_scales(problem_)) return false;  // no one number of q has the same effect in all rows
    const double deviation = default_fill(problem_, "k").high;
    const double key = kKeyDeviations * deviation;
    const Census before = sample_.take(inputs_, goal);
    for (const double shift : kFarScores) {
      const Census after = sample_.take(inputs_, goal, shift);
      if (!reaches(goal, before, after)) continue;
      const double largest = saturate(problem_.dtype, problem_.dtype == DType::kF16 ? 6e4 : 1e6);
      std::vector<double> queries;
      for (std::int64_t head = 0; head < problem_.heads_q; ++head) {
        queries.push_back(shift / (stored_scale(head) * key));
        if (!(std::abs(queries.back()) < largest)) return false;
      }
      set_first_dimension(goal, key, queries, deviation);
      return true;
    }
    return false;
  }

  /// `queries` are of each head.
  void set_first_dimension(Goal goal, double key, const std::vector<double>& queries, double deviation) {
    const std::vector<const void*> operands = operand_data();
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
      const std::int64_t head = number / problem_.dim_qk / problem_.seq_q % problem_.heads_q;
      store_element(inputs_.q.data(), q.dtype, offset, queries[static_cast<std::size_t>(head)]);
    });
    // Problems with d_o have one scale for all heads.
    const double row_size = deviation * std::sqrt(static_cast<double>(problem_.dim_qk));
    const double factor = std::min(1.0, row_size / std::abs(queries.front()));
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
  const SampledRows sample_;
  const double scale_;
  ProblemInputs& inputs_;
  Census census_;
};

/// Makes block scales powers of two, as MXFP8's are. A backward is given the oracle's LSE, and engines that round
/// values to 16 bits would compute other scores than those that it is of.
void round_block_scales(const AttentionProblem& trial, ProblemInputs& inputs) {
  for (OwnedOperand& operand : inputs.operands) {
    if (!problem::has_block_scales(trial, operand.name)) continue;
    const Fill fill = default_fill(trial, operand.name);
    const StridedTensor tensor =
        problem::tensor_of(operand.name, *std::ranges::find(trial.operands, operand.name, &OperandSpec::name));
    const double middle = std::floor(std::log2(fill.high)), third = (fill.high - fill.low) / 3;
    tensor.for_each_offset([&](std::int64_t, std::int64_t offset) {
      const double drawn = load_element<double>(operand.bytes.data(), tensor.dtype, offset);
      store_element(operand.bytes.data(), tensor.dtype, offset,
                    std::exp2(middle + std::floor((drawn - fill.low) / third) - 1));
    });
  }
}

}  // namespace

ProblemInputs plain_inputs(const AttentionProblem& trial, std::uint64_t seed) {
  AttentionProblem drawn = trial;
  // A compiled problem's mask has the lengths; a paged KV cache must still declare some.
  drawn.lengths.kv = drawn.lengths.kv || drawn.paged.has_value();
  RandomInputOptions options;
  options.seed = seed;
  ProblemInputs inputs = random_inputs(drawn, options);
  round_block_scales(trial, inputs);
  return inputs;
}

ProblemInputs trial_inputs(const AttentionProblem& trial, const backend::CallParameters& parameters,
                           std::uint64_t seed) {
  ProblemInputs inputs = plain_inputs(trial, seed);
  Search(trial, parameters, inputs).run();
  return inputs;
}

}  // namespace scoremod::verification
