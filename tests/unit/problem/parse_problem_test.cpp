#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/problem_file.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// A file with every field and its explicit value; tests replace parts of it.
const char* const kFull = R"({
  "$schema": "problem.schema.json",
  "description": "every field",
  "batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6,
  "dtype": "bf16",
  "dtype_o": "f32",
  "d_o": "BHSD",
  "layout": "SBHD",
  "q": "BHSD",
  "k": {"layout": "BSHD", "strides": {"batch": 1000, "head": 10, "sequence": 100, "dim": 1}},
  "dv": {"strides": {"batch": 1000, "head": 10, "sequence": 100, "dim": 1}},
  "scale": 0.25,
  "lengths": {"kv": true},
  "sink": "learned",
  "dropout": 0.125,
  "dropout_keys": true,
  "given_deltas": true,
  "program": ["operand slopes: f32 [h]", "operand doc: i32 [b, kv_idx]", "operand allowed: bool [q_idx, kv_idx]",
              "table rel: f32 rank 2", "value = score + slopes + rel[h, q_idx]", "keep = allowed & doc == b"],
  "operands": [
    {"name": "rel", "dtype": "f16", "shape": [4, 9], "strides": [16, 1]},
    {"name": "slopes", "dtype": "bf16", "gradient": false}
  ],
  "backward": true,
  "stats": true,
  "max_logit": true,
  "index_offsets": true,
  "deterministic": true,
  "seed": 7,
  "inputs": {
    "q": {"npy": "q.npy"},
    "k": {"normal": [0, 2.5]},
    "slopes": {"values": [0.5, 0.25, 1, -2]},
    "doc": {"segments": 3},
    "rel": {"uniform": [-1, 1]},
    "allowed": {"values": [true, false, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true,
                           true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true,
                           true]}
  }
})";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kFull;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  return test::refusal([&] { parse_problem_file(text); });
}

/// What is ragged has layout THD without saying so.
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
  // Of one tensor, beside others.
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

struct BadFile {
  const char* name;
  std::string text;
  std::vector<const char*> fragments;  ///< each must be in the message
};

void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

