#include <algorithm>
#include <initializer_list>
#include <utility>

#include "backend/cudnn/lowering/graph_writer.hpp"
#include "backend/cudnn/lowering/node_budget.hpp"
#include "base/fail.hpp"
#include "tools/cudnn/mutations.hpp"
#include "tools/cudnn/operand_cases.hpp"
#include "tools/cudnn/pattern_case.hpp"
#include "tools/cudnn/program_cases.hpp"
#include "tools/cudnn/zoo_cases.hpp"

namespace scoremod::explorer {
namespace {

using backend::cudnn::ElementType;
using backend::cudnn::kAtMostPattern;
using backend::cudnn::kIntegerFactorPattern;

constexpr int kNoBudget = 1000;

/// The node budget of a forward modifier, for all shapes of a problem.
std::size_t forward_budget() {
  return static_cast<std::size_t>(backend::cudnn::node_budget(AttentionProblem{}, false));
}

void add(std::vector<PatternCase>& cases, std::string pattern, std::string program, Mutation mutation = {}) {
  cases.push_back({.name = std::move(pattern), .program = std::move(program), .mutation = std::move(mutation)});
}

/// A pattern that the passes would rewrite.
void add_as_written(std::vector<PatternCase>& cases, std::string pattern, std::string program, Mutation mutation = {}) {
  cases.push_back(
      {.name = std::move(pattern), .program = std::move(program), .mutation = std::move(mutation), .as_written = true});
}

/// f32 functions, each at arguments where it matters and stays finite.
void add_float_ops(std::vector<PatternCase>& cases) {
  const std::pair<const char*, const char*> unary[] = {{"neg", "-score"},
                                                       {"abs", "abs(score)"},
                                                       {"floor", "score + floor(score * 4.0)"},
                                                       {"ceil", "score + ceil(score * 4.0)"},
                                                       {"exp", "exp(score * 0.25)"},
                                                       {"log", "log(abs(score) + 0.5)"},
                                                       {"sqrt", "sqrt(abs(score) + 0.5) * 3.0"},
                                                       {"rsqrt", "rsqrt(abs(score) + 0.1) * 3.0"},
                                                       {"reciprocal", "reciprocal(abs(score) + 0.3) * 3.0"},
                                                       {"sin", "sin(score) * 3.0"},
                                                       {"cos", "cos(score) * 3.0"},
                                                       {"tan", "tan(score * 0.05) * 9.0"},
                                                       {"tanh", "5.0 * tanh(score / 5.0)"},
                                                       {"sigmoid", "sigmoid(score) * 5.0"},
                                                       {"erf", "erf(score * 0.3) * 5.0"},
                                                       {"softplus", "softplus(score)"},
                                                       {"relu", "relu(score)"},
                                                       {"gelu", "gelu(score)"},
                                                       {"gelu_tanh", "gelu_tanh(score)"},
                                                       {"swish", "silu(score)"}};
  for (const auto& [name, text] : unary) add(cases, concat(name, ".f32"), concat("value = ", text));
  const std::pair<const char*, const char*> binary[] = {{"add", "score + sin(score)"},
                                                        {"sub", "score - sin(score)"},
                                                        {"mul", "score * cos(score)"},
                                                        {"div", "score / (abs(score) + 1.0)"},
                                                        {"pow", "pow(abs(score) + 0.5, 1.5)"},
                                                        {"min", "min(score, 1.0)"},
                                                        {"max", "max(score, -1.0)"}};
  for (const auto& [name, text] : binary) add(cases, concat(name, ".f32"), concat("value = ", text));
}

/// Index expressions beside the score: the order and types of a node's inputs.
void add_mixtures(std::vector<PatternCase>& cases) {
  const std::pair<const char*, const char*> sums[] = {{"add.f32", "f32(q_idx - kv_idx) * 0.03125 + score"},
                                                      {"sub.f32", "f32(q_idx - kv_idx) * 0.03125 - score"}};
  for (const auto& [name, text] : sums) {
    add(cases, concat("score_first.", name), concat("value = ", text));
    add(cases, concat("index_first.", name), concat("value = ", text), index_before_score());
  }
  add(cases, "index_first.mul.f32", "value = f32(h - b + 2) * 0.25 * score");
  add(cases, "index_first.div.f32", "value = f32(h - b + 2) / (abs(score) + 1.0)");
  add(cases, "index_first.min.f32", "value = min(f32(q_idx - kv_idx) * 0.03125, score)");
  add(cases, "index_first.max.f32", "value = max(f32(q_idx - kv_idx) * 0.03125, score)");
  add(cases, kIntegerFactorPattern, "operand x: f32 [h]\nvalue = score + f32(kv_idx - q_idx) * x");
  add(cases, kIntegerFactorPattern, "value = score + f32(kv_idx - q_idx) * 0.03125");
  add(cases, kIntegerFactorPattern, "value = score * f32(h - b + 2) * 0.25");
  add(cases, kIntegerFactorPattern, "value = score + f32(h - b + 2) * f32(kv_idx - q_idx) * 0.015625");
  add(cases, kAtMostPattern, "value = score\nkeep = kv_idx < 17 | q_idx >= kv_idx");
  add(cases, kAtMostPattern, "value = score\nkeep = q_idx <= 17 | q_idx <= kv_idx");
  add(cases, kAtMostPattern, "value = select(kv_idx < 17 | q_idx >= kv_idx, score, score * 0.25 - 1.0)");
}

/// The indices, each seen through a bias, and i32 arithmetic on operands.
void add_index_ops(std::vector<PatternCase>& cases) {
  const char* indices[] = {"b", "h", "q_idx", "kv_idx"};
  for (int axis = 0; axis < 4; ++axis)
    add(cases, concat("gen_index.", axis), concat("value = score + f32(", indices[axis], ") * 0.03125"));
  const std::pair<const char*, const char*> ops[] = {
      {"add.i32", "x + y"},      {"sub.i32", "x - y"},     {"mul.i32", "x * y"},    {"neg.i32", "-x"},
      {"abs.i32", "abs(x - 2)"}, {"min.i32", "min(x, y)"}, {"max.i32", "max(x, y)"}};
  const std::string operands = "operand x: i32 [h, q_idx, kv_idx]\noperand y: i32 [b, q_idx, kv_idx]\n";
  for (const auto& [name, text] : ops) add(cases, name, concat(operands, "value = score + f32(", text, ") * 0.25"));
  add(cases, "identity.i32_to_f32", "operand x: i32 [h, q_idx, kv_idx]\nvalue = score - f32(x) * 0.5");
  add(cases, "identity.bool_to_f32", "value = score + f32(q_idx - kv_idx > 3) * 2.0");
  add(cases, "identity.f32_to_i32", "value = score + f32(i32(score * 2.0)) * 0.5", without_truncation());
  add(cases, "identity.f32_to_i32.of_integer", "value = score + f32(i32(score * 2.0)) * 0.5");
  add(cases, "identity.bool_to_i32", "value = score + f32(i32(q_idx - kv_idx > 3)) * 2.0");
}

/// Adds the lowering's compositions, counts and other work beside single nodes.
void add_compositions(std::vector<PatternCase>& cases) {
  add(cases, "lift.f32", "operand x: f32 [h, q_idx, kv_idx]\noperand y: f32 [h, q_idx, kv_idx]\nvalue = score + x * y");
  add(cases, "lift.i32", "operand x: i32 [h, q_idx, kv_idx]\nvalue = score + f32(x) * 0.25");
  add(cases, "lift.bool", "operand x: bool [h, q_idx, kv_idx]\nvalue = score\nkeep = x");
  cases.back().denied = {"operand.1hqk.bool"};
  add(cases, "round.f32", "value = score + round(score * 2.0)");
  const IndexOffsets offsets{1, 2, 37, 11};
  const char* indices[] = {"b", "h", "q_idx", "kv_idx"};
  for (int axis = 2; axis < 4; ++axis) {
    add(cases, concat("index_offset.", axis), concat("value = score + f32(", indices[axis], ") * 0.03125"));
    cases.back().offsets = offsets;
  }
  for (const char* keep : {"q_idx >= kv_idx & q_idx - kv_idx < 90", "abs(q_idx - kv_idx) <= 40", "q_idx < kv_idx"}) {
    add(cases, "band.with_offsets", concat("value = score\nkeep = ", keep));
    cases.back().offsets = offsets;
  }
  add(cases, "operand.of_heads.beside_another", "operand x: f32 [h]\noperand y: f32 [kv_idx]\nvalue = score * x + y");
  add(cases, "operand.of_heads.beside_another",
      "operand x: f32 [h, q_idx]\noperand y: i32 [kv_idx]\nvalue = score + x * f32(y)");
  std::string declarations, sum = "value = score", product = sum;
  for (int count = 1; count <= 8; ++count) {
    declarations += concat("operand x", count, ": f32 [q_idx]\n");
    sum += concat(" + x", count);
    product += concat(" * x", count);
    add(cases, concat("row_vector_uses.", count), declarations + sum);
    if (count < 4) add(cases, concat("row_vector_factors.", count), declarations + product);
  }
}

void add_masks(std::vector<PatternCase>& cases) {
  const std::pair<const char*, const char*> comparisons[] = {{"cmp_eq", "=="}, {"cmp_neq", "!="}, {"cmp_lt", "<"},
                                                             {"cmp_le", "<="}, {"cmp_gt", ">"},   {"cmp_ge", ">="}};
  for (const auto& [name, symbol] : comparisons) {
    add(cases, concat(name, ".i32"),
        concat("operand x: i32 [h, q_idx, kv_idx]\nvalue = select(x ", symbol, " 2, score, score * 0.25 - 1.0)"));
    add(cases, concat(name, ".f32"),
        concat("value = select(floor(score * 2.0) ", symbol, " 1.0, score, score * 0.25 - 1.0)"));
  }
  const std::string operands = "operand x: i32 [h, q_idx, kv_idx]\noperand y: i32 [b, q_idx, kv_idx]\n";
  add(cases, "binary_select.i32", operands + "value = score + f32(select(score > 0.0, x, y)) * 0.25");
  add(cases, "binary_select.f32", "value = select(q_idx * 2 - kv_idx > 3, score, -score)");
  add(cases, "logical_and.f32", operands + "value = score\nkeep = (x > 0 & y < 3) | x == 3");
  add(cases, "logical_or.f32", operands + "value = score\nkeep = x > 2 | y < 2");
  add(cases, "logical_not.f32", operands + "value = select(!(x >= y), score, score * 0.25)");
  add(cases, "cmp_neq.logical", operands + "value = select((x > 1) ^ (y < 2), score, score * 0.25)");
  add(cases, "band.right", "value = score\nkeep = q_idx >= kv_idx");
  add(cases, "band.right.shifted", "value = score\nkeep = q_idx - 3 >= kv_idx");
  add(cases, "band.right.shifted_ahead", "value = score\nkeep = q_idx + 5 >= kv_idx");
  add(cases, "band.left", "value = score\nkeep = q_idx >= kv_idx & q_idx - kv_idx < 50");
  add(cases, "band.left.alone", "value = score\nkeep = q_idx - kv_idx < 50");
  add(cases, "band.after_cap", "value = 5.0 * tanh(score / 5.0)\nkeep = q_idx >= kv_idx");
  add(cases, "band.after_terms", "operand id: i32 [b, q_idx]\nvalue = score\nkeep = q_idx >= kv_idx & kv_idx >= id");
}

/// Ways of writing that the lowering avoids; among them every one that cuDNN 9.19 was seen to get wrong or to crash on.
void add_avoided(std::vector<PatternCase>& cases) {
  const std::pair<const char*, const char*> direct[] = {{"gt_q_kv", "q_idx > kv_idx"},  {"lt_q_kv", "q_idx < kv_idx"},
                                                        {"gt_kv_q", "kv_idx > q_idx"},  {"ge_kv_q", "kv_idx >= q_idx"},
                                                        {"le_kv_q", "kv_idx <= q_idx"}, {"ge_q_kv", "q_idx >= kv_idx"},
                                                        {"le_q_kv", "q_idx <= kv_idx"}};
  for (const auto& [name, text] : direct) {
    add_as_written(cases, concat("direct.", name), concat("value = select(", text, ", score, -inf)"),
                   direct_comparison());
    add_as_written(cases, concat("difference.", name), concat("value = select(", text, ", score, -inf)"));
  }
  add(cases, "logical_and.i32", "value = score\nkeep = (q_idx * 2 - kv_idx >= 3 & q_idx + kv_idx < 200) | kv_idx < 5",
      logical_compute(ElementType::kInt32));
  add(cases, "logical_and.bool", "value = score\nkeep = (q_idx * 2 - kv_idx >= 3 & q_idx + kv_idx < 200) | kv_idx < 5",
      logical_compute(ElementType::kBoolean));
  add(cases, "mul.bool_as_i32", "value = score\nkeep = (q_idx * 2 - kv_idx >= 3 & q_idx + kv_idx < 200) | kv_idx < 5",
      and_as_product(ElementType::kInt32));
  add(cases, "mul.bool_as_f32", "value = score\nkeep = (q_idx * 2 - kv_idx >= 3 & q_idx + kv_idx < 200) | kv_idx < 5",
      and_as_product(ElementType::kFloat));
  add(cases, "cmp_ge.i32_as_f32", "value = select(q_idx * 2 - kv_idx >= 3, score, score * 0.25 - 1.0)",
      comparison_compute(ElementType::kFloat));
  // A float32 offset added in FLOAT arithmetic; and the constant first.
  add_as_written(cases, "direct.ge_q_plus_offset_f32",
                 "operand x: f32 []\nvalue = select(f32(q_idx) + x >= f32(kv_idx), score, -inf)",
                 both(without_casts(), operands_as_declared()));
  add_as_written(cases, "direct.ge_q_kv.constant_first", "value = select(q_idx >= kv_idx, -inf, score)",
                 both(direct_comparison(), constant_first_select()));
  add_as_written(cases, "direct.le_q_kv.constant_first", "value = select(q_idx <= kv_idx, -inf, score)",
                 both(direct_comparison(), constant_first_select()));
  add(cases, "direct.padding_of_queries", "operand n: i32 [b]\nvalue = score\nkeep = q_idx < n & kv_idx < n",
      direct_query_bound());
  // The node budget, from both sides.
  for (const std::size_t nodes :
       {std::size_t{20}, std::size_t{40}, std::size_t{80}, forward_budget(), forward_budget() + 1}) {
    add(cases, concat("budget.", nodes), "value = score + 1.5", padded_to(nodes));
  }
  // Each sin that forward and adjoint share has a cos and a product, each factor a factor.
  const std::pair<int, int> sins_and_factors[] = {{7, 0}, {9, 0}, {5, 5}, {20, 0}, {15, 15}, {40, 20}};
  for (const auto& [sins, factors] : sins_and_factors) {
    std::string value = "score";
    for (int i = 0; i < std::max(sins, factors); ++i) {
      if (i < factors) value = concat("(", value, " * 1.25)");
      if (i < sins) value = concat("sin(", value, ")");
    }
    add(cases, concat("budget.sins_", sins, "_factors_", factors), "value = " + value);
    cases.back().node_budget = kNoBudget;
  }
  // Without the cut past the last row and key.
  for (const char* text : {"value = score * cos(score)", "operand x: f32 [q_idx, kv_idx]\nvalue = score * x"}) {
    add(cases, "adjoint.unguarded", text, without_tail_guard());
  }
  add_as_written(cases, "binary_select.constant_first", "value = select(q_idx * 2 - kv_idx < 3, -inf, score)",
                 constant_first_select());
}

}  // namespace

DType PatternCase::dtype_of_operands(DType problem) const {
  switch (operand_gradient) {
    case GradientDtype::kNone: break;
    case GradientDtype::kOfProblem: return problem;
    case GradientDtype::kOtherHalf: return problem == DType::kF16 ? DType::kBF16 : DType::kF16;
  }
  return operand_dtype;
}

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      {"base", 2, 4, 4, 192, 192, 64, 64, DType::kBF16, Layout::kBSHD},
      {"gqa_odd_f16_sbhd", 2, 4, 2, 77, 333, 64, 64, DType::kF16, Layout::kSBHD},
      {"long_q_d128_bhsd", 3, 2, 1, 300, 130, 128, 128, DType::kBF16, Layout::kBHSD},
      {"tail_65", 2, 4, 4, 130, 193, 64, 64, DType::kBF16, Layout::kBSHD},
      {"d256", 2, 2, 2, 129, 192, 256, 256, DType::kBF16, Layout::kBSHD},
      {"d8_gqa_f16", 2, 4, 2, 130, 192, 8, 8, DType::kF16, Layout::kBSHD},
      {"d40_sbhd", 2, 4, 4, 192, 333, 40, 40, DType::kBF16, Layout::kSBHD},
      {"d192_v128", 2, 2, 2, 200, 320, 192, 128, DType::kBF16, Layout::kBSHD},
      {"one_row", 2, 4, 4, 1, 192, 64, 64, DType::kBF16, Layout::kBSHD},
      {"one_row_gqa_d128", 2, 4, 2, 1, 333, 128, 128, DType::kF16, Layout::kBHSD},
  };
  return all;
}

