#include "property/c_api/mistakes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace scoremod::test {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

template <class Values>
auto& one_of(Values& values, Random& random) {
  return values[below(random, values.size())];
}

/// A struct_size that no header has, or bytes that are set behind the header's.
std::optional<Effect> wrong_size(DrawnSize& size, std::size_t known, Random& random) {
  constexpr std::size_t kMore = 8, kTooMany = 4097;
  switch (below(random, 5)) {
    case 0: size.claimed = 0; break;
    case 1: size.claimed = sizeof(std::size_t) - 1; break;
    case 2: size.claimed = kTooMany; break;
    case 3: size.claimed = std::numeric_limits<std::size_t>::max(); break;
    default: size = {known + kMore, std::byte{1}}; break;
  }
  return Effect::kRefused;
}

std::optional<Effect> size_of_arguments(DrawnCall& call, Random& random) {
  return wrong_size(call.args_size, struct_size_of(call.is_backward), random);
}

std::optional<Effect> size_of_options(DrawnCall& call, Random& random) {
  return wrong_size(call.options_size, sizeof(scoremod_call_options), random);
}

std::optional<Effect> size_of_sizes(DrawnCall& call, Random& random) {
  if (call.road == Road::kFixed || call.road == Road::kPrepared) return std::nullopt;
  return wrong_size(call.sizes_size, sizeof(scoremod_sizes), random);
}

std::optional<Effect> size_of_prepared_call(DrawnCall& call, Random& random) {
  if (call.road == Road::kFixed || call.road == Road::kAt) return std::nullopt;
  return wrong_size(call.call_size, sizeof(scoremod_prepared_call), random);
}

/// A caller with a newer header, who sets nothing that is new in it.
std::optional<Effect> newer_header(DrawnCall& call, Random& random) {
  const auto more = [&](std::size_t known) { return DrawnSize{known + 8 * (1 + below(random, 40))}; };
  call.args_size = more(struct_size_of(call.is_backward));
  call.options_size = more(sizeof(scoremod_call_options));
  call.sizes_size = more(sizeof(scoremod_sizes));
  call.call_size = more(sizeof(scoremod_prepared_call));
  return Effect::kSame;
}

/// A caller with an older header, or one that forgot a member.
std::optional<Effect> older_header(DrawnCall& call, Random& random) {
  call.args_size.claimed = 8 * (1 + below(random, struct_size_of(call.is_backward) / 8));
  return Effect::kOther;
}

std::optional<Effect> no_options(DrawnCall& call, Random&) {
  const scoremod_call_options& options = call.options;
  const bool has_defaults = options.has_scale == 0 && options.batch_offset == 0 && options.head_offset == 0 &&
                            options.query_offset == 0 && options.key_offset == 0 && options.dropout_seed == 0 &&
                            options.dropout_offset == 0;
  call.has_options = false;
  return has_defaults ? Effect::kSame : Effect::kOther;
}

/// Any buffer of the call.
DrawnBuffer& any_buffer(DrawnCall& call, Random& random) {
  const std::size_t operands = call.operands.elements.size(), gradients = call.d_operands.elements.size();
  std::size_t number = below(random, call.tensors.size() + operands + gradients);
  if (number < operands) return call.operands.elements[number].buffer;
  number -= operands;
  if (number < gradients) return call.d_operands.elements[number].buffer;
  return call.tensors[number - gradients].buffer;
}

std::optional<Effect> no_memory(DrawnCall& call, Random& random) {
  DrawnBuffer& buffer = any_buffer(call, random);
  const bool had_any = !buffer.contents.empty();
  buffer.is_null = true;
  if (below(random, 2) == 0) buffer.bytes = 0;
  return had_any ? Effect::kRefused : Effect::kOther;
}

std::optional<Effect> few_bytes(DrawnCall& call, Random& random) {
  DrawnBuffer& buffer = any_buffer(call, random);
  if (buffer.contents.empty()) return std::nullopt;
  buffer.bytes = below(random, buffer.bytes);
  buffer.contents.resize(buffer.bytes);
  return Effect::kRefused;
}

