#include "problem/tensor_view.hpp"

#include <cmath>

#include "base/fail.hpp"
#include "problem/extent.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod {

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::kBSHD: return "BSHD";
    case Layout::kSBHD: return "SBHD";
    case Layout::kBHSD: return "BHSD";
    case Layout::kTHD: return "THD";
  }
  fail_argument("expected a Layout, found the value ", static_cast<int>(layout));
}

std::optional<Layout> parse_layout(std::string_view name) {
  for (const Layout layout : {Layout::kBSHD, Layout::kSBHD, Layout::kBHSD, Layout::kTHD}) {
    if (name == to_string(layout)) return layout;
  }
  return std::nullopt;
}

const char* to_string(Sink sink) {
  switch (sink) {
    case Sink::kNone: return "none";
    case Sink::kOffByOne: return "off_by_one";
    case Sink::kLearned: return "learned";
  }
  fail_argument("expected a Sink, found the value ", static_cast<int>(sink));
}

std::optional<Sink> parse_sink(std::string_view name) {
  for (const Sink sink : {Sink::kNone, Sink::kOffByOne, Sink::kLearned}) {
    if (name == to_string(sink)) return sink;
  }
  return std::nullopt;
}

float AttentionProblem::effective_scale() const {
  return scale ? *scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim_qk)));
}

}  // namespace scoremod

