#include "check/random_program.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "check/value_range.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"

namespace scoremod::checking {
namespace {

struct Value {
  NodeId node = kNoNode;
  Type type = Type::kF32;
  ValueRange range;
  bool reads_score = false;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Generator {
 public:
  Generator(std::mt19937_64& random, const RandomProgramOptions& options) : random_(random), options_(options) {
    for (const ir::OpInfo& row : ir::op_table()) {
      if (row.signature == ir::Signature::kLeaf) continue;
      if (!options.ops.empty() && std::count(options.ops.begin(), options.ops.end(), row.op) == 0) continue;
      ops_.push_back(row.op);
      if (row.arity > 1) joining_ops_.push_back(row.op);
    }
  }

  Program run() {
    make_leaves();
    const auto full = static_cast<std::size_t>(std::max(options_.max_nodes, 0));
    for (std::size_t attempt = 0; attempt < 20 * full && builder_.node_count() < full && !ops_.empty(); ++attempt)
      step();
    return finish();
  }

 private:
  // Randomness. std's distributions differ between standard libraries; these do not.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
  bool chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  Type any_type() {
    return std::array{Type::kF32, Type::kF32, Type::kF32, Type::kI32, Type::kI32, Type::kBool}[below(6)];
  }
  Type any_number() { return chance(0.6) ? Type::kF32 : Type::kI32; }

  std::vector<Value>& pool(Type type) { return pools_[static_cast<std::size_t>(type)]; }
  bool allowed(Op op) const { return std::count(ops_.begin(), ops_.end(), op) > 0; }

  Value keep(const Value& value) {
    pool(value.type).push_back(value);
    return value;
  }

  // Leaves.
  void make_leaves() {
    const double limit = options_.score_limit;
    score_ = keep({builder_.leaf(Op::kScore), Type::kF32, {-limit, limit, false, false}, true});
    constexpr std::array kIndices{Op::kBatchIdx, Op::kHeadIdx, Op::kQueryIdx, Op::kKeyIdx};
    for (std::size_t axis = 0; axis < kIndices.size(); ++axis) {
      const auto [low, high] = options_.indices[axis];
      key_ = keep({builder_.leaf(kIndices[axis]), Type::kI32, {double(low), double(high), true, true}});
    }
    if (options_.adjoint_roots) keep({builder_.leaf(Op::kUpstream), Type::kF32, {-1, 1, false, false}});
    const std::size_t operands = below(static_cast<std::size_t>(std::max(options_.max_operands, 0)) + 1);
    for (std::size_t i = 0; i < operands; ++i) declare(i);
    // Real modifiers use a distance, as an index and as a float, which chance alone would seldom make.
    if (allowed(Op::kSub) && chance(0.5)) try_make(Op::kSub, {any_variable(Type::kI32), any_variable(Type::kI32)});
    if (allowed(Op::kToF32) && chance(0.5)) try_make(Op::kToF32, {pool(Type::kI32).back()});
    for (std::size_t i = 0; i < tables_.size(); ++i) read_table(tables_[i]);
  }

  void declare(std::size_t number) {
    OperandDecl decl;
    decl.name = "x" + std::to_string(number);
    decl.type = any_type();
    if (options_.max_table_rank > 0 && chance(0.35)) {
      decl.table_rank = 1 + static_cast<int>(below(static_cast<std::size_t>(options_.max_table_rank)));
    } else {
      for (bool& axis : decl.axes) axis = chance(0.4);
    }
    const std::uint32_t operand = builder_.declare(decl);
    if (!decl.is_table())
      keep({builder_.operand(operand), decl.type, contents(decl.type)});
    else
      tables_.push_back(operand);
  }

  ValueRange contents(Type type) const {
    if (type == Type::kF32) return {-options_.float_limit, options_.float_limit, false, false};
    return {static_cast<double>(options_.int_low), static_cast<double>(options_.int_high), true, true};
  }

  Value constant(Type type) {
    if (type == Type::kBool) return {builder_.constant(chance(0.5)), type, {}};
    if (type == Type::kI32) {
      std::int32_t value = static_cast<std::int32_t>(below(20)) - 4;
      if (!options_.tame && chance(0.2)) {
        value = std::array{INT32_MIN, INT32_MAX, INT32_MIN + 1, 0, -1}[below(5)];
      }
      return {builder_.constant(value), type, {double(value), double(value), true, true}};
    }
    float value = static_cast<float>(between(-4, 4));
    if (chance(0.5)) value = static_cast<float>(below(17)) * 0.25f - 1.0f;
    if (!options_.tame && chance(0.3)) {
      value = std::array{
          kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), -0.0f, 1e30f, 1e-40f, 3e38f}[below(7)];
    }
    return {builder_.constant(value), type, {value, value, true, std::nearbyint(value) == value}};
  }

