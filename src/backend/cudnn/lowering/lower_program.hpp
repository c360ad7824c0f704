#pragma once

#include <optional>
#include <vector>

#include "analysis/dependence.hpp"
#include "analysis/interval.hpp"
#include "backend/cudnn/lowering/graph_writer.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "backend/cudnn/lowering/merged_bound.hpp"
#include "backend/cudnn/lowering/operand_pattern.hpp"

namespace scoremod::backend::cudnn {

/// The program that a direction runs.
const Program& program_of(const compiler::CompiledProblem& problem, const LoweringOptions& options);

/// The name of the pattern that says that row vectors (see operand_pattern.hpp) are read so often.
std::string row_vector_pattern(int uses);

/// How tensors with an entry for each row and none for each key are lowered, because cuDNN takes few reads of them.
enum class RowVectors : std::uint8_t {
  kDirect,  ///< every node that needs one reads it
  kLifted,  ///< a single node reads each; tensors beyond the limit get an axis along keys, too
  kNone,    ///< all are given along keys, too
};

/// Writes a whole program as a modifier graph, given which of its nodes are computed operands.
class ProgramLowering {
 public:
  /// `computed[node]` says that a node is bound instead of written. The lowering adds nodes that have no pattern but do
  /// not depend on the score, and those that are best computed with them. Its graph may then hold nodes that nothing
  /// reads, so a caller runs it again until it adds none.
  ProgramLowering(const compiler::CompiledProblem& problem, const LoweringOptions& options,
                  const std::vector<analysis::Dependence>& dependence, RowVectors row_vectors,
                  std::vector<bool>& computed, LoweredModifier& out);

  /// Throws NoPattern if no allowed pattern fits.
  void run();

  /// True for the nodes that run() wrote or bound.
  bool is_needed(NodeId id) const { return values_[id].has_value(); }

 private:
  void adjoint();
  Value no_gradient();
  Value mask(Value value);
  Value keep_where(Value condition, Value value);
  bool has_pattern(const masks::Band& band) const;
  Value keep_in(const masks::Band& band, Value value);
  Value cut_tail(Value x, float outside);
  Value cut_sequences(Value d_score);
  std::optional<Value> inside();

  Value visit(NodeId root);
  void push_needs(NodeId id, std::vector<NodeId>& needed) const;
  Value lower(NodeId id);
  bool belongs_to_computed(NodeId id) const;
  Value write(NodeId id);
  Value logic(const Node& node);
  Value cast(NodeId id);
  std::optional<MergedBound> merged(const Node& node) const;
  bool difference_may_wrap(const Node& node) const;
  std::optional<Value> factor_for_division(const Node& node) const;
  Value leaf(const Node& node);
  Value index(Axis axis);
  Value operand(std::uint32_t number);
  Value bind_computed(NodeId id);
  bool is_allowed(const OperandTensor& tensor, const OperandPattern& pattern) const;
  std::optional<Value> bind(const OperandTensor& tensor, const TensorBinding& binding, Type type);

  const compiler::CompiledProblem& problem_;
  const Program& program_;
  const LoweringOptions& options_;
  const std::vector<analysis::Dependence>& dependence_;
  const RowVectors row_vectors_;
  std::vector<bool>& computed_;
  std::array<std::int64_t, kAxisCount> sizes_;
  LoweredModifier& out_;
  GraphWriter writer_;
  std::vector<analysis::ValueRange> ranges_;
  std::vector<bool> is_factor_;
  int lifted_ = 0;
  std::vector<std::optional<Value>> values_;
};

}  // namespace scoremod::backend::cudnn
