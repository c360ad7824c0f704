#include "problem/stored_unit.hpp"

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::problem {

StoredUnit::StoredUnit(const AttentionProblem& problem, TensorRole role) : is_scale_(role == TensorRole::kO) {
  const char* name = is_scale_ ? kScaleOfOutput : descale_of(role);
  if (!is_tensor_scale(problem, name) || has_block_scales(problem, name)) return;
  operand_ = operand_number(problem.program, name);
  if (!operand_) fail_bug("a problem with FP8 tensors whose program does not declare '", name, "'");
  if (has_head_scales(problem, name)) head_step_ = strides_of(spec_of(problem, *operand_))[0];
}

double StoredUnit::bound(std::span<const void* const> operands, std::int64_t head) const {
  return load_element<double>(operands[*operand_], DType::kF32, head * head_step_);
}

double StoredUnit::of(std::span<const void* const> operands, std::int64_t head) const {
  if (!operand_) return 1;
  return is_scale_ ? 1 / bound(operands, head) : bound(operands, head);
}

double StoredUnit::scale(std::span<const void* const> operands) const {
  if (!operand_) return 1;
  return is_scale_ ? bound(operands, 0) : 1 / bound(operands, 0);
}

}  // namespace scoremod::problem