  /// A value made before, recent ones more often, or a constant.
  Value any(Type type, double constant_probability = 0.15) {
    const std::vector<Value>& values = pool(type);
    if (values.empty() || chance(constant_probability)) return constant(type);
    const std::size_t recent = std::min<std::size_t>(values.size(), 6);
    return chance(0.5) ? values[values.size() - 1 - below(recent)] : values[below(values.size())];
  }
  /// The argument of a unary op: of a constant it would be one more constant.
  Value any_variable(Type type) { return any(type, 0.02); }

  // Operations.
  void step() {
    if (!tables_.empty() && chance(0.1)) {
      read_table(tables_[below(tables_.size())]);
      return;
    }
    // Unary functions are the larger part of the table; alone they would make chains.
    const bool join = !joining_ops_.empty() && chance(0.4);
    const Op op = join ? joining_ops_[below(joining_ops_.size())] : ops_[below(ops_.size())];
    const std::vector<Value> args = arguments(op);
    if (try_make(op, args) || !options_.tame) return;
    std::vector<Value> fitted = args;
    for (Value& arg : fitted) arg = moderate(arg, op);
    try_make(op, fitted);
  }

  void read_table(std::uint32_t table) {
    const OperandDecl& decl = builder_.operands()[table];
    std::array<NodeId, kMaxArgs> indices{};
    for (int i = 0; i < decl.table_rank; ++i) indices[static_cast<std::size_t>(i)] = any(Type::kI32).node;
    const std::span used(indices.data(), static_cast<std::size_t>(decl.table_rank));
    keep({builder_.gather(table, used), decl.type, contents(decl.type)});
  }

  std::vector<Value> arguments(Op op) {
    const ir::OpInfo& row = ir::info(op);
    switch (row.signature) {
      case ir::Signature::kFloatUnary: return {any_variable(Type::kF32)};
      case ir::Signature::kBoolUnary: return {any_variable(Type::kBool)};
      case ir::Signature::kNumberUnary: return {any_variable(any_number())};
      case ir::Signature::kCast: return {any_variable(any_type())};
      case ir::Signature::kFloatBinary: return two(Type::kF32);
      case ir::Signature::kIntBinary: return two(Type::kI32);
      case ir::Signature::kBoolBinary: return two(Type::kBool);
      case ir::Signature::kEquality: return two(any_type());
      case ir::Signature::kSelect: {
        const Type type = any_type();
        return {any(Type::kBool), any(type), any(type)};
      }
      default: return two(any_number());
    }
  }

  std::vector<Value> two(Type type) {
    const Value left = any(type);
    return {left, any(type)};
  }

  /// Makes the op, if the options allow it with these arguments.
  bool try_make(Op op, const std::vector<Value>& args) {
    std::array<NodeId, kMaxArgs> nodes{};
    std::array<Type, kMaxArgs> types{};
    std::array<ValueRange, kMaxArgs> ranges{};
    Value made;
    bool exact = true;
    for (std::size_t i = 0; i < args.size(); ++i) {
      nodes[i] = args[i].node;
      types[i] = args[i].type;
      ranges[i] = args[i].range;
      exact = exact && args[i].range.exact;
      made.reads_score = made.reads_score || args[i].reads_score;
    }
    if (!exact && options_.continuity != Continuity::kAny && has_jump(op, types[0])) return false;
    if (!exact && options_.continuity == Continuity::kSmooth && has_kink(op, types[0])) return false;
    std::string why;
    const auto type = ir::infer_type(op, std::span(types.data(), args.size()), &why);
    if (!type) return false;
    made.type = *type;
    const auto range =
        tame_result(op, *type, std::span(types.data(), args.size()), std::span(ranges.data(), args.size()));
    if (!range && options_.tame) return false;
    made.range = range.value_or(ValueRange{-kInfinity, kInfinity, false, false});
    made.node = builder_.make(op, std::span(nodes.data(), args.size()));
    keep(made);
    return true;
  }

