#include "backend/cudnn/lowering/fused_gradient.hpp"

#include <array>

#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

bool repeats(const OperandSpec& spec) {
  const auto strides = problem::strides_of(spec);
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] > 1 && strides[i] == 0) return true;
  }
  return false;
}

/// "1hqk", and ".strided" where it is not dense: as the explorer names it.
std::string pattern_key(const BiasGradient& gradient) {
  std::string key;
  std::int64_t dense = 1;
  bool is_dense = true;
  for (std::size_t axis = kAxisCount; axis-- > 0;) {
    const std::int64_t extent = gradient.tensor.dims[axis];
    const bool summed = axis < static_cast<std::size_t>(Axis::kQuery) && extent == 1;
    key.insert(key.begin(), summed ? '1' : "bhqk"[axis]);
    is_dense = is_dense && (extent == 1 || gradient.tensor.strides[axis] == dense);
    dense *= extent;
  }
  return concat(key, is_dense ? "" : ".strided");
}

}  // namespace

std::optional<std::uint32_t> fused_gradient_operand(const compiler::CompiledProblem& problem) {
  if (!problem.backward || problem.problem.deterministic) return std::nullopt;
  // It would sum the rows and keys behind the sequences' ends, too.
  if (problem.problem.tokens_q || problem.problem.tokens_kv) return std::nullopt;
  for (const compiler::OperandReduction& reduction : problem.backward->reductions) {
    const OperandSpec& spec = problem::spec_of(problem.problem, reduction.operand);
    const bool has_dtype = spec.dtype == problem.problem.dtype && spec.dtype != DType::kF32;
    const bool full = reduction.has(Axis::kQuery) && reduction.has(Axis::kKey);
    if (has_dtype && full && reduction.is_upstream && !repeats(spec)) return reduction.operand;
  }
  return std::nullopt;
}

BiasGradient bias_gradient(const AttentionProblem& problem, std::uint32_t operand) {
  const OperandDecl& decl = problem.program.operands()[operand];
  const OperandSpec& spec = problem::spec_of(problem, operand);
  const auto strides = problem::strides_of(spec);
  BiasGradient gradient;
  gradient.dtype = spec.dtype;
  gradient.tensor.dims = {1, 1, problem.seq_q, problem.seq_kv};
  // The stride of a dimension of size 1 moves nothing, but cuDNN requires it to be positive.
  gradient.tensor.strides.fill(problem.seq_q * problem.seq_kv);
  std::size_t dimension = 0;
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (!decl.axes[axis]) continue;
    gradient.tensor.dims[axis] = spec.shape[dimension];
    if (spec.shape[dimension] > 1) gradient.tensor.strides[axis] = strides[dimension];
    ++dimension;
  }
  return gradient;
}

std::string gradient_objection(const PatternTable& table, const BiasGradient& gradient) {
  const std::string pattern = concat("operand_gradient.", pattern_key(gradient));
  const PatternVerdict verdict = table.find(pattern, Direction::kBackward);
  if (verdict == PatternVerdict::kRight || verdict == PatternVerdict::kUnknown) return {};
  return concat("the pattern ", pattern, " was ", to_string(verdict), " on a device");
}

}  // namespace scoremod::backend::cudnn
