#include "ir/builder.hpp"

#include <array>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "support/refusal.hpp"

namespace scoremod::ir {
namespace {

using test::refusal;

void expect_part(const std::string& message, const char* part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Builder, MakesEqualNodesOnce) {
  Builder builder;
  const NodeId score = builder.leaf(Op::kScore);
  EXPECT_EQ(builder.leaf(Op::kScore), score);
  EXPECT_EQ(builder.make(Op::kAdd, {score, score}), builder.make(Op::kAdd, {score, score}));
  EXPECT_EQ(builder.constant(2.0f), builder.constant(2.0f));
  EXPECT_NE(builder.constant(1.0f), builder.constant(1));
  EXPECT_NE(builder.constant(1), builder.constant(true));
  EXPECT_NE(builder.constant(0.0f), builder.constant(-0.0f));
  EXPECT_EQ(builder.constant(std::numeric_limits<float>::quiet_NaN()),
            builder.constant(-std::numeric_limits<float>::signaling_NaN()));
  EXPECT_EQ(builder.node_count(), 9u);
}

TEST(Builder, DropsDeadNodesAndNumbersByUse) {
  Builder one;
  one.constant(77);
  const NodeId kv = one.leaf(Op::kKeyIdx);
  const NodeId q = one.leaf(Op::kQueryIdx);
  const Program first = one.finish(one.leaf(Op::kScore), one.make(Op::kGe, {q, kv}));
  Builder other;
  const NodeId score = other.leaf(Op::kScore);
  const NodeId q2 = other.leaf(Op::kQueryIdx);
  const Program second = other.finish(score, other.make(Op::kGe, {q2, other.leaf(Op::kKeyIdx)}));
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.hash(), second.hash());
  EXPECT_EQ(first.nodes().size(), 4u);
  EXPECT_EQ(first.value(), 0u);
  EXPECT_EQ(first.keep(), 3u);
}

TEST(Builder, RemakesEveryKindOfNode) {
  const Program program = Program::parse(
      "operand x: i32 [h]\ntable t: f32 rank 2\nvalue = t[x, q_idx] + select(b == h, score, 2.5) * f32(kv_idx)\nkeep = "
      "true");
  Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::vector<NodeId> args;
    for (const NodeId arg : args_of(node)) args.push_back(ids[arg]);
    ids.push_back(builder.remake(node, args));
  }
  EXPECT_EQ(builder.finish(ids[program.value()], ids[program.keep()]), program);
}

TEST(Builder, RefusesTheCallersMistakes) {
  Builder b;
  const NodeId score = b.leaf(Op::kScore);
  const NodeId q = b.leaf(Op::kQueryIdx);
  const std::uint32_t x = b.declare({"x", Type::kF32, {}, 0});
  const std::uint32_t t = b.declare({"t", Type::kF32, {}, 2});
  expect_part(refusal([&] { b.declare({"x", Type::kI32, {}, 0}); }), "'x' is declared twice");
  expect_part(refusal([&] { b.declare({"", Type::kF32, {}, 0}); }), "found ''");
  expect_part(refusal([&] { b.declare({"a-b", Type::kF32, {}, 0}); }), "found 'a-b'");
  expect_part(refusal([&] { b.declare({"exp", Type::kF32, {}, 0}); }), "is a word of the program language");
  expect_part(refusal([&] { b.declare({"keep", Type::kF32, {}, 0}); }), "is a word of the program language");
  expect_part(refusal([&] { b.declare({std::string(65, 'x'), Type::kF32, {}, 0}); }), "at most 64 characters");
  expect_part(refusal([&] { b.declare({"y", Type::kF32, {}, 5}); }), "expected a rank of 1 to 4, found 5");
  expect_part(refusal([&] { b.declare({"y", Type::kF32, {}, -1}); }), "expected a rank of 1 to 4, found -1");
  expect_part(refusal([&] { b.operand(t); }), "table 't' is read with 2 indices");
  expect_part(refusal([&] { b.gather(x, std::array{q}); }), "operand 'x' is no table");
  expect_part(refusal([&] { b.gather(t, std::array{q}); }), "has rank 2, found 1 indices");
  expect_part(refusal([&] { b.gather(t, std::array{q, score}); }), "index 1 must be i32, found f32");
  expect_part(refusal([&] { b.make(Op::kAdd, {score, q}); }), "found (f32, i32)");
  expect_part(refusal([&] { b.make(Op::kAdd, {score}); }), "found (f32)");
  expect_part(refusal([&] { b.make(Op::kAdd, {score, score, score, score, score}); }), "takes 2 arguments, found 5");
  expect_part(refusal([&] { b.finish(q); }), "value must be f32, found i32");
  expect_part(refusal([&] { b.finish(score, q); }), "keep must be bool, found i32");
  expect_part(refusal([&] { b.finish(b.leaf(Op::kUpstream)); }), "only in a derivative");
  expect_part(refusal([&] { b.finish(std::array<Root, 0>{}); }), "a program needs 'value = ...'");
}