  /// A value made of x in whose range most functions are tame: x scaled down, tanh(x), or sigmoid(x) + 1/2 for ops that
  /// want positive arguments.
  Value moderate(const Value& x, Op for_op) {
    if (x.type != Type::kF32 || x.range.low == x.range.high) return x;
    const auto last = [this] { return pool(Type::kF32).back(); };
    const bool positive = for_op == Op::kLog || for_op == Op::kSqrt || for_op == Op::kRsqrt ||
                          for_op == Op::kReciprocal || for_op == Op::kDiv || for_op == Op::kPow;
    if (positive && allowed(Op::kSigmoid) && allowed(Op::kAdd) && try_make(Op::kSigmoid, {x})) {
      return try_make(Op::kAdd, {last(), exactly(0.5f)}) ? last() : x;
    }
    const double magnitude = std::max({std::abs(x.range.low), std::abs(x.range.high), 1.0});
    const auto factor = static_cast<float>(between(0.5, 1) / magnitude);
    if (chance(0.8) && allowed(Op::kMul) && try_make(Op::kMul, {x, exactly(factor)})) return last();
    return allowed(Op::kTanh) && try_make(Op::kTanh, {x}) ? last() : x;
  }

  Value exactly(float value) { return {builder_.constant(value), Type::kF32, {value, value, true, false}}; }

  // Roots.
  Program finish() {
    Value value = joined();
    if (!value.reads_score && chance(0.9)) value = with_score(value);
    value = limited(value);
    if (options_.value_shift != 0)
      value.node = builder_.make(Op::kAdd, {value.node, builder_.constant(options_.value_shift)});
    if (chance(options_.infinity_mask_probability)) {
      const NodeId infinity = builder_.constant(-kInfinity);
      value.node = builder_.make(Op::kSelect, {condition(), value.node, infinity});
    }
    NodeId keep = chance(options_.mask_probability) ? condition() : kNoNode;
    class_rows(value.node, keep);
    std::vector<Root> roots{{RootKind::kValue, value.node}};
    if (keep != kNoNode) roots.push_back({RootKind::kKeep, keep});
    if (options_.adjoint_roots) add_adjoints(roots);
    return builder_.finish(roots);
  }

  void class_rows(NodeId& value, NodeId& keep) {
    const auto by_row = [&](const char* name, Type type) {
      return builder_.operand(builder_.declare({name, type, {true, true, true, false}, 0}));
    };
    const auto require = [&](NodeId kept) { keep = keep == kNoNode ? kept : builder_.make(Op::kAnd, {keep, kept}); };
    switch (options_.rows) {
      case RowClass::kAny: return;
      case RowClass::kEmptyByBool: return require(by_row(kRowKept, Type::kBool));
      case RowClass::kOneKey:
        return require(builder_.make(Op::kEq, {builder_.leaf(Op::kKeyIdx), by_row(kRowKey, Type::kI32)}));
      case RowClass::kEmptyByTable: {
        const std::uint32_t table = builder_.declare({kRowWeight, Type::kI32, {}, 1});
        const NodeId place = builder_.make(Op::kMod, {builder_.leaf(Op::kQueryIdx), builder_.constant(12)});
        const NodeId weight = builder_.gather(table, std::array{place});
        const NodeId positive = builder_.make(Op::kMax, {weight, builder_.constant(0)});
        const NodeId log = builder_.make(Op::kLog, {builder_.make(Op::kToF32, {positive})});
        value = builder_.make(Op::kAdd, {value, log});
      }
    }
  }

  /// The last f32 value, with up to three others joined to it, so that fewer nodes are dead.
  Value joined() {
    Value value = pool(Type::kF32).back();
    for (int i = 0; i < 3; ++i) {
      constexpr std::array kJoining{Op::kAdd, Op::kSub, Op::kMul};
      const Op op = kJoining[below(kJoining.size())];
      const Value other = any_variable(Type::kF32);
      if (other.node != value.node && allowed(op) && try_make(op, {value, other})) value = pool(Type::kF32).back();
    }
    return value;
  }

  Value with_score(const Value& value) {
    for (const Op op : {Op::kAdd, Op::kMul, Op::kSub}) {
      if (allowed(op) && try_make(op, {score_, value})) return pool(Type::kF32).back();
    }
    return score_;
  }

