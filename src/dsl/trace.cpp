#include "dsl/trace.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <vector>

#include "base/fail.hpp"
#include "ir/op_table.hpp"

namespace scoremod {
namespace dsl {
namespace {

thread_local Trace* current_trace = nullptr;

/// Never reused, so that a handle can't be mistaken for one of a later trace.
std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// "f32 [b, h]" or "f32 table of rank 2".
std::string describe(const OperandDecl& decl) {
  if (decl.is_table()) return concat(to_string(decl.type), " table of rank ", decl.table_rank);
  std::string axes;
  for (int i = 0; i < kAxisCount; ++i) {
    if (!decl.axes[static_cast<std::size_t>(i)]) continue;
    axes += concat(axes.empty() ? "" : ", ", ir::axis_name(static_cast<Axis>(i)));
  }
  return concat(to_string(decl.type), " [", axes, "]");
}

}  // namespace

Trace::Trace() : id_(next_id()), outer_(current_trace) { current_trace = this; }
Trace::~Trace() { current_trace = outer_; }

Trace& Trace::current() {
  if (current_trace == nullptr) {
    fail_argument(
        "expected a function that is being traced, found an expression outside of one: values of type Float, Int and "
        "Bool can be computed with only inside the functions given to trace()");
  }
  return *current_trace;
}

NodeId Trace::node_of(Handle handle) {
  if (handle.trace == id_) return handle.payload;
  if (handle.trace == 0) {
    switch (handle.type) {
      case Type::kF32: return builder_.constant(std::bit_cast<float>(handle.payload));
      case Type::kI32: return builder_.constant(static_cast<std::int32_t>(handle.payload));
      case Type::kBool: return builder_.constant(handle.payload != 0);
    }
  }
  fail_argument("expected a value of the function that is being traced, found one of ",
                encloses(handle.trace) ? "an enclosing call of trace()" : "another call of trace(), which has ended",
                ": make it inside the function that uses it, and keep no Float, Int or Bool beyond that function");
}

Handle Trace::handle_of(NodeId node) const { return {id_, node, builder_.node(node).type}; }

std::uint32_t Trace::declare(const OperandDecl& decl) {
  const auto& known = builder_.operands();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i].name != decl.name) continue;
    if (known[i] != decl) {
      fail_argument("operand '", decl.name, "' is used as ", describe(known[i]), " and as ", describe(decl),
                    ": rename one, or declare both the same");
    }
    return static_cast<std::uint32_t>(i);
  }
  return builder_.declare(decl);
}

bool Trace::encloses(std::uint64_t id) const {
  for (const Trace* trace = outer_; trace != nullptr; trace = trace->outer_) {
    if (trace->id_ == id) return true;
  }
  return false;
}

Handle apply(Op op, std::initializer_list<Handle> args) {
  Trace& trace = Trace::current();
  std::array<NodeId, kMaxArgs> nodes{};
  std::size_t count = 0;
  for (const Handle arg : args) nodes.at(count++) = trace.node_of(arg);
  return trace.handle_of(trace.builder().make(op, std::span(nodes.data(), count)));
}

Handle read(const OperandDecl& decl, std::initializer_list<Handle> indices) {
  Trace& trace = Trace::current();
  std::array<NodeId, kMaxArgs> nodes{};
  std::size_t count = 0;
  for (const Handle index : indices) nodes.at(count++) = trace.node_of(index);
  const std::uint32_t number = trace.declare(decl);
  ir::Builder& builder = trace.builder();
  return trace.handle_of(decl.is_table() ? builder.gather(number, std::span(nodes.data(), count))
                                         : builder.operand(number));
}

}  // namespace dsl

namespace {

/// Declares the program's operands in the order in which its nodes read them. C++ does not specify the order of an
/// operator's arguments, so the order of declare() calls depends on the compiler and must not show.
Program with_operands_in_order(const Program& program) {
  ir::Builder builder;
  std::vector<std::uint32_t> numbers(program.operands().size(), kNoNode);
  std::vector<NodeId> nodes;
  for (Node node : program.nodes()) {
    if (node.op == Op::kOperand || node.op == Op::kGather) {
      std::uint32_t& number = numbers[node.payload];
      if (number == kNoNode) number = builder.declare(program.operands()[node.payload]);
      node.payload = number;
    }
    std::array<NodeId, kMaxArgs> args{};
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = nodes[node.args[i]];
    nodes.push_back(builder.remake(node, std::span(args.data(), node.arg_count)));
  }
  const NodeId keep = program.keep();
  return builder.finish(nodes[program.value()], keep == kNoNode ? kNoNode : nodes[keep]);
}

Program run(const ScoreMod& score_mod, const MaskMod& mask_mod) {
  dsl::Trace trace;
  ir::Builder& builder = trace.builder();
  const auto leaf = [&](Op op) { return trace.handle_of(builder.leaf(op)); };
  const Index index{Int(leaf(Op::kBatchIdx)), Int(leaf(Op::kHeadIdx)), Int(leaf(Op::kQueryIdx)),
                    Int(leaf(Op::kKeyIdx))};
  const Float value = score_mod(Score(leaf(Op::kScore)), index);
  const NodeId value_node = trace.node_of(value.handle());
  const NodeId keep_node = mask_mod.empty() ? kNoNode : trace.node_of(mask_mod(index).handle());
  return with_operands_in_order(builder.finish(value_node, keep_node));
}

}  // namespace

Float qk_scale() {
  dsl::Trace& trace = dsl::Trace::current();
  return Float(trace.handle_of(trace.builder().leaf(Op::kScale)));
}

Program trace(const ScoreMod& score_mod, const MaskMod& mask_mod) { return run(score_mod, mask_mod); }
Program trace(const MaskMod& mask_mod) { return run({}, mask_mod); }

}  // namespace scoremod
