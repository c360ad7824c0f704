#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/problem_file.hpp"

#include "support/refusal.hpp"
#include "unit/problem/problem_file_text.hpp"

namespace scoremod {
namespace {

std::string refusal(const std::string& text) {
  return test::refusal([&] { parse_problem_file(text); });
}

/// A varlen problem has layout THD by default.
TEST(ParseProblem, ReadsWhereSequencesLie) {
  const AttentionProblem ragged = parse_problem(
      R"({"batch": 2, "heads_q": 1, "seq_q": 8, "seq_kv": 9, "dim_qk": 4, "layout": "BHSD", "tokens_q": 11,
          "backward": true})");
  EXPECT_EQ(ragged.tokens_q, 11);
  EXPECT_EQ(ragged.tokens_kv, std::nullopt);
  EXPECT_EQ(ragged.q.layout, Layout::kTHD);
  EXPECT_EQ(ragged.o.layout, Layout::kTHD);
  EXPECT_EQ(ragged.k.layout, Layout::kBHSD);
  EXPECT_EQ(parse_problem(to_json(ragged)), ragged);
  const AttentionProblem paged = parse_problem(
      R"({"batch": 2, "heads_q": 1, "seq_q": 1, "seq_kv": 9, "dim_qk": 4, "lengths": {"kv": true},
          "paged": {"block_size": 4, "blocks": 7, "blocks_per_sequence": 3}})");
  EXPECT_EQ(paged.paged, (PagedKeys{4, 7, 3}));
  EXPECT_EQ(parse_problem(to_json(paged)), paged);
}

/// Gradients of packed tensors are packed by the same names.
TEST(ParseProblem, GradientsMayBePacked) {
  const AttentionProblem problem = parse_problem(
      R"({"batch": 2, "heads_q": 3, "seq_q": 8, "dim_qk": 4, "dq": "BS3HD", "dk": "BS3HD", "dv": "BS3HD",
          "backward": true})");
  EXPECT_EQ(problem.q.strides, std::nullopt);
  EXPECT_EQ(problem.dq, (TensorLayout{Layout::kBSHD, Strides{288, 4, 36, 1}}));
}

TEST(ParseProblem, ReadsEveryField) {
  const ProblemFile file = parse_problem_file(kFull);
  const AttentionProblem& problem = file.problem;
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.heads_q, 4);
  EXPECT_EQ(problem.heads_kv, 2);
  EXPECT_EQ(problem.seq_q, 5);
  EXPECT_EQ(problem.seq_kv, 7);
  EXPECT_EQ(problem.dim_qk, 8);
  EXPECT_EQ(problem.dim_v, 6);
  EXPECT_EQ(problem.dtype, DType::kBF16);
  EXPECT_EQ(problem.q, (TensorLayout{Layout::kBHSD, std::nullopt}));
  EXPECT_EQ(problem.k, (TensorLayout{Layout::kBSHD, Strides{1000, 10, 100, 1}}));
  EXPECT_EQ(problem.v, (TensorLayout{Layout::kSBHD, std::nullopt}));
  EXPECT_EQ(problem.o, (TensorLayout{Layout::kSBHD, std::nullopt}));
  EXPECT_EQ(problem.dtype_o, DType::kF32);
  EXPECT_EQ(problem.d_o, (TensorLayout{Layout::kBHSD, std::nullopt}));
  EXPECT_EQ(problem.dq, std::nullopt);
  EXPECT_EQ(problem.dv, (TensorLayout{Layout::kSBHD, Strides{1000, 10, 100, 1}}));  // v's layout
  EXPECT_EQ(problem.scale, 0.25f);
  EXPECT_EQ(problem.lengths, (SequenceLengths{false, true}));
  EXPECT_EQ(problem.sink, Sink::kLearned);
  EXPECT_EQ(problem.dropout, 0.125f);
  EXPECT_TRUE(problem.dropout_keys);
  EXPECT_TRUE(problem.given_deltas);
  EXPECT_TRUE(problem.max_logit);
  EXPECT_EQ(problem.program.operands().size(), 4u);
  const std::vector<OperandSpec> operands{{"rel", DType::kF16, {4, 9}, {16, 1}},
                                          {"slopes", DType::kBF16, {4}, {}, false},
                                          {"doc", DType::kI32, {2, 7}, {}},
                                          {"allowed", DType::kBool, {5, 7}, {}}};
  EXPECT_EQ(problem.operands, operands);
  EXPECT_TRUE(problem.backward);
  EXPECT_TRUE(problem.stats);
  EXPECT_TRUE(problem.index_offsets);
  EXPECT_TRUE(problem.deterministic);
  EXPECT_EQ(file.seed, 7u);
  ASSERT_EQ(file.inputs.size(), 6u);  // in the order of their names
  EXPECT_EQ(file.inputs[1].tensor, "doc");
  EXPECT_EQ(file.inputs[1].kind, InputKind::kSegments);
  EXPECT_EQ(file.inputs[1].high, 3);
  EXPECT_EQ(file.inputs[2], (InputSpec{"k", InputKind::kNormal, "", {}, 0, 2.5}));
  EXPECT_EQ(file.inputs[3], (InputSpec{"q", InputKind::kNpy, "q.npy", {}, 0, 0}));
  EXPECT_EQ(file.inputs[4], (InputSpec{"rel", InputKind::kUniform, "", {}, -1, 1}));
  EXPECT_EQ(file.inputs[5].values, (std::vector<double>{0.5, 0.25, 1, -2}));
  EXPECT_EQ(parse_problem(kFull), problem);
}