  /// Scales the value down to value_limit.
  Value limited(const Value& value) {
    const double magnitude = std::max(std::abs(value.range.low), std::abs(value.range.high));
    if (!options_.tame || magnitude <= options_.value_limit) return value;
    const float factor = static_cast<float>(options_.value_limit / magnitude * 0.99);
    if (allowed(Op::kMul) && try_make(Op::kMul, {value, exactly(factor)})) return pool(Type::kF32).back();
    return score_;
  }

  NodeId condition() {
    if (!(options_.key_mask_probability > 0) || !chance(options_.key_mask_probability)) return any_condition();
    const NodeId of_key = key_condition();
    if (!chance(0.3)) return of_key;
    constexpr std::array kJoining{Op::kAnd, Op::kOr, Op::kXor};
    const Op op = kJoining[below(kJoining.size())];
    return allowed(op) ? builder_.make(op, {of_key, chance(0.5) ? key_condition() : any_condition()}) : of_key;
  }

  /// Whether something of the key's index is below, above or at a number that it may be on both sides of.
  NodeId key_condition() {
    constexpr std::array kOps{Op::kSub, Op::kSub, Op::kSub, Op::kAdd,      Op::kMul, Op::kMin,
                              Op::kMax, Op::kMod, Op::kMod, Op::kFloorDiv, Op::kAbs};
    Value of_key = key_;
    for (std::size_t more = below(4); more > 0; --more) {
      const Op op = kOps[below(kOps.size())];
      std::vector<Value> args{of_key};
      if (op != Op::kAbs) args.push_back(any(Type::kI32, op == Op::kMod || op == Op::kFloorDiv ? 0.9 : 0.2));
      if (args.size() == 2 && op == Op::kSub && chance(0.5)) std::swap(args[0], args[1]);
      if (!allowed(op) || !try_make(op, args)) continue;
      const Value made = pool(Type::kI32).back();
      if (made.range.low < made.range.high) of_key = made;
    }
    constexpr std::array kComparisons{Op::kGe, Op::kLt, Op::kLe, Op::kGt, Op::kGe,
                                      Op::kLt, Op::kLe, Op::kGt, Op::kNe, Op::kEq};
    const Op op = kComparisons[below(kComparisons.size())];
    if (!allowed(op)) return any_condition();
    const auto border = static_cast<std::int32_t>(std::floor(between(of_key.range.low, of_key.range.high + 1)));
    return builder_.make(op, {of_key.node, builder_.constant(border)});
  }

  /// A bool that jumps only where the options allow it; index comparisons are made when there is none.
  NodeId any_condition() {
    std::vector<Value>& made = pool(Type::kBool);
    if (!made.empty() && chance(0.7)) return made[made.size() - 1 - below(std::min<std::size_t>(made.size(), 4))].node;
    for (const Op op : {Op::kGe, Op::kLt, Op::kNe, Op::kLe, Op::kGt, Op::kEq}) {
      if (allowed(op)) return builder_.make(op, {builder_.leaf(Op::kQueryIdx), any(Type::kI32).node});
    }
    return made.empty() ? builder_.constant(true) : made.back().node;
  }

  void add_adjoints(std::vector<Root>& roots) {
    if (chance(0.8)) roots.push_back({RootKind::kScoreAdjoint, any(Type::kF32).node});
    for (std::uint32_t i = 0; i < builder_.operands().size(); ++i) {
      const OperandDecl& decl = builder_.operands()[i];
      if (decl.type != Type::kF32) continue;
      for (std::size_t repeat = below(3); repeat > 0; --repeat) {
        Root root{RootKind::kOperandAdjoint, any(Type::kF32).node, i};
        for (int d = 0; d < decl.table_rank; ++d) root.indices[static_cast<std::size_t>(d)] = any(Type::kI32).node;
        roots.push_back(root);
      }
    }
    // 'upstream' is refused in a program without adjoints.
    if (roots.back().kind < RootKind::kScoreAdjoint)
      roots.push_back({RootKind::kScoreAdjoint, builder_.leaf(Op::kUpstream)});
  }

  std::mt19937_64& random_;
  const RandomProgramOptions& options_;
  std::vector<Op> ops_;
  std::vector<Op> joining_ops_;  // of ops_, those with several arguments
  ir::Builder builder_;
  std::array<std::vector<Value>, 3> pools_;
  std::vector<std::uint32_t> tables_;
  Value score_;
  Value key_;  // the last index
};

}  // namespace

Program random_program(std::mt19937_64& random, const RandomProgramOptions& options) {
  return Generator(random, options).run();
}

}  // namespace scoremod::checking
