#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/problem.hpp"

#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// B2 Hq4 Hkv2 Sq5 Skv7 Dqk8 Dv6 with an operand of each kind.
AttentionProblem valid_problem() {
  AttentionProblem problem = test::small_problem();
  problem.program = Program::parse(
      "operand slopes: f32 [h]\n"
      "operand doc: i32 [b, kv_idx]\n"
      "operand allowed: bool [q_idx, kv_idx]\n"
      "operand temperature: f32 []\n"
      "table rel: f32 rank 2\n"
      "value = score * temperature + slopes * f32(q_idx - kv_idx) + rel[h, q_idx]\n"
      "keep = allowed & doc == b\n");
  problem.operands = {
      {"slopes", DType::kF32, {4}, {}},      {"doc", DType::kI32, {2, 7}, {}}, {"allowed", DType::kBool, {5, 7}, {}},
      {"temperature", DType::kBF16, {}, {}}, {"rel", DType::kF16, {4, 9}, {}},
  };
  problem.backward = true;
  problem.stats = true;
  return problem;
}

std::string refusal(const AttentionProblem& problem) {
  return test::refusal([&] { validate(problem); });
}

struct Mistake {
  const char* name;
  std::function<void(AttentionProblem&)> make;
  std::vector<const char*> fragments;  ///< each must be in the message
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

constexpr std::int64_t kHuge = std::int64_t{1} << 30;  // the largest size
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Dense BSHD strides of the valid problem's q (and of a like-shaped tensor).
Strides q_strides() { return {160, 8, 32, 1}; }

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> kTable{
      {"thd_without_tokens",
       [](auto& p) { p.q.layout = Layout::kTHD; },
       {"q.layout: expected BSHD, SBHD or BHSD of a tensor that is not ragged, found THD", "give tokens_q"}},
      {"ragged_in_a_dense_layout",
       [](auto& p) { p.tokens_kv = 9; },
       {"k.layout: expected THD, since tokens_kv makes the tensor ragged; found BSHD"}},
      {"ragged_tokens_that_overlap",
       [](auto& p) {
         p.tokens_q = 9;
         p.q = p.o = {Layout::kTHD, Strides{0, 8, 16, 1}};
       },
       {"q.strides: expected elements that do not overlap", "copy the tensor"}},
      {"ragged_tokens_that_repeat",
       [](auto& p) {
         p.tokens_q = 9;
         p.q = p.o = {Layout::kTHD, Strides{0, 8, 0, 1}};
       },
       {"q.strides.sequence: expected a stride of at least 1 for a dimension of size 9, found 0"}},
      {"too_many_tokens",
       [](auto& p) { p.tokens_q = 11; },
       {"tokens_q: expected at most 10 tokens, batch * seq_q", "found 11"}},
      {"paged_with_backward",
       [](auto& p) {
         p.paged = PagedKeys{4, 8, 2};
         p.lengths.kv = true;
       },
       {"paged: expected a problem without backward"}},
      {"paged_without_lengths",
       [](auto& p) {
         p.backward = false;
         p.paged = PagedKeys{4, 8, 2};
       },
       {"paged: expected lengths of keys beside it", "set lengths.kv"}},
      {"paged_and_ragged_keys",
       [](auto& p) {
         p.paged = PagedKeys{4, 8, 2};
         p.tokens_kv = 9;
       },
       {"paged: expected no tokens_kv beside it, found 9"}},
      {"too_few_blocks",
       [](auto& p) {
         p.backward = false;
         p.lengths.kv = true;
         p.paged = PagedKeys{4, 8, 1};
       },
       {"paged.blocks_per_sequence: expected blocks for seq_kv (7) keys, at least 2; found 1 of 4 keys each"}},
      {"block_size_zero",
       [](auto& p) {
         p.paged = PagedKeys{0, 8, 1};
       },
       {"paged.block_size: expected a size from 1", "found 0"}},
      {"output_of_integers",
       [](auto& p) { p.dtype_o = DType::kI32; },
       {"dtype_o: expected f32, f16, bf16, e4m3 or e5m2 (of o), found i32"}},
      {"gradient_that_overlaps",
       [](auto& p) {
         p.dq = TensorLayout{Layout::kBSHD, Strides{160, 8, 31, 1}};
       },
       {"dq.strides: expected elements that do not overlap"}},
      {"gradient_that_broadcasts",
       [](auto& p) {
         p.dv = TensorLayout{Layout::kBSHD, Strides{0, 6, 12, 1}};
       },
       {"dv.strides.batch: expected a stride of at least 1", "dv is written with these strides"}},
      {"offsets_of_another_shape",
       [](auto& p) {
         p.tokens_q = 9;
         p.q = p.o = {Layout::kTHD, {}};
         p.operands.push_back({"offsets_q", DType::kI32, {2}, {}});
       },
       {"operands[5].shape: expected [3], which the problem's fields give operand 'offsets_q'; found [2]"}},
      {"batch_zero", [](auto& p) { p.batch = 0; }, {"batch: expected a size from 1 to 1073741824", "found 0"}},
      {"heads_q_negative", [](auto& p) { p.heads_q = -4; }, {"heads_q: expected a size", "found -4"}},
      {"heads_kv_zero", [](auto& p) { p.heads_kv = 0; }, {"heads_kv: expected a size", "found 0"}},
      {"seq_q_beyond_i32", [](auto& p) { p.seq_q = kHuge + 1; }, {"seq_q: expected a size", "i32", "1073741825"}},
      {"seq_kv_zero", [](auto& p) { p.seq_kv = 0; }, {"seq_kv: expected a size"}},
      {"dim_qk_zero", [](auto& p) { p.dim_qk = 0; }, {"dim_qk: expected a size"}},
      {"dim_v_minimum",
       [](auto& p) { p.dim_v = std::numeric_limits<std::int64_t>::min(); },
       {"dim_v: expected a size"}},
      {"head_ratio", [](auto& p) { p.heads_kv = 3; }, {"heads_kv: expected a divisor of heads_q (4)", "found 3"}},
      {"more_kv_heads", [](auto& p) { p.heads_kv = 8; }, {"heads_kv: expected a divisor of heads_q (4)", "found 8"}},
      {"dtype_integer",
       [](auto& p) { p.dtype = DType::kI32; },
       {"dtype: expected f32, f16, bf16, e4m3 or e5m2", "found i32"}},
      {"float8_output_of_others",
       [](auto& p) { p.dtype_o = DType::kE4M3; },
       {"dtype_o: expected f32, f16 or bf16 in a problem whose dtype is f32, found e4m3", "make dtype e4m3 or e5m2"}},
      {"dtype_d_o_of_others",
       [](auto& p) { p.dtype_d_o = DType::kF16; },
       {"dtype_d_o: expected none (d_o has the dtype of o) in a problem whose dtype is f32, found f16"}},
      {"dtype_gradients_of_others",
       [](auto& p) { p.dtype_gradients = DType::kF16; },
       {"dtype_gradients: expected none (dq, dk and dv have the dtype of q) in a problem whose dtype is f32, found "
        "f16"}},
      {"amax_of_others",
       [](auto& p) { p.amax_o = true; },
       {"amax_o: expected false in a problem whose dtype is f32, found true"}},
      {"amax_gradients_of_others",
       [](auto& p) { p.amax_gradients = true; },
       {"amax_gradients: expected false in a problem whose dtype is f32, found true"}},
      {"amax_gradients_of_forwards",
       [](auto& p) {
         p.dtype = DType::kE4M3;
         p.amax_gradients = true;
         p.backward = false;
       },
       {"amax_gradients: expected false in a problem without backward", "found true"}},
      {"keys_of_16_bits",
       [](auto& p) {
         p.backward = false;
         p.dtype_kv = DType::kBF16;
       },
       {"dtype_kv: expected e4m3 or e5m2 (of k and v), found bf16", "leave it out"}},
      {"keys_of_float8_queries",
       [](auto& p) {
         p.backward = false;
         p.dtype = p.dtype_o.emplace(DType::kE4M3);
         p.dtype_kv = DType::kE5M2;
       },
       {"dtype_kv: expected none in a problem whose dtype is e4m3", "found e5m2"}},
      {"gradients_of_float8_keys",
       [](auto& p) {
         p.backward = true;
         p.dtype_kv = DType::kE4M3;
       },
       {"dtype_kv: expected a problem without backward", "or convert k and v to f32"}},
      {"float8_gradients",
       [](auto& p) {
         p.dtype = DType::kE4M3;
         p.dtype_gradients = DType::kE5M2;
       },
       {"dtype_gradients: expected f32, f16 or bf16 (of dq, dk and dv), found e5m2"}},
      {"integer_d_o",
       [](auto& p) {
         p.dtype = DType::kE4M3;
         p.dtype_d_o = DType::kBool;
       },
       {"dtype_d_o: expected f32, f16, bf16, e4m3 or e5m2 (of d_o), found bool"}},
      {"half_factor",
       [](auto& p) {
         p.dtype = DType::kE4M3;
         p.operands.push_back({"descale_q", DType::kF16, {}, {}, false});
       },
       {"operands[5].dtype: expected f32 for operand 'descale_q', the scale of an FP8 tensor; found f16"}},
      {"factor_with_a_gradient",
       [](auto& p) {
         p.dtype = DType::kE4M3;
         p.operands.push_back({"scale_o", DType::kF32, {}, {}});
       },
       {"operands[5].gradient: expected false for operand 'scale_o'"}},
      {"program_reads_a_factor",
       [](auto& p) {
         p.dtype = DType::kE4M3;
         p.program = Program::parse("operand descale_v: f32 []\nvalue = score * descale_v");
         p.operands.clear();
       },
       {"program: expected no program that reads operand 'descale_v'", "scale of an FP8 tensor is bound"}},
      {"program_declares_a_factor_otherwise",
       [](auto& p) {
         p.dtype = DType::kE5M2;
         p.program = Program::parse("operand descale_k: f32 [h]\nvalue = score * descale_k");
         p.operands.clear();
       },
       {"program: expected operand 'descale_k' to be f32 without axes"}},
      {"float8_operand",
       [](auto& p) { p.operands[0].dtype = DType::kE4M3; },
       {"operands[0].dtype: expected f32, f16 or bf16 for operand 'slopes'", "found e4m3"}},
      {"dtype_unknown", [](auto& p) { p.dtype = static_cast<DType>(99); }, {"dtype: expected a DType", "99"}},
      {"layout_unknown", [](auto& p) { p.k.layout = static_cast<Layout>(9); }, {"k.layout: expected a Layout", "9"}},
      {"sink_unknown", [](auto& p) { p.sink = static_cast<Sink>(7); }, {"sink: expected a Sink", "7"}},
      {"dropout_of_all", [](auto& p) { p.dropout = 1; }, {"dropout: expected a probability", "below 1, found 1"}},
      {"dropout_negative", [](auto& p) { p.dropout = -0.5f; }, {"dropout: expected", "found -0.5"}},
      {"dropout_nan", [](auto& p) { p.dropout = std::nanf(""); }, {"dropout: expected", "found nan"}},
      {"scale_infinite",
       [](auto& p) { p.scale = kInf; },
       {"scale: expected a finite number, found inf", "leave it out"}},
      {"scale_nan", [](auto& p) { p.scale = std::nanf(""); }, {"scale: expected a finite number, found nan"}},
      {"bytes_overflow",
       [](auto& p) {
         p.batch = p.seq_q = kHuge;
         p.dim_qk = 4;
       },
       {"q: expected a tensor of less than 2^63 bytes"}},
      {"kv_bytes_overflow",
       [](auto& p) {
         p.batch = 1;
         p.seq_kv = p.dim_v = kHuge;
         p.dim_qk = 1;
       },
       {"v: expected a tensor of less"}},
      {"stride_overflow",
       [](auto& p) {
         p.q.strides = q_strides();
         p.q.strides->batch = std::numeric_limits<std::int64_t>::max();
         p.batch = 4;
       },
       {"q: expected a tensor of less than 2^63 bytes", "the strides smaller"}},
      {"broadcast_count_overflow",
       [](auto& p) {
         p.backward = false;
         p.batch = p.heads_q = p.heads_kv = kHuge;
         p.k.strides = Strides{0, 0, 8, 1};
       },
       {"q: expected a tensor of less than 2^63 bytes"}},
      {"stride_negative",
       [](auto& p) {
         p.q.strides = q_strides();
         p.q.strides->sequence = -32;
       },
       {"q.strides.sequence: expected a stride that is not negative, found -32", "copy the tensor"}},
      {"output_broadcast",
       [](auto& p) {
         p.backward = false;
         p.o.strides = Strides{0, 6, 24, 1};
       },
       {"o.strides.batch", "found 0", "o is written"}},
      {"gradient_broadcast",
       [](auto& p) {
         p.k.strides = Strides{56, 0, 8, 1};
       },
       {"k.strides.head", "found 0", "dk is written"}},
      {"sequence_broadcast",
       [](auto& p) {
         p.backward = false;
         p.v.strides = Strides{42, 6, 0, 1};
       },
       {"v.strides.sequence: expected a stride of at least 1 for a dimension of size 7, found 0"}},
      {"output_overlap",
       [](auto& p) {
         p.o.strides = Strides{120, 6, 23, 1};
       },
       {"o.strides: expected elements that do not overlap", "sizes [2, 4, 5, 6]", "strides [120, 6, 23, 1]"}},
      {"input_overlap",
       [](auto& p) {
         p.backward = false;
         p.q.strides = Strides{160, 8, 31, 1};
       },
       {"q.strides: expected elements"}},
      {"dim_stride_equal",
       [](auto& p) {
         p.q.strides = Strides{160, 8, 1, 1};
       },
       {"q.strides: expected elements"}},
      {"operand_unknown",
       [](auto& p) { p.operands[0].name = "slope"; },
       {"operands[0].name: expected an operand of the program", "'temperature'", "found 'slope'",
        "did you mean 'slopes'?"}},
      {"operand_twice",
       [](auto& p) { p.operands.push_back(p.operands[1]); },
       {"operands[5].name: expected each operand once, found 'doc' in operands[1] too"}},
      {"operand_missing",
       [](auto& p) { p.operands.erase(p.operands.begin() + 4); },
       {"operands: the program reads operand 'rel'", "add it"}},
      {"operand_float_as_i32",
       [](auto& p) { p.operands[0].dtype = DType::kI32; },
       {"operands[0].dtype: expected f32, f16 or bf16 for operand 'slopes'", "declares as f32; found i32"}},
      {"operand_i32_as_f32",
       [](auto& p) { p.operands[1].dtype = DType::kF32; },
       {"operands[1].dtype: expected i32", "found f32"}},
      {"operand_bool_as_i32",
       [](auto& p) { p.operands[2].dtype = DType::kI32; },
       {"operands[2].dtype: expected bool", "found i32"}},
      {"operand_dtype_unknown",
       [](auto& p) { p.operands[2].dtype = static_cast<DType>(77); },
       {"operands[2].dtype", "77"}},
      {"operand_size",
       [](auto& p) { p.operands[0].shape = {2}; },
       {"operands[0].shape: expected [4], the problem's sizes along the axes [h] of operand 'slopes'; found [2]"}},
      {"operand_broadcast_size_one",
       [](auto& p) {
         p.operands[1].shape = {1, 7};
       },
       {"operands[1].shape: expected [2, 7]", "axes [b, kv_idx]", "found [1, 7]"}},
      {"operand_rank",
       [](auto& p) { p.operands[2].shape = {35}; },
       {"operands[2].shape: expected [5, 7]", "found [35]"}},
      {"scalar_with_shape",
       [](auto& p) { p.operands[3].shape = {1}; },
       {"operands[3].shape: expected []", "axes []", "found [1]"}},
      {"table_rank",
       [](auto& p) { p.operands[4].shape = {4}; },
       {"operands[4].shape: expected 2 sizes, the rank of table 'rel'", "[4]"}},
      {"table_huge_rank", [](auto& p) { p.operands[4].shape.assign(100, 1); }, {"operands[4].shape: expected 2 sizes"}},
      {"table_extent_zero",
       [](auto& p) {
         p.operands[4].shape = {4, 0};
       },
       {"operands[4].shape[1]: expected a size from 1", "found 0"}},
      {"table_bytes",
       [](auto& p) {
         p.operands[4].strides = {std::int64_t{1} << 62, 1};
       },
       {"operands[4]: expected a tensor of less than 2^63"}},
      {"operand_strides_count",
       [](auto& p) { p.operands[1].strides = {1}; },
       {"operands[1].strides: expected one for each dimension (2)", "found [1]"}},
      {"operand_stride_negative",
       [](auto& p) {
         p.operands[1].strides = {-7, 1};
       },
       {"operands[1].strides[0]", "not negative, found -7"}},
      {"operand_gradient_broadcast",
       [](auto& p) {
         p.operands[4].strides = {0, 1};
       },
       {"operands[4].strides[0]", "found 0", "the gradient of 'rel' is written"}},
      {"operand_overlap",
       [](auto& p) {
         p.operands[1].strides = {6, 1};
       },
       {"operands[1].strides: expected elements that do not overlap"}},
      {"derivative_as_program",
       [](auto& p) {
         p.program = Program::parse("value = score\nd_score = upstream");
         p.operands.clear();
       },
       {"program: expected a user's program", "found one with gradients"}},
  };
  return kTable;
}