TEST(ParseProblem, DefaultsMakeAShortFile) {
  const ProblemFile file = parse_problem_file(R"({"batch": 3, "heads_q": 4, "seq_q": 16, "dim_qk": 32})");
  AttentionProblem expected;
  expected.batch = 3;
  expected.heads_q = expected.heads_kv = 4;
  expected.seq_q = expected.seq_kv = 16;
  expected.dim_qk = expected.dim_v = 32;
  EXPECT_EQ(file.problem, expected);
  EXPECT_TRUE(file.inputs.empty());
}

/// A problem of batch 2, sequence 5, heads 3 and head dim 4 with these tensors.
AttentionProblem packed_problem(const std::string& tensors) {
  return parse_problem(R"({"batch": 2, "heads_q": 3, "seq_q": 5, "dim_qk": 4, "backward": true, )" + tensors + "}");
}

TEST(ParseProblem, PackedLayoutsAreStrides) {
  const AttentionProblem bs3hd = packed_problem(R"("layout": "BS3HD")");
  for (const TensorLayout& tensor : {bs3hd.q, bs3hd.k, bs3hd.v})
    EXPECT_EQ(tensor, (TensorLayout{Layout::kBSHD, Strides{5 * 36, 4, 36, 1}}));
  EXPECT_EQ(bs3hd.o, (TensorLayout{Layout::kBSHD, std::nullopt}));
  EXPECT_EQ(packed_problem(R"("layout": "BSH3D")").v.strides, (Strides{5 * 36, 12, 36, 1}));
  EXPECT_EQ(packed_problem(R"("layout": "SB3HD")").q, (TensorLayout{Layout::kSBHD, Strides{36, 4, 72, 1}}));
  EXPECT_EQ(packed_problem(R"("layout": "SBH3D")").k.strides, (Strides{36, 12, 72, 1}));
  const AttentionProblem of_two = packed_problem(R"("layout": "SBH2D", "o": "BHSD")");
  EXPECT_EQ(of_two.q, (TensorLayout{Layout::kSBHD, std::nullopt}));
  EXPECT_EQ(of_two.k, (TensorLayout{Layout::kSBHD, Strides{24, 8, 48, 1}}));
  EXPECT_EQ(of_two.v, of_two.k);
  EXPECT_EQ(of_two.o.layout, Layout::kBHSD);
  // One tensor's packed layout beside others.
  const AttentionProblem mixed = packed_problem(R"("layout": "BHSD", "k": "BS2HD", "v": "BS2HD")");
  EXPECT_EQ(mixed.q.layout, Layout::kBHSD);
  EXPECT_EQ(mixed.k.strides, (Strides{5 * 24, 4, 24, 1}));
  EXPECT_EQ(parse_problem(to_json(mixed)), mixed);
}

TEST(ParseProblem, PackedLayoutsAreOfTensorsOfOneShape) {
  const auto refused = [](const std::string& tensors) { return test::refusal([&] { packed_problem(tensors); }); };
  EXPECT_NE(refused(R"("layout": "BS3HD", "seq_kv": 6)").find("layout: expected q, k and v of one shape"),
            std::string::npos);
  EXPECT_NE(refused(R"("k": "BS2HD", "dim_v": 6)").find("k: expected k and v of one shape"), std::string::npos);
  EXPECT_NE(refused(R"("o": "BS3HD")").find("o: expected one of 'BSHD', 'SBHD', 'BHSD' and 'THD', found the packed"),
            std::string::npos);
  EXPECT_NE(refused(R"("q": "BS2HD")").find("q: expected one of"), std::string::npos);
  EXPECT_NE(refused(R"("k": {"layout": "BS3HD"})").find("k.layout: expected one of"), std::string::npos);
}

