#include "ir/verify.hpp"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "support/refusal.hpp"

namespace scoremod::ir {
namespace {

/// Verifies a program with one thing damaged behind the builder's back; returns the bug's message.
std::string bug(const std::function<void(Program::Data&)>& damage) {
  const Program sound = Program::parse(
      "operand x: f32 []\ntable t: f32 rank 1\nvalue = score + x * t[q_idx] + 1.0\nkeep = select(true, q_idx == 3, "
      "false)\n"
      "d_score = upstream\naccumulate t[q_idx] += upstream");
  auto data = std::make_shared<Program::Data>();
  data->operands = sound.operands();
  data->nodes = sound.nodes();
  data->roots = sound.roots();
  EXPECT_NO_THROW(verify(Program(data)));
  damage(*data);
  return test::refusal([&] { verify(Program(data)); }, ErrorCode::kBug);
}

Node& first(Program::Data& data, Op op) {
  for (Node& node : data.nodes) {
    if (node.op == op) return node;
  }
  throw std::out_of_range("no such node");
}

void expect_bug(const char* part, const std::function<void(Program::Data&)>& damage) {
  const std::string message = bug(damage);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Verify, FindsEveryBrokenInvariant) {
  expect_bug("does not come before it", [](auto& d) { first(d, Op::kAdd).args[0] = d.roots[0].node; });
  expect_bug("does not come before it", [](auto& d) { first(d, Op::kAdd).args[0] = 9999; });
  expect_bug("has 9 arguments", [](auto& d) { first(d, Op::kAdd).arg_count = 9; });
  expect_bug("'+' takes two", [](auto& d) { first(d, Op::kAdd).arg_count = 1; });
  expect_bug("is marked i32", [](auto& d) { first(d, Op::kAdd).type = Type::kI32; });
  expect_bug("is no proper 'score'", [](auto& d) { first(d, Op::kScore).type = Type::kBool; });
  expect_bug("is no proper 'q_idx'", [](auto& d) { first(d, Op::kQueryIdx).payload = 1; });
  expect_bug("is a leaf and has arguments",
             [](auto& d) { d.nodes[1].op = Op::kKeyIdx, d.nodes[1].arg_count = 1, d.nodes[1].args[0] = 0; });
  expect_bug("a bool constant other than", [](auto& d) {
    for (Node& node : d.nodes) {
      if (node.op == Op::kConstant && node.type == Type::kBool) node.payload = 2;
    }
  });
  expect_bug("which is not declared", [](auto& d) { first(d, Op::kOperand).payload = 7; });
  expect_bug("as another type than its own", [](auto& d) { d.operands[0].type = Type::kI32; });
  expect_bug("with 0 indices, expected 1", [](auto& d) { first(d, Op::kOperand).payload = 1; });
  expect_bug("with 1 indices, expected 2", [](auto& d) { d.operands[1].table_rank = 2; });
  expect_bug("reads operand 'x' with 0 indices", [](auto& d) { first(d, Op::kOperand).op = Op::kGather; });
  expect_bug("reads operand 't' with 1 indices", [](auto& d) { first(d, Op::kGather).op = Op::kOperand; });
  expect_bug("has an index that is not i32", [](auto& d) { first(d, Op::kGather).args[0] = 0; });
  expect_bug("which does not exist", [](auto& d) { d.roots[0].node = 9999; });
  expect_bug("an operand adjoint names operand 9", [](auto& d) { d.roots.back().operand = 9; });
  expect_bug("op number 200", [](auto& d) { first(d, Op::kAdd).op = static_cast<Op>(200); });
}

TEST(Verify, KnowsDerivatives) {
  EXPECT_FALSE(is_derivative(Program()));
  EXPECT_FALSE(is_derivative(Program(std::make_shared<Program::Data>())));
  EXPECT_FALSE(is_derivative(Program::parse("value = score; keep = true")));
  EXPECT_TRUE(is_derivative(Program::parse("value = score; d_score = upstream")));
  EXPECT_TRUE(is_derivative(Program::parse("operand x: f32 []\nvalue = score; accumulate x += 1.0")));
}

}  // namespace
}  // namespace scoremod::ir
