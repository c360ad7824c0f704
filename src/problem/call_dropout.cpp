#include "problem/call_dropout.hpp"

#include <algorithm>
#include <array>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::problem {

std::size_t DropoutPlaces::run(std::int64_t index, std::size_t most) const {
  // A counter that goes around its 32 bits is where a run ends, too.
  const std::uint64_t left = (std::uint64_t{1} << 32) - static_cast<std::uint64_t>(at(index));
  const std::uint64_t stripe = tokens == 0 ? most : tokens - static_cast<std::uint32_t>(index) % tokens;
  return static_cast<std::size_t>(std::min<std::uint64_t>({most, stripe, left}));
}

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
  if (keys_ == nullptr) return {mask_, offsets_.batch + b, offsets_.head, {}, {}};
  const auto strides = strides_of(*keys_);
  std::array<std::uint32_t, kPlacedDropoutKeyWords> words{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(keys_->shape[1]); ++i) {
    const std::int64_t place = b * strides[0] + static_cast<std::int64_t>(i) * strides[1];
    words[i] = static_cast<std::uint32_t>(load_element<std::int64_t>(operands_[operand_], DType::kI32, place));
  }
  return {DropoutMask(probability_, {words[0], words[1]}),
          words[2],
          std::int64_t{words[3]} + offsets_.head,
          {words[4], words[5], words[6]},
          {words[7], words[8], words[9]}};
}

void CallDropout::drop(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t first, std::size_t count,
                       float* weights) const {
  const Batch batch = of_batch(b);
  const std::int64_t query = batch.queries.at(offsets_.query + q);
  for (std::size_t done = 0; done < count;) {
    const std::int64_t key = offsets_.key + first + static_cast<std::int64_t>(done);
    const std::size_t run = batch.keys.run(key, count - done);
    batch.mask.drop(batch.counter, batch.first_head + h, query, batch.keys.at(key), run, weights + done);
    done += run;
  }
}

}  // namespace scoremod::problem