const std::vector<BadFile>& bad_files() {
  static const std::vector<BadFile> kTable{
      {"empty", "", {"expected a JSON object", "empty"}},
      {"blank", " \n\t", {"expected a JSON object", "empty"}},
      {"truncated", std::string(kFull).substr(0, 200), {"expected JSON: parse error at line"}},
      {"binary", std::string("\x93NUMPY\x01\x00v\x00", 10), {"expected JSON: parse error at line 1, column 1"}},
      {"invalid_utf8", "{\"description\": \"\xff\xfe\"}", {"expected JSON: parse error", "UTF-8"}},
      {"trailing_text", std::string(kFull) + "x", {"expected JSON: parse error"}},
      {"trailing_comma", R"({"batch": 1,})", {"expected JSON: parse error"}},
      {"comment", "{} // comment", {"expected JSON: parse error"}},
      {"array", "[]", {"the file: expected an object, found the array []"}},
      {"number", "3", {"the file: expected an object, found the number 3"}},
      {"deep", std::string(100000, '['), {"nested at most 32 deep"}},
      {"deep_objects",
       "{\"description\":" + std::string(50, '[') + std::string(50, ']') + "}",
       {"nested at most 32 deep"}},
      {"repeated_field", R"({"batch": 1, "batch": 2})", {"expected each field once, found 'batch' twice"}},
      {"repeated_inner_field", replaced("\"head\": 10", "\"batch\": 10"), {"found 'batch' twice"}},
      {"nan", replaced("0.25", "NaN"), {"expected JSON: parse error at line"}},
      {"infinite_scale", replaced("0.25", "1e999"), {"expected JSON: number overflow"}},
      {"scale_beyond_f32",
       replaced("0.25", "1e39"),
       {"scale: expected a number within the range of f32, found the number 1e+39"}},
      {"scale_text", replaced("0.25", "\"0.25\""), {"scale: expected a number, found the string \"0.25\""}},
      {"unknown_field",
       replaced("\"heads_q\"", "\"head_q\""),
       {"head_q: this field has no meaning (did you mean 'heads_q'?)"}},
      {"unknown_field_far",
       replaced("\"heads_q\"", "\"colour\""),
       {"colour: this field has no meaning; expected '$schema'"}},
      {"unknown_stride",
       replaced("\"head\": 10", "\"heads\": 10"),
       {"k.strides.heads: this field has no meaning (did you mean 'head'?)"}},
      {"missing_size", replaced("\"seq_q\": 5,", ""), {"seq_q: expected a size, found no such field; add it"}},
      {"missing_stride", replaced("\"head\": 10,", ""), {"k.strides.head: expected a stride in elements"}},
      {"float_size", replaced("\"batch\": 2", "\"batch\": 2.0"), {"batch: expected an integer, found the number 2.0"}},
      {"string_size",
       replaced("\"batch\": 2", "\"batch\": \"2\""),
       {"batch: expected an integer, found the string \"2\""}},
      {"bool_size", replaced("\"batch\": 2", "\"batch\": true"), {"batch: expected an integer, found true"}},
      {"null_size", replaced("\"batch\": 2", "\"batch\": null"), {"batch: expected an integer, found null"}},
      {"size_beyond_i64",
       replaced("\"batch\": 2", "\"batch\": 9223372036854775808"),
       {"batch: expected an integer below 2^63"}},
      {"size_beyond_u64",
       replaced("\"batch\": 2", "\"batch\": 99999999999999999999"),
       {"batch: expected an integer, found"}},
      {"size_too_large", replaced("\"batch\": 2", "\"batch\": 2147483648"), {"batch: expected a size from 1 to"}},
      {"dtype_unknown",
       replaced("\"dtype\": \"bf16\"", "\"dtype\": \"bfloat16\""),
       {"dtype: expected one of 'f32', 'f16', 'bf16', 'e4m3' and 'e5m2', found"}},
      {"dtype_of_integers",
       replaced("\"dtype\": \"bf16\"", "\"dtype\": \"i32\""),
       {"dtype: expected one of 'f32', 'f16', 'bf16', 'e4m3' and 'e5m2', found"}},
      {"layout_unknown",
       replaced("SBHD", "BDHS"),
       {"layout: expected one of 'BSHD', 'SBHD', 'BHSD' and 'THD'", "\"BDHS\""}},
      {"tensor_layout_unknown",
       replaced("\"layout\": \"BSHD\"", "\"layout\": \"bshd\""),
       {"k.layout: expected one of"}},
      {"tensor_number", replaced("\"q\": \"BHSD\"", "\"q\": 3"), {"q: expected an object, found the number 3"}},
      {"strides_list",
       replaced(R"({"batch": 1000, "head": 10, "sequence": 100, "dim": 1})", "[1000, 10, 100, 1]"),
       {"k.strides: expected an object, found the array [1000,10,100,1]"}},
      {"stride_overlap",
       replaced("\"sequence\": 100", "\"sequence\": 10"),
       {"k.strides: expected elements that do not overlap"}},
      {"program_line_number",
       replaced("\"operand slopes: f32 [h]\"", "7"),
       {"program[0]: expected a string, found the number 7"}},
      {"program_syntax",
       replaced("value = score + slopes", "value = scores + slopes"),
       {"program: line 5, column 9", "'scores' has no meaning", "^"}},
      {"program_derivative",
       replaced("\"keep = allowed & doc == b\"", "\"d_score = upstream\""),
       {"program: expected a user's program"}},
      {"operand_without_name", replaced("\"name\": \"rel\", ", ""), {"operands[0].name: expected the operand's name"}},
      {"operand_unknown",
       replaced("\"name\": \"slopes\"", "\"name\": \"slope\""),
       {"operands[1].name: expected an operand of the program", "did you mean 'slopes'?"}},
      {"operand_unknown_field",
       replaced("\"strides\": [16, 1]", "\"stride\": [16, 1]"),
       {"operands[0].stride: this field has no meaning (did you mean 'strides'?)"}},
      {"operand_shape_float",
       replaced("[4, 9]", "[4, 9.5]"),
       {"operands[0].shape[1]: expected an integer, found the number 9.5"}},
      {"operand_shape_zero", replaced("[4, 9]", "[4, 0]"), {"operands[0].shape[1]: expected a size from 1"}},
      {"operand_dtype",
       replaced("\"dtype\": \"bf16\", \"gradient\"", "\"dtype\": \"i32\", \"gradient\""),
       {"operands[1].dtype: expected f32, f16 or bf16"}},
      {"gradient_number", replaced("\"gradient\": false", "\"gradient\": 0"), {"operands[1].gradient: expected"}},
      {"table_left_out",
       replaced(R"({"name": "rel", "dtype": "f16", "shape": [4, 9], "strides": [16, 1]},)", ""),
       {"operands: expected the shape of table 'rel'", "with 2 sizes"}},
      {"flag_number",
       replaced("\"backward\": true", "\"backward\": 1"),
       {"backward: expected true or false, found the number 1"}},
      {"seed_negative", replaced("\"seed\": 7", "\"seed\": -7"), {"seed: expected an integer of at least 0, found -7"}},
      {"input_unknown",
       replaced("\"q\": {\"npy\"", "\"Q\": {\"npy\""),
       {"inputs.Q: this field has no meaning", "'d_o'"}},
      {"input_two_kinds",
       replaced("\"segments\": 3", "\"segments\": 3, \"npy\": \"x\""),
       {"inputs.doc: expected one of npy", "found 2"}},
      {"input_no_kind", replaced("{\"segments\": 3}", "{}"), {"inputs.doc: expected one of npy", "found 0"}},
      {"input_unknown_kind",
       replaced("\"segments\"", "\"segment\""),
       {"inputs.doc.segment: this field has no meaning (did you mean"}},
      {"input_empty_path", replaced("\"q.npy\"", "\"\""), {"inputs.q.npy: expected the path"}},
      {"input_path_number", replaced("\"q.npy\"", "1"), {"inputs.q.npy: expected a string"}},
      {"values_count", replaced("1, -2]", "1]"), {"inputs.slopes.values: expected 4 values", "found 3"}},
      {"values_type", replaced("1, -2]", "1, true]"), {"inputs.slopes.values[3]: expected a number, found true"}},
      {"values_bool_as_number",
       replaced("[true, false", "[1, false"),
       {"inputs.allowed.values[0]: expected true or false"}},
      {"values_i32_float",
       replaced("{\"segments\": 3}", "{\"uniform\": [0, 1.5]}"),
       {"inputs.doc.uniform[1]: expected an integer"}},
      {"values_i32_range",
       replaced("{\"segments\": 3}", "{\"uniform\": [0, 2147483648]}"),
       {"inputs.doc.uniform[1]", "within i32"}},
      {"uniform_swapped", replaced("[-1, 1]", "[1, -1]"), {"inputs.rel.uniform: expected [low, high]", "swap"}},
      {"uniform_count", replaced("[-1, 1]", "[1]"), {"inputs.rel.uniform: expected two numbers"}},
      {"normal_negative", replaced("[0, 2.5]", "[0, -2.5]"), {"inputs.k.normal[1]: expected a standard deviation"}},
      {"normal_of_i32",
       replaced("{\"segments\": 3}", "{\"normal\": [0, 1]}"),
       {"inputs.doc.normal: expected a tensor of floats", "i32"}},
      {"segments_zero",
       replaced("\"segments\": 3", "\"segments\": 0"),
       {"inputs.doc.segments: expected a count from 1 to 7"}},
      {"segments_of_floats",
       replaced("{\"uniform\": [-1, 1]}", "{\"segments\": 2}"),
       {"inputs.rel.segments: expected a tensor of i32"}},
  };
  return kTable;
}

