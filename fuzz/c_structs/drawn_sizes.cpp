#include "c_structs/drawn_sizes.hpp"

#include <limits>

#include "scoremod/problem.hpp"

namespace scoremod::fuzz {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kEnds[] = {
    offsetof(scoremod_sizes, takes_zeros), offsetof(scoremod_sizes, operand_count),
    offsetof(scoremod_sizes, operands),    offsetof(scoremod_sizes, dk),
    offsetof(scoremod_sizes, q),           offsetof(scoremod_sizes, blocks),
    offsetof(scoremod_sizes, batch),
};

std::int64_t draw_number(Choices& choices, std::int64_t right) {
  return choices.right_or<std::int64_t>(right, {0, 1, 2, 50, -1, 1 << 30, (1 << 30) + 1, kLargest, -kLargest - 1});
}

std::optional<std::array<std::int64_t, 8>> draw_numbers(Choices& choices) {
  if (choices.byte() % 2 == 0) return std::nullopt;
  std::array<std::int64_t, 8> numbers{};
  for (std::int64_t& number : numbers) number = draw_number(choices, 5);
  return numbers;
}

DrawnOperandSizes draw_operand(Choices& choices) {
  DrawnOperandSizes operand;
  operand.name =
      choices.among<const char*>({"bias", "gain", "slopes", "ids", "kept", "lengths_kv", "nothing", nullptr});
  operand.shape = draw_numbers(choices);
  operand.strides = draw_numbers(choices);
  operand.rank = choices.among<std::size_t>({2, 0, 1, 4, 8});
  if (!operand.shape && !operand.strides) operand.rank = choices.among<std::size_t>({2, 0, 100, ~std::size_t{0}});
  return operand;
}

using StridesField = const scoremod_strides* scoremod_sizes::*;
constexpr StridesField kStrides[] = {&scoremod_sizes::q,  &scoremod_sizes::k,   &scoremod_sizes::v,
                                     &scoremod_sizes::o,  &scoremod_sizes::d_o, &scoremod_sizes::dq,
                                     &scoremod_sizes::dk, &scoremod_sizes::dv};

std::optional<Strides> plain(const scoremod_strides* strides) {
  if (strides == nullptr) return std::nullopt;
  return Strides{strides->batch, strides->head, strides->sequence, strides->dim};
}

std::vector<OperandSizes> plain(const scoremod_operand_sizes* operands, std::size_t count) {
  if (count > 0 && operands == nullptr) refuse("an array that is NULL");
  std::vector<OperandSizes> made;
  for (std::size_t i = 0; i < count; ++i) {
    const scoremod_operand_sizes& operand = operands[i];
    if (operand.name == nullptr) refuse("a name that is NULL");
    if (operand.rank > static_cast<std::size_t>(kMaxTableRank)) refuse("a rank that no table has");
    OperandSizes& sizes = made.emplace_back();
    sizes.name = operand.name;
    if (operand.shape != nullptr) sizes.shape.assign(operand.shape, operand.shape + operand.rank);
    if (operand.strides != nullptr) sizes.strides.assign(operand.strides, operand.strides + operand.rank);
  }
  return made;
}

}  // namespace

DrawnSizes draw_sizes(Choices& choices, const DrawnProblem& problem) {
  DrawnSizes drawn;
  if (choices.byte() == 1) return drawn;
  const Sizes& right = problem.sizes;
  scoremod_sizes sizes{};
  sizes.batch = draw_number(choices, right.batch);
  sizes.heads_q = draw_number(choices, right.heads_q);
  sizes.heads_kv = draw_number(choices, right.heads_kv);
  sizes.seq_q = draw_number(choices, right.seq_q);
  sizes.seq_kv = draw_number(choices, right.seq_kv);
  sizes.tokens_q = draw_number(choices, right.tokens_q);
  sizes.tokens_kv = draw_number(choices, right.tokens_kv);
  sizes.blocks = draw_number(choices, right.blocks);
  sizes.blocks_per_sequence = draw_number(choices, right.blocks_per_sequence);
  sizes.takes_zeros = choices.among({0, 1, -1});
  for (auto& strides : drawn.strides) {
    if (!choices.rarely()) continue;
    strides.emplace();
    for (std::int64_t* stride : {&strides->batch, &strides->head, &strides->sequence, &strides->dim})
      *stride = choices.among<std::int64_t>({1, 16, 64, 1000, 0, -1, kLargest, 1 << 30});
  }
  for (int left = choices.byte() % 4 == 1 ? 2 : 0; left > 0; --left) drawn.operands.push_back(draw_operand(choices));
  sizes.operand_count = drawn.operands.size();
  if (drawn.operands.empty()) sizes.operand_count = choices.right_or<std::size_t>(0, {1, ~std::size_t{0}});
  drawn.sizes = sizes;
  drawn.size = draw_size(choices, sizeof sizes, kEnds);
  return drawn;
}

MadeSizes::MadeSizes(const DrawnSizes& drawn) {
  if (!drawn.sizes) return;
  scoremod_sizes sizes = *drawn.sizes;
  for (std::size_t i = 0; i < drawn.strides.size(); ++i) {
    if (drawn.strides[i]) sizes.*kStrides[i] = &*drawn.strides[i];
  }
  for (const DrawnOperandSizes& operand : drawn.operands)
    operands_.push_back({operand.name, operand.rank, operand.shape ? operand.shape->data() : nullptr,
                         operand.strides ? operand.strides->data() : nullptr});
  sizes.operands = operands_.empty() ? nullptr : operands_.data();
  given_.emplace(sizes, drawn.size);
}

Sizes MadeSizes::plain() const {
  if (!given_) refuse("sizes that are NULL");
  const scoremod_sizes s = given_->understood();
  return {s.batch,           s.heads_q,          s.heads_kv,
          s.seq_q,           s.seq_kv,           s.tokens_q,
          s.tokens_kv,       s.blocks,           s.blocks_per_sequence,
          fuzz::plain(s.q),  fuzz::plain(s.k),   fuzz::plain(s.v),
          fuzz::plain(s.o),  fuzz::plain(s.d_o), fuzz::plain(s.dq),
          fuzz::plain(s.dk), fuzz::plain(s.dv),  fuzz::plain(s.operands, s.operand_count),
          s.takes_zeros != 0};
}

}  // namespace scoremod::fuzz
