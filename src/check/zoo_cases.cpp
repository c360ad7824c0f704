#include "check/zoo_cases.hpp"

#include "scoremod/zoo.hpp"

#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::checking {
namespace {

/// For parameters without a default, or with one that is too large to matter at these lengths.
zoo::Parameters parameters_of(const std::string& name) {
  using Int = std::int64_t;
  static const std::map<std::string, zoo::Parameters> kParameters{
      {"soft_cap", {{"cap", 6.0}}},
      {"relative_bias", {{"scale", 0.0625}}},
      {"t5_bias", {{"num_buckets", Int{16}}, {"max_distance", Int{40}}}},
      {"relative_table", {{"max_distance", Int{20}}}},
      {"sliding_window", {{"window", Int{9}}}},
      {"causal_sliding_window", {{"window", Int{17}}}},
      {"prefix_lm", {{"prefix", Int{11}}}},
      {"dilated_window", {{"window", Int{5}}, {"dilation", Int{3}}}},
      {"neighborhood_2d", {{"width", Int{10}}, {"radius_x", Int{2}}, {"radius_y", Int{1}}}},
      {"global_window", {{"global_tokens", Int{3}}, {"window", Int{6}}}},
  };
  const auto found = kParameters.find(name);
  return found == kParameters.end() ? zoo::Parameters{} : found->second;
}

struct Shape {
  const char* name;
  AttentionProblem problem;
  IndexOffsets offsets = {};
};

AttentionProblem with_layout(AttentionProblem problem, Layout layout) {
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = layout;
  problem.backward = problem.stats = true;
  return problem;
}

/// Dense in BSHD with `gap` elements after each row.
AttentionProblem with_padded_rows(AttentionProblem problem, std::int64_t gap) {
  const auto strides = [&](std::int64_t heads, std::int64_t sequence, std::int64_t dim) {
    const std::int64_t row = dim + gap;
    return Strides{sequence * heads * row, row, heads * row, 1};
  };
  problem = with_layout(problem, Layout::kBSHD);
  problem.q.strides = strides(problem.heads_q, problem.seq_q, problem.dim_qk);
  problem.k.strides = strides(problem.heads_kv, problem.seq_kv, problem.dim_qk);
  problem.v.strides = strides(problem.heads_kv, problem.seq_kv, problem.dim_v);
  problem.o.strides = strides(problem.heads_q, problem.seq_q, problem.dim_v);
  return problem;
}

AttentionProblem sized(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seq_q,
                       std::int64_t seq_kv, std::int64_t dim_qk, std::int64_t dim_v) {
  AttentionProblem problem;
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.dim_qk = dim_qk;
  problem.dim_v = dim_v;
  return problem;
}

AttentionProblem with_lengths(AttentionProblem problem) {
  problem.lengths = {true, true};
  return problem;
}

std::vector<Shape> shapes() {
  return {{"self", with_layout(sized(2, 2, 2, 257, 257, 64, 64), Layout::kBSHD)},
          {"grouped", with_layout(sized(2, 4, 2, 77, 320, 64, 128), Layout::kBHSD)},
          {"one_query", with_layout(sized(2, 3, 1, 1, 300, 128, 128), Layout::kSBHD), {0, 0, 299, 0}},
          {"padded_rows", with_padded_rows(sized(1, 2, 1, 333, 130, 40, 40), 8)},
          {"lengths", with_lengths(with_layout(sized(3, 2, 1, 150, 140, 64, 64), Layout::kSBHD))},
          {"shard", with_layout(sized(1, 2, 2, 40, 64, 32, 32), Layout::kBSHD), {1, 2, 64, 32}}};
}

std::vector<std::vector<std::string>> modifiers() {
  std::vector<std::vector<std::string>> out{{}};
  for (const zoo::Entry& entry : zoo::entries()) out.push_back({entry.name});
  for (const auto& combination : std::vector<std::vector<std::string>>{{"soft_cap", "causal"},
                                                                       {"alibi", "causal"},
                                                                       {"relative_bias", "sliding_window"},
                                                                       {"t5_bias", "padding"},
                                                                       {"full_bias", "causal_bottom_right"},
                                                                       {"relative_table", "prefix_lm"},
                                                                       {"head_temperature", "causal_sliding_window"},
                                                                       {"soft_cap", "documents", "causal"}}) {
    out.push_back(combination);
  }
  return out;
}

}  // namespace

CheckCase zoo_case(const std::vector<std::string>& names, AttentionProblem problem, DType dtype) {
  problem.dtype = dtype;
  problem.amax_o = is_float8(dtype);
  const zoo::Sizes sizes{problem.batch,  problem.heads_q,   problem.seq_q,
                         problem.seq_kv, problem.lengths.q, problem.lengths.kv};
  CheckCase made;
  std::vector<zoo::Modifier> chosen;
  for (const std::string& name : names) {
    chosen.push_back(zoo::make(name, parameters_of(name), sizes));
    made.name += concat(made.name.empty() ? "" : "+", name);
  }
  const zoo::Combination combination = zoo::combine(chosen);
  problem.program = combination.program;
  for (const zoo::OperandNeed& need : combination.operands) {
    const bool floating = is_floating(need.dtype);
    problem.operands.push_back({need.name, floating ? problem::product_dtype(problem) : need.dtype, need.shape, {}});
    // The default suits integers: ids along a sequence, lengths otherwise.
    if (floating) made.fills.push_back({need.name, {FillKind::kUniform, need.low, need.high}});
  }
  made.problem = std::move(problem);
  return made;
}

std::vector<CheckCase> zoo_cases(std::span<const DType> dtypes) {
  std::vector<CheckCase> cases;
  for (const std::vector<std::string>& names : modifiers()) {
    bool wide_operands = false;
    for (const Shape& shape : shapes()) {
      for (const DType dtype : dtypes) {
        CheckCase made = zoo_case(names, shape.problem, dtype);
        made.name = concat("zoo/", names.empty() ? "plain" : made.name, "/", shape.name, "/", to_string(dtype));
        made.call.offsets = shape.offsets;
        made.problem.index_offsets = shape.offsets != IndexOffsets{};
        if (wide_operands) {
          for (OperandSpec& spec : made.problem.operands)
            spec.dtype = is_floating(spec.dtype) ? DType::kF32 : spec.dtype;
        }
        cases.push_back(std::move(made));
      }
      wide_operands = !wide_operands;
    }
  }
  return cases;
}

}  // namespace scoremod::checking