class ParseProblemRefuses : public testing::TestWithParam<BadFile> {};

TEST_P(ParseProblemRefuses, WithThePathOfTheField) {
  const std::string message = refusal(GetParam().text);
  ASSERT_NE(message, "") << "accepted";
  for (const char* fragment : GetParam().fragments) EXPECT_NE(message.find(fragment), std::string::npos) << message;
  EXPECT_LT(message.size(), 2000u);
}

INSTANTIATE_TEST_SUITE_P(Table, ParseProblemRefuses, testing::ValuesIn(bad_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ParseProblem, FieldsOfAnotherKindAreNamed) {
  const std::string start = R"({"batch": 1, "heads_q": 1, "seq_q": 4, "dim_qk": 4, )";
  EXPECT_EQ(refusal(start + R"("program": 7})"),
            "program: expected the program's text, a list of its lines or an object, found the number 7");
  EXPECT_EQ(refusal(start + R"("operands": {}})"), "operands: expected an array of operands, found an object");
  EXPECT_EQ(refusal(start + R"("inputs": []})"), "inputs: expected an object, found the array []");
  const std::string mask = R"("program": "operand m: bool [b]\nvalue = score\nkeep = m", )";
  EXPECT_NE(refusal(start + mask + R"("inputs": {"m": {"uniform": [0, 1]}}})")
                .find("inputs.m.uniform: expected a tensor of numbers"),
            std::string::npos);
}

TEST(ParseProblem, AnInputNameThatMeansTwoTensorsIsRefused) {
  const std::string text = R"({"batch": 1, "heads_q": 1, "seq_q": 4, "dim_qk": 4,
    "program": "operand k: f32 []\nvalue = score * k", "inputs": {"k": {"normal": [0, 1]}}})";
  EXPECT_NE(refusal(text).find("inputs.k: expected the name of one tensor"), std::string::npos) << refusal(text);
}

}  // namespace
}  // namespace scoremod