TEST(Builder, CallsMisuseOfItselfABug) {
  Builder b;
  const NodeId score = b.leaf(Op::kScore);
  const auto bug = [](const std::function<void()>& action) { return refusal(action, ErrorCode::kBug); };
  expect_part(bug([&] { b.leaf(Op::kAdd); }), "is no leaf");
  expect_part(bug([&] { b.leaf(Op::kConstant); }), "is no leaf");
  expect_part(bug([&] { b.operand(0); }), "operand 0 is not declared");
  expect_part(bug([&] { b.gather(3, {}); }), "operand 3 is not declared");
  expect_part(bug([&] { b.node(99); }), "node 99 does not exist");
  expect_part(bug([&] { b.make(Op::kNeg, {99u}); }), "node 99 does not exist");
  expect_part(bug([&] { b.finish(99); }), "node 99 does not exist");
  expect_part(bug([&] { b.finish(score, 99); }), "node 99 does not exist");
}

TEST(Builder, RefusesRootsOutOfOrder) {
  Builder b;
  const NodeId score = b.leaf(Op::kScore);
  const NodeId yes = b.constant(true);
  const auto finish = [&b](std::vector<Root> roots) { b.finish(roots); };
  const Root value{RootKind::kValue, score}, keep{RootKind::kKeep, yes}, adjoint{RootKind::kScoreAdjoint, score};
  EXPECT_NO_THROW(finish({value, keep, adjoint}));
  expect_part(refusal([&] { finish({value, value}); }), "roots must come in the order");
  expect_part(refusal([&] { finish({value, adjoint, keep}); }), "roots must come in the order");
  expect_part(refusal([&] { finish({value, adjoint, adjoint}); }), "roots must come in the order");
  expect_part(refusal([&] { finish({keep, value}); }), "a program needs 'value = ...'");
}

TEST(Builder, RefusesAdjointsThatTheirOperandsDoNotHave) {
  Builder b;
  const NodeId score = b.leaf(Op::kScore), query = b.leaf(Op::kQueryIdx);
  const std::uint32_t count = b.declare({"count", Type::kI32, {}, 0});
  const std::uint32_t first = b.declare({"first", Type::kF32, {}, 1});
  const std::uint32_t second = b.declare({"second", Type::kF32, {}, 0});
  const auto adjoint = [&](std::uint32_t operand, NodeId node, NodeId index) {
    return Root{RootKind::kOperandAdjoint, node, operand, {index, kNoNode, kNoNode, kNoNode}};
  };
  const auto finish = [&](std::vector<Root> adjoints) {
    adjoints.insert(adjoints.begin(), Root{RootKind::kValue, score, 0, {kNoNode, kNoNode, kNoNode, kNoNode}});
    b.finish(adjoints);
  };
  EXPECT_NO_THROW(finish({adjoint(first, score, query), adjoint(second, score, kNoNode)}));
  expect_part(refusal([&] { finish({adjoint(second, query, kNoNode)}); }), "an adjoint must be f32, found i32");
  expect_part(refusal([&] { finish({adjoint(count, score, kNoNode)}); }),
              "operand 'count' is not f32 and has no gradient");
  const char* indices = "the indices of 'accumulate first' must be i32, one for each dimension";
  expect_part(refusal([&] { finish({adjoint(first, score, kNoNode)}); }), indices);
  expect_part(refusal([&] { finish({adjoint(first, score, score)}); }), indices);
  expect_part(refusal([&] {
                finish({adjoint(second, score, kNoNode), adjoint(first, score, query)});
              }),
              "roots must come in the order");
}

TEST(Builder, StopsAtItsLimitOfNodes) {
  Builder b;
  const auto fill = [&b] {
    for (std::int32_t i = 0; i <= static_cast<std::int32_t>(kMaxNodes); ++i) b.constant(i);
  };
  expect_part(refusal(fill, ErrorCode::kUnsupported), "more than 65536 nodes");
}

TEST(Constants, KeepTheirBits) {
  Builder b;
  EXPECT_EQ(constant_f32(b.node(b.constant(-1.5f))), -1.5f);
  EXPECT_EQ(constant_i32(b.node(b.constant(INT32_MIN))), INT32_MIN);
  EXPECT_TRUE(constant_bool(b.node(b.constant(true))));
  EXPECT_FALSE(constant_bool(b.node(b.constant(false))));
}

}  // namespace
}  // namespace scoremod::ir
