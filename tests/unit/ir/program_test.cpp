#include "scoremod/program.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ir/builder.hpp"

namespace scoremod {
namespace {

TEST(Program, DefaultIsTheIdentity) {
  const Program program;
  EXPECT_EQ(program.to_string(), "value = score\n");
  EXPECT_EQ(program.keep(), kNoNode);
  EXPECT_EQ(program.nodes().size(), 1u);
  EXPECT_EQ(program, Program::parse("value = score"));
}

TEST(Program, EqualityLooksAtEverything) {
  const std::vector<const char*> texts = {
      "value = score",
      "value = score; keep = true",
      "value = score; keep = false",
      "value = score + 1.0",
      "value = 1.0 + score",
      "value = score + 2.0",
      "value = score + f32(1)",
      "value = score + f32(true)",
      "operand x: f32 []\nvalue = score",
      "operand y: f32 []\nvalue = score",
      "operand x: f32 [b]\nvalue = score",
      "operand x: f32 [h]\nvalue = score",
      "operand x: i32 []\nvalue = score",
      "table x: f32 rank 1\nvalue = score",
      "table x: f32 rank 2\nvalue = score",
      "operand x: f32 []\nvalue = score + x",
      "operand x: f32 []\noperand y: f32 []\nvalue = score + x",
      "operand y: f32 []\noperand x: f32 []\nvalue = score + x",
      "operand x: f32 []\noperand y: f32 []\nvalue = score + y",
      "value = score; d_score = upstream",
      "value = score; keep = true; d_score = upstream",
      "operand x: f32 []\nvalue = score\naccumulate x += upstream",
      "operand x: f32 []\nvalue = score\naccumulate x += upstream\naccumulate x += upstream",
      "table x: f32 rank 1\nvalue = score\naccumulate x[b] += upstream",
      "table x: f32 rank 1\nvalue = score\naccumulate x[h] += upstream",
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (std::size_t j = 0; j < texts.size(); ++j) {
      const Program one = Program::parse(texts[i]);
      const Program other = Program::parse(texts[j]);
      EXPECT_EQ(one == other, i == j) << texts[i] << "\n" << texts[j];
      EXPECT_EQ(one.hash() == other.hash(), i == j) << texts[i] << "\n" << texts[j];
    }
  }
}

TEST(Program, EqualityDoesNotTrustTheHash) {
  const Program program = Program::parse("value = score + 1.0");
  auto forged = std::make_shared<Program::Data>();
  forged->operands = program.operands();
  forged->nodes = Program::parse("value = score + 2.0").nodes();
  forged->roots = program.roots();
  forged->hash = program.hash();
  EXPECT_FALSE(Program(forged) == program);

  forged->operands = Program::parse("operand x: f32 []\nvalue = score + 1.0").operands();
  forged->nodes = program.nodes();
  EXPECT_FALSE(Program(forged) == program);

  forged->operands = program.operands();
  EXPECT_TRUE(Program(forged) == program);
  forged->roots.front().node = 0;
  EXPECT_FALSE(Program(forged) == program);
}

TEST(Program, TextOfEveryConstruct) {
  const char* text =
      "operand slopes: f32 [h]\n"
      "operand ids: i32 [b, q_idx]\n"
      "operand on: bool []\n"
      "operand full: f32 [b, h, q_idx, kv_idx]\n"
      "table rel: f32 rank 2\n"
      "let %0 = q_idx - kv_idx\n"
      "let %1 = rel[h, %0] + slopes * -f32(%0)\n"
      "let %2 = -(1.5) - (score - full) - -score\n"
      "value = select(on, %1 * (%1 + %2), -inf) + min(%2, nan)\n"
      "keep = !(%0 >= 0 & ids == 3) | (ids // 2 == 1) == on ^ true\n"
      "d_score = upstream\n"
      "accumulate slopes += upstream * 2.0\n"
      "accumulate rel[h, %0] += upstream\n"
      "accumulate rel[b, -2147483648] += 1e-40\n";
  const Program program = Program::parse(text);
  EXPECT_EQ(program.to_string(), text);
}

/// score + 1.0 - score + 1.0 - ..., as deep as `links`, without common parts.
Program deep(int links, Op link) {
  ir::Builder builder;
  const NodeId score = builder.leaf(Op::kScore);
  const NodeId one = builder.constant(1.0f);
  NodeId value = score;
  for (int i = 0; i < links; ++i) {
    if (link == Op::kNeg)
      value = builder.make(Op::kTanh, {value});
    else
      value = i % 2 == 0 ? builder.make(link, {one, value}) : builder.make(link, {value, score});
  }
  return builder.finish(value);
}

TEST(Program, DeepOnesPrintAndParseBack) {
  for (const Op link : {Op::kSub, Op::kNeg}) {
    const Program program = deep(60000, link);
    const std::string text = program.to_string();
    EXPECT_EQ(Program::parse(text), program);
  }
}

TEST(Program, TheLargestPrintsBackWithinTheParsersLimits) {
  ir::Builder builder;
  const std::string name(ir::kMaxNameBytes, 'n');
  const std::uint32_t table = builder.declare({name, Type::kF32, {}, kMaxTableRank});
  NodeId value = builder.leaf(Op::kScore);
  const NodeId far = builder.constant(INT32_MIN + 1);
  while (builder.node_count() + 3 < ir::kMaxNodes) {
    const NodeId place = builder.constant(INT32_MIN + 2 + static_cast<std::int32_t>(builder.node_count()));
    value = builder.make(Op::kAdd, {value, builder.gather(table, std::array{place, far, far, far})});
  }
  const Program program = builder.finish(value);
  EXPECT_GT(program.nodes().size(), ir::kMaxNodes - 8);
  EXPECT_EQ(Program::parse(program.to_string()), program);
}

TEST(OperandDecl, CountsItsDimensions) {
  EXPECT_EQ((OperandDecl{"x", Type::kF32, {}, 0}.rank()), 0);
  EXPECT_EQ((OperandDecl{"x", Type::kF32, {true, false, true, true}, 0}.rank()), 3);
  EXPECT_EQ((OperandDecl{"x", Type::kF32, {}, 2}.rank()), 2);
  EXPECT_TRUE((OperandDecl{"x", Type::kF32, {}, 2}.is_table()));
}

}  // namespace
}  // namespace scoremod
