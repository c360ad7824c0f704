#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The targets of some operands of a problem with backward, ascending by sum. Kernels that do nothing else sum all, and
/// none along diagonals. Beside dq, dk and dv there are none if one of them cannot be summed there. Such are a table
/// whose indices follow from more than kv_idx - q_idx, a bias that batches or heads share, and an operand that nothing
/// contributes to.
std::vector<OperandTarget> operand_targets(const compiler::CompiledProblem& problem,
                                           std::span<const std::uint32_t> operands, Gains gains);

/// Beside dq, dk and dv more targets than this would leave a thread no registers.
inline constexpr std::size_t kMaxTargets = 6;

/// The number of entries of all tables whose gradients are summed together.
inline constexpr std::int64_t kMaxTableEntries = std::numeric_limits<std::int32_t>::max();
std::int64_t table_entries(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets);

/// Whether one of them is summed along diagonals, which Hopper's kernel of dq alone does.
bool has_differences(std::span<const OperandTarget> targets);

/// The most keys that kernels with sums along diagonals take at once.
inline constexpr int kMaxDiagonalStep = 64;

/// The name of the kernel that writes a target's gradient; of one of OperandSum::kTable or kDifference, that which
/// clears its sums, and of the latter that which adds to them.
std::string total_kernel(const OperandTarget& target);
std::string clear_kernel(const OperandTarget& target);
std::string diagonals_kernel(const OperandTarget& target);

/// The kernels that write gradients from sums.
inline constexpr std::string_view kTotalsFile = "backend/kernels/operand_gradients/totals.cuh";

/// The parts of a backward's text that operands' gradients put into it, in the order in which its holes number the
/// targets. There may be no targets.
class OperandText {
 public:
  OperandText(const compiler::CompiledProblem& compiled, std::span<const OperandTarget> targets);

  /// One for each place where a table of OperandSum::kTable is read.
  std::size_t table_reads() const;
  /// All but sinks and those that nothing contributes to, with one for each of these reads.
  std::size_t targets() const;

  /// The structure of texts that follow from the derivative and the targets; empty bytes without targets.
  Bytes structure() const;
  /// Fills the holes of shared/derivative.cuh that say which targets there are.
  void fill_targets(Holes& holes) const;
  /// Fills the holes of kernels that sum operand gradients and do nothing else.
  void fill_tile_sums(Holes& holes) const;
  /// Fills the holes of kTotalsFile.
  void fill_totals(Holes& holes) const;

  /// The gradients of these targets at an element, in the text of its derivative: the definitions, and the list of
  /// them. `source` has written the values of the forward, and nothing that depends on the upstream gradient.
  std::string statements(cuda::ProgramSource& source) const;
  std::string contributions() const;
  /// The nodes that are contributions.
  std::vector<NodeId> adjoints() const;

 private:
  bool is_large(std::size_t most) const { return derivative_.nodes().size() > most; }
  std::size_t count(OperandSum sum) const;
  std::string numbers(std::initializer_list<OperandSum> sums) const;
  /// Whether the operand has entries of its own for each index of this axis, in a call: a dimension of 1 has not.
  std::string varies(const OperandDecl& decl, Axis axis) const;
  std::string store(const OperandTarget& target) const;
  std::string offset(const OperandTarget& target) const;
  int difference_rank() const;
  std::string shared_elements() const;
  std::string totals() const;
  std::string difference_total(const OperandTarget& target) const;
  /// The roots that contribute to an operand's gradient.
  std::vector<const Root*> roots_of(std::uint32_t operand) const;
  /// The number of a table's entry that a root reads, of statements that have defined its indices; these are the
  /// second.
  std::string entry_of(const Root& root) const;
  std::span<const NodeId> indices_of(const Root& root) const;
  int rank_of(std::uint32_t operand) const;
  std::string entries(cuda::ProgramSource& source) const;
  std::string element_stores() const;
  std::string sink_store() const;

  const AttentionProblem& problem_;
  const Program& derivative_;
  std::span<const OperandTarget> targets_;
};

/// Adds each target's sums to the workspace. With `by_columns` a kernel that walks along columns of tiles adds up those
/// of OperandSum::kTotal and kDifference, else one that walks along rows.
void add_sums(CallLayout& layout, const AttentionProblem& problem, std::span<const OperandTarget> targets,
              const TileShape& shape, bool by_columns = false);
/// Adds the kernels that clear exact sums.
void add_clears(CallLayout& layout, const AttentionProblem& problem, std::span<const OperandTarget> targets);
/// Adds the kernels that write a target's gradient from its sums. There are none of OperandSum::kShared.
void add_total(CallLayout& layout, const AttentionProblem& problem, const OperandTarget& target);
/// Adds the sums of the work's operand gradients, and after the kernels that add them up those that write gradients.
void add_gains(CallLayout& layout, const Work& work, const TileShape& shape, bool by_columns = false);

/// The number of an operand's values.
std::int64_t entries_of(const AttentionProblem& problem, std::uint32_t operand);

}  // namespace scoremod::backend::kernels