/// More than the tensor needs, which a call leaves alone.
std::optional<Effect> many_bytes(DrawnCall& call, Random& random) {
  DrawnBuffer& buffer = any_buffer(call, random);
  buffer.bytes += 1 + below(random, 100);
  return Effect::kSame;
}

std::optional<Effect> odd_address(DrawnCall& call, Random& random) {
  any_buffer(call, random).behind += 1 + below(random, 7);
  return Effect::kOther;
}

std::optional<Effect> missing_operand(DrawnCall& call, Random& random) {
  auto& elements = call.operands.elements;
  if (elements.empty()) return std::nullopt;
  elements.erase(elements.begin() + static_cast<std::ptrdiff_t>(below(random, elements.size())));
  return Effect::kOther;  // some are for gradients alone
}

/// A name that no operand has, or none.
std::optional<Effect> wrong_name(DrawnCall& call, Random& random) {
  auto& elements = (below(random, 2) == 0 ? call.operands : call.d_operands).elements;
  if (elements.empty()) return std::nullopt;
  std::optional<std::string>& name = one_of(elements, random).name;
  switch (below(random, 4)) {
    case 0: name.reset(); break;
    case 1: name = ""; break;
    case 2: *name += "\xff"; break;
    default: name->append(below(random, 10000), 'x') += "y"; break;
  }
  return Effect::kRefused;
}

std::optional<Effect> same_name_twice(DrawnCall& call, Random& random) {
  auto& elements = (below(random, 2) == 0 ? call.operands : call.d_operands).elements;
  if (elements.empty()) return std::nullopt;
  elements.push_back(one_of(elements, random));
  return Effect::kRefused;
}

std::optional<Effect> null_array(DrawnCall& call, Random& random) {
  auto& array = below(random, 2) == 0 ? call.operands : call.d_operands;
  array.claimed = array.elements.empty() ? 1 + below(random, 3) : array.elements.size();
  array.is_null = true;
  if (&array == &call.d_operands && !call.is_backward) return std::nullopt;
  return Effect::kRefused;
}

/// Gradients that nobody wants, which a caller leaves out.
std::optional<Effect> few_gradients(DrawnCall& call, Random&) {
  if (call.d_operands.elements.empty()) return std::nullopt;
  call.d_operands.elements.pop_back();
  return Effect::kOther;
}

std::optional<Effect> gradient_of_something_else(DrawnCall& call, Random& random) {
  if (!call.is_backward || call.operands.elements.empty()) return std::nullopt;
  const DrawnOperand& operand = one_of(call.operands.elements, random);
  const auto has_name = [&](const DrawnOperand& gradient) { return gradient.name == operand.name; };
  if (std::ranges::any_of(call.d_operands.elements, has_name)) return std::nullopt;
  call.d_operands.elements.push_back(operand);
  return Effect::kRefused;
}

/// Offsets that a call may have only if its problem says so, and beyond what indices may be.
std::optional<Effect> wild_offset(DrawnCall& call, Random& random) {
  constexpr std::array<std::int32_t, 5> kWild{-1, std::numeric_limits<std::int32_t>::min(),
                                              std::numeric_limits<std::int32_t>::max(), 1 << 30, (1 << 30) + 1};
  scoremod_call_options& options = call.options;
  std::array offsets{&options.batch_offset, &options.head_offset, &options.query_offset, &options.key_offset};
  *one_of(offsets, random) = one_of(kWild, random);
  return Effect::kRefused;
}

std::optional<Effect> wild_scale(DrawnCall& call, Random& random) {
  constexpr std::array<float, 4> kWild{0, std::numeric_limits<float>::infinity(),
                                       std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max()};
  call.options.has_scale = 7;
  call.options.scale = one_of(kWild, random);
  return std::isfinite(call.options.scale) ? Effect::kOther : Effect::kRefused;
}

std::optional<Effect> wrong_workspace(DrawnCall& call, Random& random) {
  constexpr std::size_t kBytes = 64;
  call.workspace.is_null = below(random, 2) == 0;
  call.workspace.contents.assign(below(random, kBytes), std::byte{0});
  call.workspace.bytes = call.workspace.contents.size();
  return Effect::kNeeds;
}

