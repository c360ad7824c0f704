#include "support/mask_data.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/builder.hpp"

namespace scoremod::test {
namespace {

using Value = ir::Scalar<float>;

/// SplitMix64 (Steele, Lea, Flood 2014): a well mixed word for each input.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void widen(analysis::ValueRange& range, const Value& value, Type type, bool& first) {
  const double number = type == Type::kF32 ? value.f : type == Type::kI32 ? value.i : (value.b ? 1 : 0);
  if (std::isnan(number)) {
    range.maybe_nan = true;
    return;
  }
  range.lo = first ? number : std::min(range.lo, number);
  range.hi = first ? number : std::max(range.hi, number);
  first = false;
}

}  // namespace

Value MaskData::value(std::uint32_t number, std::uint64_t place) const {
  const std::uint64_t word = mixed(seed_ ^ mixed(place * 64 + number));
  Value out;
  out.b = (word & 1) != 0;
  out.i = static_cast<std::int32_t>((word >> 1) % 13) - 3;
  out.f = static_cast<float>(out.i) + ((word >> 8) % 2 == 0 ? 0.0f : 0.5f);
  if ((word >> 16) % 16 == 0) out.f = std::numeric_limits<float>::quiet_NaN();
  if ((word >> 16) % 16 == 1) out.f = std::numeric_limits<float>::infinity();
  return out;
}

Value MaskData::operand(std::uint32_t number, const Element4& at) const {
  std::uint64_t place = 0;
  const OperandDecl& decl = program_.operands()[number];
  for (std::size_t i = 0; i < at.size(); ++i) {
    place = mixed(place) + (decl.axes[i] ? static_cast<std::uint64_t>(at[i]) : 0);
  }
  return value(number, place);
}

Value MaskData::table(std::uint32_t number, std::span<const std::int32_t> indices) const {
  std::uint64_t place = 0;
  for (const std::int32_t index : indices) {
    place = place * kExtent + static_cast<std::uint64_t>(std::clamp(index, 0, kExtent - 1));
  }
  return value(number, place);
}

std::vector<Value> MaskData::evaluate(const Element4& at, float score) const {
  std::vector<Value> values;
  for (const Node& node : program_.nodes()) {
    std::array<Value, kMaxArgs> args;
    std::array<std::int32_t, kMaxArgs> indices{};
    for (std::size_t i = 0; i < node.arg_count; ++i) {
      args[i] = values[node.args[i]];
      indices[i] = args[i].i;
    }
    Value out;
    switch (node.op) {
      case Op::kScore: out.f = score; break;
      case Op::kBatchIdx: out.i = at[0]; break;
      case Op::kHeadIdx: out.i = at[1]; break;
      case Op::kQueryIdx: out.i = at[2]; break;
      case Op::kKeyIdx: out.i = at[3]; break;
      case Op::kConstant: out = ir::constant_value<float>(node); break;
      case Op::kOperand: out = operand(node.payload, at); break;
      case Op::kGather: out = table(node.payload, std::span(indices.data(), node.arg_count)); break;
      default:
        out =
            ir::eval_op(node, program_.nodes()[node.args[0]].type, std::span<const Value>(args.data(), node.arg_count));
    }
    values.push_back(out);
  }
  return values;
}

bool MaskData::keep(const Element4& at) const { return program_.keep() == kNoNode || evaluate(at)[program_.keep()].b; }

analysis::ValueRange MaskDataRanges::broadcast(std::uint32_t operand, Type type) const {
  analysis::ValueRange range;
  bool first = true;
  for (std::int64_t q = tile_[2].first; q <= tile_[2].last; ++q) {
    for (std::int64_t kv = tile_[3].first; kv <= tile_[3].last; ++kv) {
      const Element4 at{static_cast<std::int32_t>(tile_[0].first), static_cast<std::int32_t>(tile_[1].first),
                        static_cast<std::int32_t>(q), static_cast<std::int32_t>(kv)};
      widen(range, data_.operand(operand, at), type, first);
    }
  }
  return range;
}

analysis::ValueRange MaskDataRanges::table(std::uint32_t operand, Type type,
                                           std::span<const analysis::ValueRange> indices) const {
  analysis::ValueRange range;
  bool first = true;
  for (std::int32_t i = 0; i < MaskData::kExtent; ++i) {
    for (std::int32_t j = 0; j < MaskData::kExtent; ++j) {
      const std::array at{i, j};
      bool inside = true;
      for (std::size_t k = 0; k < indices.size(); ++k) {
        const double lo = std::clamp(indices[k].lo, 0.0, MaskData::kExtent - 1.0);
        const double hi = std::clamp(indices[k].hi, 0.0, MaskData::kExtent - 1.0);
        inside = inside && at[k] >= lo && at[k] <= hi;
      }
      if (inside) widen(range, data_.table(operand, std::span(at.data(), indices.size())), type, first);
    }
  }
  return range;
}

}  // namespace scoremod::test