class ValidateRefuses : public testing::TestWithParam<Mistake> {};

TEST_P(ValidateRefuses, WithTheFieldTheExpectationAndTheFinding) {
  AttentionProblem problem = valid_problem();
  GetParam().make(problem);
  const std::string message = refusal(problem);
  ASSERT_NE(message, "") << "accepted";
  for (const char* fragment : GetParam().fragments) EXPECT_NE(message.find(fragment), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Table, ValidateRefuses, testing::ValuesIn(mistakes()),
                         [](const auto& test) { return std::string(test.param.name); });

struct Accepted {
  const char* name;
  std::function<void(AttentionProblem&)> make;
};

void PrintTo(const Accepted& accepted, std::ostream* out) { *out << accepted.name; }

class ValidateAccepts : public testing::TestWithParam<Accepted> {};

TEST_P(ValidateAccepts, Problem) {
  AttentionProblem problem = valid_problem();
  GetParam().make(problem);
  EXPECT_NO_THROW(validate(problem));
}

INSTANTIATE_TEST_SUITE_P(Table, ValidateAccepts,
                         testing::Values(Accepted{"all_operand_kinds", [](auto&) {}},
                                         Accepted{"defaults", [](auto& p) { p = AttentionProblem(); }},
                                         Accepted{"zero_scale", [](auto& p) { p.scale = 0.0f; }},
                                         Accepted{"padded_rows",
                                                  [](auto& p) {
                                                    p.q.strides = Strides{240, 12, 48, 1};
                                                  }},
                                         Accepted{"transposed_head_dim",
                                                  [](auto& p) {
                                                    p.k.strides = Strides{112, 56, 1, 7};
                                                  }},
                                         Accepted{"keys_shared_by_the_batch",
                                                  [](auto& p) {
                                                    p.backward = false;
                                                    p.k.strides = Strides{0, 8, 16, 1};
                                                  }},
                                         Accepted{"values_shared_by_the_heads",
                                                  [](auto& p) {
                                                    p.backward = false;
                                                    p.v.strides = Strides{42, 0, 6, 1};
                                                  }},
                                         Accepted{"stride_of_a_dimension_of_one",
                                                  [](auto& p) {
                                                    p.batch = 1;
                                                    p.operands[1].shape = {1, 7};
                                                    p.o.strides = Strides{0, 6, 24, 1};
                                                  }},
                                         Accepted{"integer_operand_broadcast",
                                                  [](auto& p) {
                                                    p.operands[1].strides = {0, 1};
                                                  }},
                                         Accepted{"float_operand_broadcast_without_backward",
                                                  [](auto& p) {
                                                    p.backward = false;
                                                    p.operands[4].strides = {0, 1};
                                                  }},
                                         Accepted{"float_operand_broadcast_without_its_gradient",
                                                  [](auto& p) {
                                                    p.operands[4].gradient = false;
                                                    p.operands[4].strides = {0, 1};
                                                  }},
                                         Accepted{"operands_in_another_order",
                                                  [](auto& p) { std::swap(p.operands[0], p.operands[4]); }}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Problem, EffectiveScaleIsTheGivenOneOrThatOfTheHeadDim) {
  AttentionProblem problem;
  EXPECT_EQ(problem.effective_scale(), 0.125f);
  problem.scale = 0.5f;
  EXPECT_EQ(problem.effective_scale(), 0.5f);
}

/// With a gradient that lies otherwise, the tensor itself is only read.
TEST(Validate, ATensorWhoseGradientLiesOtherwiseMayBroadcast) {
  AttentionProblem problem = valid_problem();
  problem.q.strides = Strides{0, 8, 32, 1};
  EXPECT_NE(refusal(problem), "");
  problem.dq = TensorLayout{};
  EXPECT_NO_THROW(validate(problem));
}

}  // namespace
}  // namespace scoremod
