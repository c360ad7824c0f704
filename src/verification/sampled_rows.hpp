#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "scoremod/inputs.hpp"

#include "backend/plan.hpp"
#include "backend/reference/interpreter.hpp"

namespace scoremod::verification {

/// The kinds of rows that a trial should have. The numbers are places in a cycle of rows.
enum class Goal : std::uint8_t { kEmpty = 1, kSingle = 2, kLow = 3, kHigh = 4 };

/// Rows of a cycle; the goals have one each, so that at least half of the rows are unchanged.
inline constexpr std::int64_t kCycle = 8;

/// A row's place in the cycle, different from head to head.
std::int64_t place_of(std::int64_t b, std::int64_t h, std::int64_t i);
bool belongs(Goal goal, std::int64_t place);

/// How many of the sampled rows are of each kind.
struct Census {
  int rows = 0;
  int empty = 0, single = 0, low = 0, high = 0;
  double move = 0;      ///< the most that rounding the score moves a value; infinite where one is NaN or infinite
  double farthest = 0;  ///< the largest magnitude of a row's largest value

  int count(Goal goal) const;
};

/// The parts of a program that the sampled rows reach.
struct Reach {
  int rows = 0;
  int kept = 0;   ///< rows that keep a key
  int sides = 0;  ///< of the conditions that the score does not decide: how often one was true, or false, somewhere
  /// Whether a side that was not reached, or that no key is kept, hangs on the batch's or the head's index.
  bool needs_batches = false, needs_heads = false;
  bool complete = false;  ///< every side was reached, and a quarter of the rows keep a key

  /// Whether a trial with this reach shows more of the program than one with the other's.
  bool shows_more_than(const Reach& other) const;
};

/// Evaluates a problem's program on sampled rows, with scores that only look like the real ones.
class SampledRows {
 public:
  /// `problem` must outlive it.
  SampledRows(const AttentionProblem& problem, const IndexOffsets& offsets) : problem_(problem), offsets_(offsets) {}

  /// `shift` is added to the scores of the rows at `shifted`.
  Census take(const ProblemInputs& inputs, std::optional<Goal> shifted = {}, double shift = 0) const;
  Reach reach(const ProblemInputs& inputs) const;

 private:
  using Program = backend::reference::Interpreter<double>;
  using Element = backend::reference::Element;

  /// Calls visit(program, the row's first element) for each sampled row.
  void for_rows(const ProblemInputs& inputs, const std::function<void(Program&, Element)>& visit) const;
  void count_row(Program& program, Element at, std::int64_t step, double shift, Census& census) const;

  const AttentionProblem& problem_;
  const IndexOffsets offsets_;
};

}  // namespace scoremod::verification
