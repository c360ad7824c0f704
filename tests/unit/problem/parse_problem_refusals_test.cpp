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
      {"trailing_nul", std::string("{}\0", 3), {"expected JSON: the text to end", "a NUL as byte 3"}},
      {"text_behind_a_nul", std::string("{}\0{", 4), {"expected JSON: the text to end", "a NUL as byte 3"}},
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
      {"null_head_dim", replaced("\"dim_qk\": 8", "\"dim_qk\": null"), {"dim_qk: expected an integer, found null"}},
      {"inputs_beside_open_sizes",
       replaced("\"batch\": 2", "\"batch\": null"),
       {"inputs: expected none in a problem with open sizes (null), found some"}},
      {"size_beyond_i64",
       replaced("\"batch\": 2", "\"batch\": 9223372036854775808"),
       {"batch: expected an integer below 2^63"}},
      {"size_beyond_u64",
       replaced("\"batch\": 2", "\"batch\": 99999999999999999999"),
       {"batch: expected an integer, found"}},
      {"size_of_minus_1",
       replaced("\"batch\": 2", "\"batch\": -1"),
       {"batch: expected a size from 1 to 1073741824, or null for an open one, found -1"}},
      {"size_of_minus_2", replaced("\"batch\": 2", "\"batch\": -2"), {"batch: expected a size from 1 to", "found -2"}},
      {"head_dim_of_minus_1",
       replaced("\"dim_qk\": 8", "\"dim_qk\": -1"),
       {"dim_qk: expected a size from 1 to 1073741824, found -1"}},
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
      {"operand_shape_of_minus_1",
       replaced("[4, 9]", "[4, -1]"),
       {"operands[0].shape[1]: expected a size from 1 to 1073741824, or null for an open one, found -1"}},
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

TEST(ParseProblem, PagedSizesAreNumbersOrOpen) {
  const auto paged = [](const std::string& block_size, const std::string& blocks) {
    return refusal(
        R"({"batch": 2, "heads_q": 1, "seq_q": 1, "seq_kv": 8, "dim_qk": 4, "lengths": {"kv": true}, "paged": )"
        R"({"block_size": )" +
        block_size + R"(, "blocks": )" + blocks + R"(, "blocks_per_sequence": 2}})");
  };
  EXPECT_EQ(paged("4", "-1"), "paged.blocks: expected a size from 1 to 1073741824, or null for an open one, found -1");
  EXPECT_EQ(paged("null", "4"), "paged.block_size: expected an integer, found null");
  EXPECT_EQ(paged("-1", "4"), "paged.block_size: expected a size from 1 to 1073741824, found -1");
}

TEST(ParseProblem, AnInputNameThatMeansTwoTensorsIsRefused) {
  const std::string text = R"({"batch": 1, "heads_q": 1, "seq_q": 4, "dim_qk": 4,
    "program": "operand k: f32 []\nvalue = score * k", "inputs": {"k": {"normal": [0, 1]}}})";
  EXPECT_NE(refusal(text).find("inputs.k: expected the name of one tensor"), std::string::npos) << refusal(text);
}

}  // namespace
}  // namespace scoremod
