#include "ir/op_table.hpp"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod::ir {
namespace {

TEST(OpTable, IsIndexedByTheEnumAndComplete) {
  ASSERT_EQ(op_table().size(), static_cast<std::size_t>(kOpCount));
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<Op>(i));
    EXPECT_EQ(static_cast<int>(row.op), i);
    EXPECT_STRNE(row.name, "");
    EXPECT_STRNE(row.meaning, "") << row.name;
  }
}

TEST(OpTable, NamesAreUniqueWithinTheirNotation) {
  std::set<std::pair<Notation, std::string>> names;
  for (const OpInfo& row : op_table()) EXPECT_TRUE(names.insert({row.notation, row.name}).second) << row.name;
}

TEST(OpTable, IsFoundByName) {
  for (const OpInfo& row : op_table()) {
    if (row.notation == Notation::kCall) {
      EXPECT_EQ(find_op(row.name), row.op) << row.name;
    }
    if (row.notation == Notation::kInfix) {
      EXPECT_EQ(find_infix(row.name), row.op) << row.name;
    }
  }
  EXPECT_EQ(find_op("+"), std::nullopt);
  EXPECT_EQ(find_op("score"), std::nullopt);
  EXPECT_EQ(find_infix("tanh"), std::nullopt);
  EXPECT_EQ(find_infix("!"), std::nullopt);
}

TEST(OpTable, ArityAgreesWithTheSignature) {
  for (const OpInfo& row : op_table()) {
    switch (row.signature) {
      case Signature::kLeaf: EXPECT_EQ(row.arity, 0) << row.name; break;
      case Signature::kFloatUnary:
      case Signature::kNumberUnary:
      case Signature::kBoolUnary:
      case Signature::kCast: EXPECT_EQ(row.arity, 1) << row.name; break;
      case Signature::kSelect: EXPECT_EQ(row.arity, 3) << row.name; break;
      default: EXPECT_EQ(row.arity, 2) << row.name;
    }
    EXPECT_FALSE(row.arity != 2 && row.notation == Notation::kInfix) << row.name;
    EXPECT_FALSE(row.arity != 2 && row.commutative) << row.name;
  }
}

TEST(InferType, GivesTheResultOrSaysWhyNot) {
  const auto infer = [](Op op, std::vector<Type> args) {
    std::string why;
    const auto type = infer_type(op, args, &why);
    return type ? std::string(to_string(*type)) : why;
  };
  constexpr Type kF32 = Type::kF32, kI32 = Type::kI32, kBool = Type::kBool;
  EXPECT_EQ(infer(Op::kAdd, {kF32, kF32}), "f32");
  EXPECT_EQ(infer(Op::kAdd, {kI32, kI32}), "i32");
  EXPECT_EQ(infer(Op::kAdd, {kI32, kF32}),
            "'+' takes two f32 or two i32, found (i32, f32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kAdd, {kF32}), "'+' takes two f32 or two i32, found (f32)");
  EXPECT_EQ(infer(Op::kDiv, {kI32, kI32}),
            "'/' takes two f32, found (i32, i32); integers divide with '//', or convert with f32()");
  EXPECT_EQ(infer(Op::kFloorDiv, {kF32, kF32}),
            "'//' takes two i32, found (f32, f32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kFloorDiv, {kI32, kF32}),
            "'//' takes two i32, found (i32, f32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kDiv, {kI32}), "'/' takes two f32, found (i32)");
  EXPECT_EQ(infer(Op::kTanh, {kI32}), "'tanh' takes one f32, found (i32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kEq, {kBool, kBool}), "bool");
  EXPECT_EQ(infer(Op::kEq, {kF32, kI32}),
            "'==' takes two arguments of the same type, found (f32, i32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kLt, {kBool, kBool}),
            "'<' takes two f32 or two i32, found (bool, bool); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kAnd, {kI32, kI32}), "'&' takes two bool, found (i32, i32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kAnd, {kI32, kBool}),
            "'&' takes two bool, found (i32, bool); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kAnd, {kBool, kI32}),
            "'&' takes two bool, found (bool, i32); convert with f32(), i32() or bool()");
  EXPECT_EQ(infer(Op::kSelect, {kBool, kI32, kI32}), "i32");
  EXPECT_EQ(
      infer(Op::kSelect, {kBool, kI32, kF32}),
      "'select' takes a bool and two arguments of the same type, found (bool, i32, f32); convert with f32(), i32() or "
      "bool()");
  EXPECT_EQ(
      infer(Op::kSelect, {kF32, kI32, kI32}),
      "'select' takes a bool and two arguments of the same type, found (f32, i32, i32); convert with f32(), i32() or "
      "bool()");
  EXPECT_EQ(infer(Op::kToBool, {kF32}), "bool");
  EXPECT_EQ(infer(Op::kToBool, {kF32, kI32}), "'bool' takes one argument, found (f32, i32)");
  EXPECT_EQ(infer(Op::kScore, {kF32}), "'score' takes no arguments, found (f32)");
}

TEST(InferType, KnowsNoTypeOfALeaf) {
  // The Builder knows a leaf's type: an operand has its declaration's.
  std::string why;
  EXPECT_EQ(infer_type(Op::kScore, {}, &why), std::nullopt);
  EXPECT_EQ(infer_type(Op::kOperand, {}, &why), std::nullopt);
}

TEST(Axis, NamesAndBack) {
  for (int i = 0; i < kAxisCount; ++i) EXPECT_EQ(find_axis(axis_name(static_cast<Axis>(i))), static_cast<Axis>(i));
  EXPECT_EQ(find_axis("q"), std::nullopt);
}

}  // namespace
}  // namespace scoremod::ir
