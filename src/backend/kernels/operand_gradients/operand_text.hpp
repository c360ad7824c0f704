#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/program_source.hpp"
#include "backend/kernels/operand_gradients/operand_target.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The kernels that write gradients from sums.
inline constexpr std::string_view kTotalsFile = "backend/kernels/operand_gradients/totals.cuh";

/// The parts of a text that operands' gradients put into it, in the order in which its holes number the targets. There
/// may be no targets; the problem has a backward where there are some.
class OperandText {
 public:
  OperandText(const compiler::CompiledProblem& compiled, std::span<const OperandTarget> targets);

  /// The targets of rows, of keys, and all but sinks and those that nothing contributes to.
  std::size_t row_targets() const;
  std::size_t key_targets() const;
  std::size_t difference_targets() const;
  /// One for each place where a table of OperandSum::kTable is read.
  std::size_t table_reads() const;
  std::size_t shared_targets() const;
  /// With one for each of these reads.
  std::size_t targets() const;

  /// The structure of texts that follow from the derivative and the targets; empty bytes without targets.
  Bytes structure() const;
  /// Fills the holes of operand_gradients/targets.cuh, which all kernels include.
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
  bool is_large(std::size_t most) const { return derivative_->nodes().size() > most; }
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
  const Program* derivative_;
  std::span<const OperandTarget> targets_;
};

}  // namespace scoremod::backend::kernels
