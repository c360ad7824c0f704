#include "problem/call_dropout.hpp"

#include <array>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::problem {

CallDropout::CallDropout(const AttentionProblem& problem, std::uint64_t seed, std::uint64_t offset,
                         const IndexOffsets& offsets, std::span<const void* const> operands)
    : mask_(problem.dropout, seed, offset), offsets_(offsets), probability_(problem.dropout), operands_(operands) {
  if (!problem.dropout_keys) return;
  const auto number = operand_number(problem.program, kDropoutKeys);
  if (!number) fail_bug("a problem with keys of dropout whose program does not declare them");
  operand_ = *number;
  keys_ = &spec_of(problem, operand_);
}

CallDropout::Batch CallDropout::of_batch(std::int64_t b) const {
  if (keys_ == nullptr) return {mask_, offsets_.batch + b, offsets_.head};
  const auto strides = strides_of(*keys_);
  std::array<std::uint32_t, kDropoutKeyWords> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::int64_t place = b * strides[0] + static_cast<std::int64_t>(i) * strides[1];
    words[i] = static_cast<std::uint32_t>(load_element<std::int64_t>(operands_[operand_], DType::kI32, place));
  }
  return {DropoutMask(probability_, {words[0], words[1]}), words[2], std::int64_t{words[3]} + offsets_.head};
}

}  // namespace scoremod::problem