std::vector<PatternCase> pattern_cases() {
  std::vector<PatternCase> cases;
  add(cases, "plain", "value = score");
  add_float_ops(cases);
  add_index_ops(cases);
  add_mixtures(cases);
  add_compositions(cases);
  add_masks(cases);
  for (PatternCase& operand : operand_cases()) cases.push_back(std::move(operand));
  add_avoided(cases);
  for (PatternCase& program : program_cases()) cases.push_back(std::move(program));
  for (PatternCase& zoo : zoo_cases()) {
    PatternCase elsewhere = zoo;
    zoo.in_right_patterns = elsewhere.in_right_patterns = true;
    elsewhere.name = "offsets." + zoo.name;
    elsewhere.offsets = {1, 2, 37, 11};
    cases.push_back(std::move(zoo));
    cases.push_back(std::move(elsewhere));
  }
  return cases;
}

const std::vector<KnownPattern>& known_bad_patterns() {
  static const std::vector<KnownPattern> known{
      {"direct.gt_q_kv", false, "wrong"},
      {"direct.lt_q_kv", false, "wrong"},
      {"direct.gt_kv_q", false, "wrong"},
      {"direct.ge_kv_q", false, "wrong"},
      {"operand.b111.f32.as_declared", false, "wrong"},
      {"operand.bh11.f32.as_declared", false, "wrong"},
      {"operand.b111.f32.as_declared", true, "wrong"},
      {"operand.bh11.f32.as_declared", true, "wrong"},
      {"operand.b11k.f32.as_declared", true, "wrong"},
      {"operand.bh1k.f32.as_declared", true, "wrong"},
      {"direct.ge_q_plus_offset_f32", false, "wrong"},
      {"index_first.add.f32", true, "wrong"},
      {"index_first.sub.f32", true, "wrong"},
      {"operand_gradient.1hqk.other_half", true, "wrong"},
      {"operand_gradient.1hqk.strided", true, "refused"},
      {"direct.ge_q_kv.constant_first", false, "crashed"},
      {concat("budget.", forward_budget() + 1), false, "refused"},
      {"direct.padding_of_queries", false, "crashed"},
      {"mul.bool_as_i32", false, "wrong"},
      {"logical_and.i32", false, "refused"},
      {"logical_and.bool", false, "refused"},
  };
  return known;
}

}  // namespace scoremod::explorer