/// Whole numbers that lengths, offsets, page tables and indices don't have. A call refuses them, or reads what they
/// name nowhere else.
std::optional<Effect> wild_integers(DrawnCall& call, Random& random) {
  constexpr std::array<std::int32_t, 6> kWild{
      -1, 1 << 20, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), 0, 7};
  if (call.operands.elements.empty()) return std::nullopt;
  std::vector<std::byte>& contents = one_of(call.operands.elements, random).buffer.contents;
  if (contents.size() < sizeof(std::int32_t)) return std::nullopt;
  const std::int32_t number = one_of(kWild, random);
  std::memcpy(&contents[sizeof number * below(random, contents.size() / sizeof number)], &number, sizeof number);
  return Effect::kOther;
}

std::int64_t wild_size(std::int64_t right, Random& random) {
  const std::array<std::int64_t, 8> wild{0,
                                         -1,
                                         right - 1,
                                         right + 1,
                                         std::int64_t{1} << 31,
                                         std::int64_t{1} << 62,
                                         std::numeric_limits<std::int64_t>::max(),
                                         std::numeric_limits<std::int64_t>::min()};
  return one_of(wild, random);
}

std::optional<Effect> wild_sizes(DrawnCall& call, Random& random) {
  if (call.road == Road::kFixed || call.road == Road::kPrepared) return std::nullopt;
  Sizes& s = call.sizes;
  std::array sizes{&s.batch,     &s.heads_q, &s.heads_kv,           &s.seq_q, &s.seq_kv, &s.tokens_q,
                   &s.tokens_kv, &s.blocks,  &s.blocks_per_sequence};
  std::int64_t& size = *one_of(sizes, random);
  size = wild_size(size, random);
  s.takes_zeros = below(random, 2) == 0;
  return Effect::kOther;
}

std::optional<Effect> wild_strides(DrawnCall& call, Random& random) {
  if (call.road == Road::kFixed || call.road == Road::kPrepared) return std::nullopt;
  Sizes& s = call.sizes;
  std::array strides{&s.q, &s.k, &s.v, &s.o, &s.d_o, &s.dq, &s.dk, &s.dv};
  std::optional<Strides>& tensor = *one_of(strides, random);
  if (!tensor) tensor = Strides{1, 1, 1, 1};
  std::array members{&tensor->batch, &tensor->head, &tensor->sequence, &tensor->dim};
  std::int64_t& stride = *one_of(members, random);
  stride = wild_size(stride, random);
  return Effect::kOther;
}

std::optional<Effect> wild_shapes(DrawnCall& call, Random& random) {
  if (call.road == Road::kFixed || call.road == Road::kPrepared || call.sizes.operands.empty()) return std::nullopt;
  OperandSizes& operand = one_of(call.sizes.operands, random);
  auto& numbers = below(random, 2) == 0 ? operand.shape : operand.strides;
  switch (below(random, 3)) {
    case 0: numbers.resize(below(random, 8)); break;
    case 1: operand.name += "x"; break;
    default:
      if (numbers.empty()) return std::nullopt;
      std::int64_t& number = one_of(numbers, random);
      number = wild_size(number, random);
  }
  return Effect::kOther;
}

}  // namespace

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> kAll{{"size of the arguments", size_of_arguments},
                                         {"size of the options", size_of_options},
                                         {"size of the sizes", size_of_sizes},
                                         {"size of the prepared call", size_of_prepared_call},
                                         {"a newer header", newer_header},
                                         {"an older header", older_header},
                                         {"no options", no_options},
                                         {"no memory", no_memory},
                                         {"few bytes", few_bytes},
                                         {"many bytes", many_bytes},
                                         {"an odd address", odd_address},
                                         {"a missing operand", missing_operand},
                                         {"a wrong name", wrong_name},
                                         {"the same name twice", same_name_twice},
                                         {"a null array", null_array},
                                         {"few gradients", few_gradients},
                                         {"a gradient of something else", gradient_of_something_else},
                                         {"a wild offset", wild_offset},
                                         {"a wild scale", wild_scale},
                                         {"a wrong workspace", wrong_workspace},
                                         {"wild integers", wild_integers},
                                         {"wild sizes", wild_sizes},
                                         {"wild strides", wild_strides},
                                         {"wild shapes", wild_shapes}};
  return kAll;
}

}  // namespace scoremod::test