TEST(ParseProblem, ProgramMayBeOneString) {
  const AttentionProblem problem = parse_problem(
      R"({"batch": 1, "heads_q": 1, "seq_q": 4, "dim_qk": 4, "program": "value = score\nkeep = q_idx >= kv_idx"})");
  EXPECT_EQ(problem.program, Program::parse("value = score\nkeep = q_idx >= kv_idx"));
}

const char* const kZooStart = R"({"batch": 2, "heads_q": 4, "seq_q": 16, "seq_kv": 24, "dim_qk": 8, )";

TEST(ParseProblem, ReadyMadeModifiersBringTheirOperands) {
  const AttentionProblem problem = parse_problem(
      std::string(kZooStart) +
      R"("program": {"score_mod": [{"name": "soft_cap", "cap": 30}, {"name": "t5_bias", "num_buckets": 8}],
                                 "mask_mod": ["causal", {"name": "padding", "lengths": "n"}]},
                     "operands": [{"name": "t5_table", "dtype": "bf16"}]})");
  const std::vector<OperandSpec> operands{{"t5_table", DType::kBF16, {8, 4}, {}}, {"n", DType::kI32, {2}, {}}};
  EXPECT_EQ(problem.operands, operands);
  const std::string text = problem.program.to_string();
  EXPECT_NE(text.find("tanh"), std::string::npos) << text;
  EXPECT_NE(problem.program.keep(), kNoNode);
  EXPECT_EQ(parse_problem(to_json(problem)), problem);
}

TEST(ParseProblem, ReadyMadeModifiersThatDoNotFitAreNamed) {
  const auto found = [](const std::string& program, const char* fragment) {
    const std::string message = refusal(kZooStart + ("\"program\": " + program) + "}");
    return message.find(fragment) != std::string::npos ? "" : "'" + message + "' lacks '" + fragment + "'";
  };
  EXPECT_EQ(found(R"({"score_mods": []})", "program.score_mods: this field has no meaning (did you mean 'score_mod'?)"),
            "");
  EXPECT_EQ(found(R"({"score_mod": "alibi"})", "program.score_mod: expected an array"), "");
  EXPECT_EQ(found(R"({"score_mod": [3]})", "program.score_mod[0]: expected the name of a ready-made modifier"), "");
  EXPECT_EQ(found(R"({"score_mod": [{"cap": 3}]})", "program.score_mod[0]: expected the name of a ready-made modifier"),
            "");
  EXPECT_EQ(found(R"({"score_mod": ["alibbi"]})", "found the string \"alibbi\" (did you mean 'alibi'?)"), "");
  EXPECT_EQ(found(R"({"mask_mod": ["causal", "alibi"]})",
                  "program.mask_mod[1]: expected a mask_mod, found the score_mod 'alibi'"),
            "");
  EXPECT_EQ(found(R"({"score_mod": [{"name": "soft_cap", "cup": 3}]})", "program.score_mod[0].cup"), "");
  EXPECT_EQ(found(R"({"score_mod": ["soft_cap"]})", "program.score_mod[0]:"), "");
  EXPECT_EQ(found(R"({"score_mod": [{"name": "soft_cap", "cap": -1}]})", "program.score_mod[0]:"), "");
  EXPECT_EQ(
      found(R"({"score_mod": [{"name": "soft_cap", "cap": [1]}]})", "program.score_mod[0].cap: expected a number"), "");
  EXPECT_EQ(
      found(
          R"({"score_mod": ["alibi", {"name": "head_temperature", "temperature": "slopes"}, {"name": "relative_table", "max_distance": 4, "table": "slopes"}]})",
          "program: "),
      "");
}

TEST(ToJson, IsReadBackAsTheSameProblem) {
  const AttentionProblem full = parse_problem(kFull);
  EXPECT_EQ(parse_problem(to_json(full)), full);
  const AttentionProblem defaults;
  EXPECT_EQ(parse_problem(to_json(defaults)), defaults);
  for (const float scale : {0.1f, 1e-45f, 3.4028235e38f, -0.0f, 1.0f / 3}) {
    AttentionProblem problem;
    problem.scale = scale;
    const AttentionProblem again = parse_problem(to_json(problem));
    EXPECT_EQ(std::signbit(*again.scale), std::signbit(scale));
    EXPECT_EQ(again.scale, scale);
  }
}

}  // namespace
}  // namespace scoremod
