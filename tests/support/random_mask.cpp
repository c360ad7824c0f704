#include "support/random_mask.hpp"

#include <array>
#include <limits>

#include "ir/builder.hpp"

namespace scoremod::test {
namespace {

constexpr std::array kComparisons{Op::kEq, Op::kNe, Op::kLt, Op::kLe, Op::kGt, Op::kGe};

class Generator {
 public:
  explicit Generator(std::mt19937_64& random) : random_(random) {
    length_ = builder_.declare({"length", Type::kI32, {true, false, false, false}, 0});
    query_id_ = builder_.declare({"query_id", Type::kI32, {true, false, true, false}, 0});
    key_id_ = builder_.declare({"key_id", Type::kI32, {true, false, false, true}, 0});
    slope_ = builder_.declare({"slope", Type::kF32, {false, true, false, false}, 0});
    flag_ = builder_.declare({"flag", Type::kBool, {false, false, false, true}, 0});
    table_ = builder_.declare({"ids", Type::kI32, {}, 2});
  }

  Program make_with_value(int depth) {
    const NodeId keep = below(2) == 0 ? kNoNode : truth(depth - 1);
    return builder_.finish(value(depth), keep);
  }
  Program make(int depth) { return builder_.finish(builder_.leaf(Op::kScore), truth(depth)); }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  NodeId truth(int depth) {
    if (depth > 0) {
      switch (below(7)) {
        case 0:
        case 1: return builder_.make(Op::kAnd, {truth(depth - 1), truth(depth - 1)});
        case 2: return builder_.make(Op::kOr, {truth(depth - 1), truth(depth - 1)});
        case 3: return builder_.make(Op::kXor, {truth(depth - 1), truth(depth - 1)});
        case 4: return builder_.make(Op::kNot, {truth(depth - 1)});
        case 5: return builder_.make(Op::kSelect, {truth(depth - 1), truth(depth - 1), truth(depth - 1)});
        default: break;
      }
    }
    return atom(depth);
  }

  NodeId value(int depth) {
    if (depth <= 0) {
      if (below(2) == 0) return builder_.leaf(Op::kScore);
      return builder_.constant(below(2) == 0 ? -std::numeric_limits<float>::infinity() : 1.5f);
    }
    constexpr std::array kUnary{Op::kFloor, Op::kCeil, Op::kNeg, Op::kTanh, Op::kRelu, Op::kToF32};
    constexpr std::array kBinary{Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMin, Op::kMax};
    switch (below(6)) {
      case 0: return builder_.make(kUnary[static_cast<std::size_t>(below(6))], {value(depth - 1)});
      case 1:
      case 2: {
        const NodeId x = value(depth - 1);
        const NodeId y = below(3) == 0 ? value(depth - 1) : real(below(2));
        const Op op = kBinary[static_cast<std::size_t>(below(6))];
        return below(2) == 0 ? builder_.make(op, {x, y}) : builder_.make(op, {y, x});
      }
      default: return builder_.make(Op::kSelect, {truth(1), value(depth - 1), value(depth - 1)});
    }
  }

  NodeId atom(int depth) {
    const Op op = kComparisons[static_cast<std::size_t>(below(6))];
    switch (below(12)) {
      case 0: return builder_.operand(flag_);
      case 1: return builder_.constant(below(2) == 0);
      case 2: return builder_.make(Op::kToBool, {integer(depth)});
      case 3:
      case 4: return builder_.make(op, {real(depth), real(depth)});
      case 5: return builder_.make(op, {builder_.leaf(Op::kQueryIdx), builder_.leaf(Op::kKeyIdx)});
      default: return builder_.make(op, {integer(depth), integer(depth)});
    }
  }

  NodeId integer_leaf() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2: return builder_.leaf(Op::kQueryIdx);
      case 3:
      case 4:
      case 5: return builder_.leaf(Op::kKeyIdx);
      case 6: return builder_.leaf(below(2) == 0 ? Op::kBatchIdx : Op::kHeadIdx);
      case 7: return builder_.operand(length_);
      case 8: return builder_.operand(below(2) == 0 ? query_id_ : key_id_);
      case 9:
        if (below(4) == 0)
          return builder_.constant(static_cast<std::int32_t>(below(2) == 0 ? 2147483640 : -2147483640));
        [[fallthrough]];
      default: return builder_.constant(static_cast<std::int32_t>(below(14) - 4));
    }
  }

  NodeId integer(int depth) {
    if (depth <= 0) return integer_leaf();
    constexpr std::array kBinary{Op::kAdd, Op::kSub, Op::kSub, Op::kMul, Op::kMin, Op::kMax, Op::kFloorDiv, Op::kMod};
    constexpr std::array kUnary{Op::kNeg, Op::kAbs, Op::kSign};
    switch (below(10)) {
      case 0: return builder_.make(Op::kToI32, {truth(0)});
      case 1: return builder_.make(Op::kToI32, {real(depth - 1)});
      case 2: return builder_.make(Op::kSelect, {truth(0), integer(depth - 1), integer(depth - 1)});
      case 3: return builder_.make(kUnary[static_cast<std::size_t>(below(3))], {integer(depth - 1)});
      case 4: return builder_.gather(table_, std::array{integer(depth - 1), integer(depth - 1)});
      case 5: return integer_leaf();
      default:
        return builder_.make(kBinary[static_cast<std::size_t>(below(8))], {integer(depth - 1), integer(depth - 1)});
    }
  }

  NodeId real(int depth) {
    constexpr std::array kBinary{Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMin, Op::kMax, Op::kMod};
    constexpr std::array kUnary{Op::kNeg,   Op::kAbs,  Op::kSign, Op::kFloor, Op::kCeil,
                                Op::kRound, Op::kRelu, Op::kTanh, Op::kSqrt,  Op::kReciprocal};
    constexpr std::array kConstants{0.5f, -1.0f, 2.0f, 3.25f, 1e30f, 16777216.0f, 1e-40f};
    if (depth > 0) {
      switch (below(4)) {
        case 0: return builder_.make(kUnary[static_cast<std::size_t>(below(10))], {real(depth - 1)});
        case 1: break;
        default: return builder_.make(kBinary[static_cast<std::size_t>(below(7))], {real(depth - 1), real(depth - 1)});
      }
    }
    switch (below(5)) {
      case 0: return builder_.constant(kConstants[static_cast<std::size_t>(below(7))]);
      case 1: return builder_.operand(slope_);
      default: return builder_.make(Op::kToF32, {integer(depth - 1)});
    }
  }

  std::mt19937_64& random_;
  ir::Builder builder_;
  std::uint32_t length_ = 0, query_id_ = 0, key_id_ = 0, slope_ = 0, flag_ = 0, table_ = 0;
};

}  // namespace

Program random_mask(std::mt19937_64& random, int depth) { return Generator(random).make(depth); }

Program random_masked_value(std::mt19937_64& random, int depth) { return Generator(random).make_with_value(depth); }

}  // namespace scoremod::test