namespace scoremod::problem {
namespace {

Strides dense_strides(const TensorShape& shape, Layout layout) {
  switch (layout) {
    case Layout::kBSHD:
    case Layout::kTHD: return {shape.sequence * shape.heads * shape.dim, shape.dim, shape.heads * shape.dim, 1};
    case Layout::kSBHD: return {shape.heads * shape.dim, shape.dim, shape.batch * shape.heads * shape.dim, 1};
    case Layout::kBHSD: return {shape.heads * shape.sequence * shape.dim, shape.sequence * shape.dim, shape.dim, 1};
  }
  fail_bug("layout ", static_cast<int>(layout));
}

}  // namespace

const char* to_string(TensorRole role) {
  switch (role) {
    case TensorRole::kQ: return "q";
    case TensorRole::kK: return "k";
    case TensorRole::kV: return "v";
    case TensorRole::kO: return "o";
    case TensorRole::kDO: return "d_o";
    case TensorRole::kDQ: return "dq";
    case TensorRole::kDK: return "dk";
    case TensorRole::kDV: return "dv";
    case TensorRole::kLse: return "lse";
  }
  fail_bug("tensor role ", static_cast<int>(role));
}

TensorRole primal_of(TensorRole role) {
  switch (role) {
    case TensorRole::kDO: return TensorRole::kO;
    case TensorRole::kDQ: return TensorRole::kQ;
    case TensorRole::kDK: return TensorRole::kK;
    case TensorRole::kDV: return TensorRole::kV;
    default: return role;
  }
}

bool is_query_like(TensorRole role) {
  const TensorRole primal = primal_of(role);
  return primal != TensorRole::kK && primal != TensorRole::kV;
}

TensorShape shape_of(const AttentionProblem& problem, TensorRole role) {
  switch (primal_of(role)) {
    case TensorRole::kQ: return {problem.batch, problem.heads_q, problem.seq_q, problem.dim_qk};
    case TensorRole::kK: return {problem.batch, problem.heads_kv, problem.seq_kv, problem.dim_qk};
    case TensorRole::kV: return {problem.batch, problem.heads_kv, problem.seq_kv, problem.dim_v};
    case TensorRole::kO: return {problem.batch, problem.heads_q, problem.seq_q, problem.dim_v};
    case TensorRole::kLse: return {problem.batch, problem.heads_q, problem.seq_q, 1};
    default: fail_bug("tensor role ", static_cast<int>(role));
  }
}

TensorShape memory_shape_of(const AttentionProblem& problem, TensorRole role) {
  TensorShape shape = shape_of(problem, role);
  const auto& tokens = is_query_like(role) ? problem.tokens_q : problem.tokens_kv;
  if (tokens) {
    shape.batch = 1;
    shape.sequence = *tokens;
  } else if (problem.paged && !is_query_like(role)) {
    shape.batch = problem.paged->blocks;
    shape.sequence = problem.paged->block_size;
  }
  return shape;
}

const TensorLayout& layout_of(const AttentionProblem& problem, TensorRole role) {
  static const TensorLayout kRows{Layout::kBHSD, {}}, kTokens{Layout::kTHD, {}};
  switch (role) {
    case TensorRole::kQ: return problem.q;
    case TensorRole::kK: return problem.k;
    case TensorRole::kV: return problem.v;
    case TensorRole::kO: return problem.o;
    case TensorRole::kDO: return problem.d_o ? *problem.d_o : problem.o;
    case TensorRole::kDQ: return problem.dq ? *problem.dq : problem.q;
    case TensorRole::kDK: return problem.dk ? *problem.dk : problem.k;
    case TensorRole::kDV: return problem.dv ? *problem.dv : problem.v;
    case TensorRole::kLse: return problem.tokens_q ? kTokens : kRows;
  }
  fail_bug("tensor role ", static_cast<int>(role));
}

DType dtype_of(const AttentionProblem& problem, TensorRole role) {
  const DType dtype_o = problem.dtype_o.value_or(problem.dtype);
  switch (role) {
    case TensorRole::kLse: return DType::kF32;
    case TensorRole::kK:
    case TensorRole::kV: return problem.dtype_kv.value_or(problem.dtype);
    case TensorRole::kO: return dtype_o;
    case TensorRole::kDO: return problem.dtype_d_o.value_or(dtype_o);
    case TensorRole::kDQ:
    case TensorRole::kDK:
    case TensorRole::kDV: return problem.dtype_gradients.value_or(product_dtype(problem));
    default: return problem.dtype;
  }
}

DType product_dtype(const AttentionProblem& problem) { return is_float8(problem.dtype) ? DType::kBF16 : problem.dtype; }

bool has_float8_keys(const AttentionProblem& problem) { return is_float8(dtype_of(problem, TensorRole::kK)); }

Strides strides_of(const AttentionProblem& problem, TensorRole role) {
  const TensorLayout& layout = layout_of(problem, role);
  return layout.strides ? *layout.strides : dense_strides(memory_shape_of(problem, role), layout.layout);
}

std::size_t bytes_of(const AttentionProblem& problem, TensorRole role) {
  const TensorShape shape = memory_shape_of(problem, role);
  const Strides strides = strides_of(problem, role);
  const std::array sizes{shape.batch, shape.heads, shape.sequence, shape.dim};
  const std::array steps{strides.batch, strides.head, strides.sequence, strides.dim};
  const auto bytes = extent_bytes(sizes, steps, size_of(dtype_of(problem, role)));
  if (!bytes) fail_bug("bytes of ", to_string(role), " asked of a problem that was not validated");
  return *bytes;
}

const OperandSpec& spec_of(const AttentionProblem& problem, std::uint32_t operand) {
  const std::string& name = problem.program.operands().at(operand).name;
  for (const OperandSpec& spec : problem.operands) {
    if (spec.name == name) return spec;
  }
  fail_argument("operands: the program reads operand '", name,
                "', which is not among them; add it with its dtype and shape");
}

std::vector<std::uint32_t> operands_with_gradient(const AttentionProblem& problem) {
  std::vector<std::uint32_t> operands;
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) {
    if (spec_of(problem, i).has_gradient()) operands.push_back(i);
  }
  return operands;
}

OperandSpec default_spec(const AttentionProblem& problem, const OperandDecl& decl) {
  const DType dtype = decl.type == Type::kF32 ? DType::kF32 : decl.type == Type::kI32 ? DType::kI32 : DType::kBool;
  OperandSpec spec{decl.name, dtype, {}, {}};
  const std::array sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (decl.axes[axis]) spec.shape.push_back(sizes[axis]);
  }
  spec.gradient = !is_tensor_scale(problem, decl.name);
  return spec;
}

std::array<std::int64_t, kMaxTableRank> strides_of(const OperandSpec& spec) {
  std::array<std::int64_t, kMaxTableRank> strides{};
  std::int64_t dense = 1;
  for (std::size_t i = spec.shape.size(); i-- > 0;) {
    strides.at(i) = spec.strides.empty() ? dense : spec.strides.at(i);
    dense *= spec.shape[i];
  }
  return strides;
}

std::size_t bytes_of(const OperandSpec& spec) {
  const auto strides = strides_of(spec);
  const auto bytes = extent_bytes(spec.shape, std::span(strides).first(spec.shape.size()), size_of(spec.dtype));
  if (!bytes) fail_bug("bytes of operand '", spec.name, "' asked of a problem that was not validated");
  return *bytes;
}

}  // namespace scoremod::problem
